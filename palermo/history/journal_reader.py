"""Reads the journal once, to its end: for commands, and for programs that ask now and then."""

import asyncio
from collections import OrderedDict
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Protocol

from palermo.client.wait_first import wait_first
from palermo.contract.broker import Broker
from palermo.contract.journal import FROM_START, ReadFrom
from palermo.contract.sweep import SweepProgress
from palermo.core.journal_records import RecordBatch
from palermo.errors import BrokerUnavailable, PalermoError

if TYPE_CHECKING:
    from palermo.client.client import Client

#: The most writers whose number of batches is remembered, those heard of last.
_WRITERS = 10_000

#: A function that is told how far the reading has come: in batches, since the number of records is not known.
OnProgress = Callable[[SweepProgress], None]


class JournalView(Protocol):
    """An object that keeps something of what is read. Called on the reading thread, one call at a time."""

    def take(self, batch: RecordBatch) -> None:
        """Keep what matters of a batch; its position is above that of the one before. Should take milliseconds.

        May raise PalermoError: then it gets no more batches before it is `reset`.
        """

    def reset(self) -> None:
        """Forget all: the next batch is from the beginning of a journal. May raise PalermoError."""


class BatchFilter:
    """Recognizes batches that were stored twice, since the broker did not answer their writer the first time."""

    def __init__(self) -> None:
        self._written: OrderedDict[str, int] = OrderedDict()

    def is_new(self, batch: RecordBatch) -> bool:
        """Whether the batch comes for the first time. A writer sends one batch at a time, so a copy comes next."""
        if not batch.source:
            return True
        before = self._written.pop(batch.source, 0)
        self._written[batch.source] = max(before, batch.number)
        if len(self._written) > _WRITERS:
            self._written.popitem(last=False)
        return batch.number > before


def read_to_end(
    client: "Client", views: Sequence[JournalView], start: ReadFrom = FROM_START, *, progress: OnProgress | None = None
) -> None:
    """Hand the views all that is in the journal at this moment. Raises BrokerUnavailable, BrokerRefused."""
    client.run(lambda broker: _read(broker, views, start, progress))


async def _read(broker: Broker, views: Sequence[JournalView], start: ReadFrom, progress: OnProgress | None) -> None:
    once = BatchFilter()
    broken: list[PalermoError] = []
    failed = asyncio.Event()
    first: int | None = None
    end = 0

    def take(batch: RecordBatch) -> None:
        nonlocal first
        if broken or not once.is_new(batch):
            return
        try:
            for view in views:
                view.take(batch)
        except PalermoError as error:
            broken.append(error)
            failed.set()
        first = batch.position if first is None else first
        if progress is not None and end:
            progress(SweepProgress(total=max(1, end - first + 1), seen=min(batch.position, end) - first + 1))

    reader = await broker.journal.read(take, start)
    end = reader.end
    try:
        await wait_first(reader.caught_up, reader.ended, failed)
    finally:
        with suppress(PalermoError):
            await reader.close()
    if broken:
        raise broken[0]
    if not reader.caught_up.is_set():
        raise BrokerUnavailable("the journal was deleted, or the session lost, while it was being read. Try again.")
