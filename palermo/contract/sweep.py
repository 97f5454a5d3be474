"""A sweep of a queue: the decision for each message that `Broker.sweep` reads, and its progress."""

from collections.abc import Callable

from msgspec import Struct

from palermo.core.message import Message


class Keep(Struct, frozen=True):
    """Leave the message in the queue."""


class Remove(Struct, frozen=True):
    """Remove the message from the queue."""


class Move(Struct, frozen=True):
    """Publish this message to its queue, and remove the old one once that is confirmed.

    If another job has the job's unique key, or if its workflow forbids another run, the old message is kept, and
    `refused` is called.
    """

    message: Message
    refused: Callable[[], None] | None = None


class Stop(Struct, frozen=True):
    """Leave this message and all later ones in the queue, and end the sweep."""


SweepDecision = Keep | Remove | Move | Stop


class SweepProgress(Struct, frozen=True, kw_only=True):
    """The progress of a sweep; `total` is the number of messages that it will read."""

    total: int
    seen: int = 0
    removed: int = 0
    moved: int = 0
    #: As in Page.
    unseen: int = 0
