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
    """The start of a read: the first batch, unless a field says otherwise."""

    #: The first position to read. Batches already dropped are skipped. A position beyond the journal's end belongs to
    #: another journal: then everything is read.
    position: int | None = None
    #: Start about this many batches before the end.
    last: int | None = None
    #: Start with the batches stored at this instant, in Unix seconds, or some earlier ones.
    since: float | None = None


FROM_START = ReadFrom()

#: Receives a batch. Runs on the session's loop, so it must be quick.
OnBatch = Callable[[RecordBatch], None]

#: Decides from a batch's bytes whether to decode it.
Wants = Callable[[bytes], bool]


class JournalReader(Protocol):
    """A running read of the journal, which continues as the journal grows."""

    #: The first position to read, and the last one that was stored at the start. `end` < `begin` if there was none.
    begin: int
    end: int
    #: Whether reading ended because the journal was deleted. A new journal's positions start from zero.
    deleted: bool
    #: Set once all batches that were stored at the start have been delivered.
    caught_up: asyncio.Event
    #: Set once reading has ended because the journal was deleted or the session was lost. Then start again.
    ended: asyncio.Event

    async def close(self) -> None:
        """Stop reading. May be called again."""


class Journal(Protocol):
    """The part of a broker that keeps the journal."""

    async def append(self, batch: bytes) -> None:
        """Store a batch from palermo.core.journal_records.encode; returns once it is stored.

        Creates the journal if needed. Raises BrokerRefused, and BrokerUnavailable after the session's timeout.
        """

    async def read(self, on_batch: OnBatch, start: ReadFrom = FROM_START, wants: Wants | None = None) -> JournalReader:
        """Deliver all batches in order, each once, and later ones as they arrive. Returns when reading has started.

        Creates the journal if needed. `wants` can reject batches before they are decoded. A slow callback slows reading
        down, so memory is bounded. Raises BrokerUnavailable, BrokerRefused.
        """
