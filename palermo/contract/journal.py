"""The contract of a broker's journal: a log of batches with any number of writers and readers.

Reading removes nothing. The journal is bounded by size and age, and as durable as the broker's queues.
palermo.core.journal_records defines its contents.
"""

import asyncio
from collections.abc import Callable
from typing import Protocol

from msgspec import Struct

from palermo.core.journal_records import RecordBatch


class ReadFrom(Struct, frozen=True, kw_only=True):
    """Where reading starts: at the first batch, unless a field says otherwise."""

    #: The first position to read; batches that were dropped by then are skipped. A position beyond the journal's end
    #: means that this is another journal: then everything is read.
    position: int | None = None
    #: Read about this many of the last stored batches, and later ones.
    last: int | None = None
    #: Read batches stored at or after this instant (Unix seconds); some earlier batches may be included.
    since: float | None = None


FROM_START = ReadFrom()

#: Gets a batch. Called on the session's loop, so it must be quick.
OnBatch = Callable[[RecordBatch], None]

#: Decides by a batch's bytes whether to read it.
Wants = Callable[[bytes], bool]


class JournalReader(Protocol):
    """A running read of the journal, which continues as the journal grows."""

    #: The first position to read, and the last one that was stored when reading started. Nothing is read before
    #: `begin`, and `end` < `begin` if there is nothing to read yet.
    begin: int
    end: int
    #: Whether reading ended because the journal was deleted: positions then start from zero.
    deleted: bool
    #: Set once all batches that were stored when reading started have been handed out.
    caught_up: asyncio.Event
    #: Set once the read has ended because the journal was deleted or the session was lost. Then start another read.
    ended: asyncio.Event

    async def close(self) -> None:
        """Stop reading. May be called again."""


class Journal(Protocol):
    """The part of a broker that keeps the journal."""

    async def append(self, batch: bytes) -> None:
        """Store a batch from palermo.core.journal_records.encode, creating the journal if needed; returns once it is
        stored.

        Raises BrokerUnavailable if that takes longer than the session's timeout, BrokerRefused.
        """

    async def read(self, on_batch: OnBatch, start: ReadFrom = FROM_START, wants: Wants | None = None) -> JournalReader:
        """Hand out batches in order, each once, creating the journal if needed; returns when reading has started.

        With `wants`, batches that it rejects are skipped without being decoded. Reading waits for a slow reader, so
        memory is bounded. Raises BrokerUnavailable, BrokerRefused.
        """
