"""A sweep of a queue: what is decided for each message that `Broker.sweep` reads, and how far it has come."""

from collections.abc import Callable
from dataclasses import dataclass, field

from palermo.core.message import Message


@dataclass(frozen=True, slots=True)
class Keep:
    """Leave the message where it is."""


@dataclass(frozen=True, slots=True)
class Remove:
    """Take the message out of the queue."""


@dataclass(frozen=True, slots=True)
class Move:
    """Publish this message to its queue, and take the old one out once that is confirmed.

    If another job has the unique key that this one needs, the old one stays, and `refused` is called.
    """

    message: Message
    refused: Callable[[], None] | None = field(default=None, compare=False)


@dataclass(frozen=True, slots=True)
class Stop:
    """Leave this message and all behind it where they are, and end the sweep."""


SweepDecision = Keep | Remove | Move | Stop


@dataclass(frozen=True, slots=True, kw_only=True)
class SweepProgress:
    """The progress of a sweep; `total` is how many messages it will look at."""

    total: int
    seen: int = 0
    removed: int = 0
    moved: int = 0
    #: As in a Page.
    unseen: int = 0
