"""Reading the journal to its end, once: for commands, and for programs that ask now and then."""

import asyncio
from collections import OrderedDict
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Protocol

from palermo.broker import Broker, Swept
from palermo.core.journal import Batch
from palermo.errors import BrokerUnavailable, PalermoError
from palermo.journal import FIRST, Start

if TYPE_CHECKING:
    from palermo.client import Client

#: Writers of which it is known how many batches they had written, those heard of last.
_WRITERS = 10_000

#: Told how far reading has come: in batches, since how many records there are nobody knows.
OnProgress = Callable[[Swept], None]


class Taker(Protocol):
    """Who keeps something of what is read. Called on the reading thread, one call at a time."""

    def take(self, batch: Batch) -> None:
        """Keep what matters of a batch; its position is above that of the one before. Should take milliseconds.

        May raise PalermoError: nothing more is handed to it then before it is `reset`.
        """

    def reset(self) -> None:
        """Forget all: what comes now is from the beginning of a journal. May raise PalermoError."""


class Once:
    """Tells batches that were stored twice, since nobody answered their writer the first time."""

    def __init__(self) -> None:
        self._written: OrderedDict[str, int] = OrderedDict()

    def is_new(self, batch: Batch) -> bool:
        """Whether it is told for the first time. A writer has one on its way at a time, so a copy is right behind."""
        if not batch.source:
            return True
        before = self._written.pop(batch.source, 0)
        self._written[batch.source] = max(before, batch.number)
        if len(self._written) > _WRITERS:
            self._written.popitem(last=False)
        return batch.number > before


def read_to_end(
    client: "Client", takers: Sequence[Taker], start: Start = FIRST, *, progress: OnProgress | None = None
) -> None:
    """Hand these takers all that is in the journal at this moment. Raises BrokerUnavailable, BrokerRefused."""
    client.run(lambda broker: _read(broker, takers, start, progress))


async def _read(broker: Broker, takers: Sequence[Taker], start: Start, progress: OnProgress | None) -> None:
    once = Once()
    broken: list[PalermoError] = []
    failed = asyncio.Event()
    first: int | None = None
    end = 0

    def take(batch: Batch) -> None:
        nonlocal first
        if broken or not once.is_new(batch):
            return
        try:
            for taker in takers:
                taker.take(batch)
        except PalermoError as error:
            broken.append(error)
            failed.set()
        first = batch.position if first is None else first
        if progress is not None and end:
            progress(Swept(total=max(1, end - first + 1), seen=min(batch.position, end) - first + 1))

    reader = await broker.journal.read(take, start)
    end = reader.end
    try:
        await first_of(reader.caught_up, reader.ended, failed)
    finally:
        with suppress(PalermoError):
            await reader.close()
    if broken:
        raise broken[0]
    if not reader.caught_up.is_set():
        raise BrokerUnavailable("the journal was deleted, or the session lost, while it was being read. Try again.")


async def first_of(*events: asyncio.Event) -> None:
    """Wait until one of these is set."""
    waits = [asyncio.ensure_future(event.wait()) for event in events]
    try:
        await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for wait in waits:
            wait.cancel()
