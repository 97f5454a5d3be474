"""A sweep of a queue: the decision for each message that `Broker.sweep` reads, and its progress."""

from collections.abc import Callable

from msgspec import Struct

from palermo.core.message import Message


def _ignore() -> None:
    """Do nothing."""


class Keep(Struct, frozen=True):
    """Leave the message in the queue."""


class Remove(Struct, frozen=True):
    """Remove the message from the queue.

    `done` is called once it is removed. It isn't called if the message has left the queue in the meantime.
    """

    done: Callable[[], object] = _ignore


class Move(Struct, frozen=True):
    """Publish this message to its queue, and remove the old one once that is confirmed.

    `done` is called once the old message is removed. If another job has the job's unique key, or if its workflow
    forbids another run, the old message is kept, and `refused` is called instead. Neither is called if the old message
    has left the queue in the meantime.
    """

    message: Message
    done: Callable[[], object] = _ignore
    refused: Callable[[], object] = _ignore


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
