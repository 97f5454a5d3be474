"""What a broker's journal must do: a log of batches that anyone appends to and any number read, taking nothing out.

Bounded by size and age, and as durable as the broker's queues. See palermo.core.journal for what is in it.
"""

import asyncio
from collections.abc import Callable
from typing import Protocol

from palermo.core.journal import Batch
from palermo.core.values import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Start:
    """Where reading begins: at the first batch there is, unless one of these says otherwise."""

    #: The first position to be read; what has been forgotten by then is skipped. All is read if it is further than
    #: the journal goes: that is another one then.
    position: int | None = None
    #: What was stored at this instant (Unix seconds) and after; some of the time before may come too.
    since: float | None = None
    #: Only what is stored from now on.
    next: bool = False


FIRST = Start()
NEXT = Start(next=True)

#: Takes a batch; called on the session's loop, so it must be quick.
OnBatch = Callable[[Batch], None]


class Reader(Protocol):
    """Someone who reads the journal, and goes on as it grows."""

    #: The first position that is read and the last that was stored when reading began: how long the way is. Nothing
    #: is read before `begin` and `end` < `begin` if there is nothing to read yet.
    begin: int
    end: int
    #: Whether it ended because the journal was deleted: positions count anew.
    deleted: bool
    #: Set once all that was stored when reading began has been handed out.
    caught_up: asyncio.Event
    #: Set once nothing more will come: the journal was deleted, or the session was lost. Read again from another one.
    ended: asyncio.Event

    async def close(self) -> None:
        """Read no more. May be called again."""


class Journal(Protocol):
    """The part of a broker that keeps the journal."""

    async def append(self, batch: bytes) -> None:
        """Store what palermo.core.journal.encode made, making the journal if need be; returns once it is stored.

        Raises BrokerUnavailable if that takes longer than the session's timeout, BrokerRefused.
        """

    async def read(self, on_batch: OnBatch, start: Start = FIRST) -> Reader:
        """Hand out batches in their order, each once, making the journal if need be; returns when reading has begun.

        A slow reader is waited for: memory is bounded. Raises BrokerUnavailable, BrokerRefused.
        """
