"""The size of the longest tests: a short one, or what was promised in full with `PALERMO_ENDURANCE=1`."""

import os
from collections.abc import Sequence
from typing import TypeVar

T = TypeVar("T")

#: Whether all is asked for.
FULL = os.environ.get("PALERMO_ENDURANCE") == "1"

#: How a broker is restarted: the hard way, and if all is asked for in good order too.
RESTARTS = ["by kill -9", *(["in good order"] if FULL else [])]


def scaled(usual: int, full: int) -> int:
    """The number to do in this run."""
    return full if FULL else usual


def chosen(usual: Sequence[T], *others: T) -> list[T]:
    """What to go through in this run: the usual ones, or all of them."""
    return [*usual, *(others if FULL else ())]
