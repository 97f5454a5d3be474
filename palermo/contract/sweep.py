"""A sweep of a queue: what is decided for each message that `Broker.sweep` reads, and how far it has come."""

from collections.abc import Callable

from msgspec import Struct

from palermo.core.message import Message


class Keep(Struct, frozen=True):
    """Leave the message where it is."""


class Remove(Struct, frozen=True):
    """Take the message out of the queue."""


class Move(Struct, frozen=True):
    """Publish this message to its queue, and take the old one out once that is confirmed.

    If another job has the unique key that this one needs, or a workflow does not let it run again, the old one stays,
    and `refused` is called.
    """

    message: Message
    refused: Callable[[], None] | None = None


class Stop(Struct, frozen=True):
    """Leave this message and all behind it where they are, and end the sweep."""


SweepDecision = Keep | Remove | Move | Stop


class SweepProgress(Struct, frozen=True, kw_only=True):
    """The progress of a sweep; `total` is how many messages it will look at."""

    total: int
    seen: int = 0
    removed: int = 0
    moved: int = 0
    #: As in a Page.
    unseen: int = 0
