"""The contract of a broker's journal: a log of batches that anyone appends to and any number read.

Reading takes nothing out. The journal is bounded by size and age, and as durable as the broker's queues.
palermo.core.journal_records says what is in it.
"""

import asyncio
from collections.abc import Callable
from typing import Protocol

from msgspec import Struct

from palermo.core.journal_records import RecordBatch


class ReadFrom(Struct, frozen=True, kw_only=True):
    """Where reading begins: at the first batch there is, unless a field says otherwise."""

    #: The first position to read; batches that have been forgotten by then are skipped. A position beyond the journal's
    #: end means that this is another journal: then all is read.
    position: int | None = None
    #: Read about the last so many batches that are stored, and what comes after them.
    last: int | None = None
    #: Read what was stored at this instant (Unix seconds) and after; some batches from before may come too.
    since: float | None = None


FROM_START = ReadFrom()

#: Takes a batch. Called on the session's loop, so it must be quick.
OnBatch = Callable[[RecordBatch], None]

#: Says by a batch's bytes whether it is wanted.
Wants = Callable[[bytes], bool]


class JournalReader(Protocol):
    """A running read of the journal, which goes on as the journal grows."""

    #: The first position that is read, and the last one that was stored when reading began: how far there is to read.
    #: Nothing is read before `begin`, and `end` < `begin` if there is nothing to read yet.
    begin: int
    end: int
    #: Whether reading ended because the journal was deleted: positions then start from zero.
    deleted: bool
    #: Set once all that was stored when reading began has been handed out.
    caught_up: asyncio.Event
    #: Set once nothing more will come: the journal was deleted, or the session was lost. Then begin another read.
    ended: asyncio.Event

    async def close(self) -> None:
        """Stop reading. May be called again."""


class Journal(Protocol):
    """The part of a broker that keeps the journal."""

    async def append(self, batch: bytes) -> None:
        """Store what palermo.core.journal_records.encode made; makes the journal if need be, returns once it is stored.

        Raises BrokerUnavailable if that takes longer than the session's timeout, BrokerRefused.
        """

    async def read(self, on_batch: OnBatch, start: ReadFrom = FROM_START, wants: Wants | None = None) -> JournalReader:
        """Hand out batches in their order, each once, and make the journal if need be; returns when reading has begun.

        With `wants` batches that it does not want are left out: they are not even decoded. A slow reader is waited for,
        so memory is bounded. Raises BrokerUnavailable, BrokerRefused.
        """
