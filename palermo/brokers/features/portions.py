"""Split many items into portions of bounded size."""

import math
from collections.abc import Callable, Iterable, Iterator
from typing import TypeVar

from palermo.core.message import Message

T = TypeVar("T")


def portions(
    items: Iterable[T], *, most: float = math.inf, most_size: float = math.inf, size: Callable[[T], int] = lambda _: 0
) -> Iterator[list[T]]:
    """The items in lists of at most `most` items, whose sizes add up to at most `most_size`, or of one larger item."""
    portion, total = list[T](), 0
    for item in items:
        added = size(item)
        if portion and (len(portion) >= most or total + added > most_size):
            yield portion
            portion, total = [], 0
        portion.append(item)
        total += added
    if portion:
        yield portion


#: Maximum number of messages, and bytes of bodies, that `publish_many` stores at a time.
_STEP, _STEP_BYTES = 500, 8 * 1024 * 1024


def in_steps(messages: Iterable[Message]) -> Iterator[list[Message]]:
    """The messages in groups of bounded size, as `publish_many` stores them."""
    return portions(messages, most=_STEP, most_size=_STEP_BYTES, size=lambda message: len(message.body))
