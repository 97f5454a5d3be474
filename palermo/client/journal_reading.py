"""Reads the journal in batches, across lost sessions and deleted journals. Every reader uses `read_journal`.

After a lost session, reading continues behind the last batch. That batch is read again to check that it is
unchanged. If it isn't, the journal was deleted and created again, or no longer has the batch: `Restarted` is
yielded, and reading begins again from the start. A batch that its writer stored twice is yielded once.

All of it belongs to the client's event loop.
"""

import asyncio
from collections import OrderedDict, deque
from collections.abc import AsyncGenerator
from contextlib import aclosing, suppress

from msgspec import Struct

from palermo.client.session_keeper import SessionKeeper
from palermo.contract.journal import FROM_START, Journal, ReadFrom, Wants
from palermo.contract.tasks import wait_for_any
from palermo.core.journal_records import RecordBatch
from palermo.errors import BrokerUnavailable, PalermoError

#: Seconds between attempts to open the journal: the first pause, doubled up to the last.
_FIRST_PAUSE, _LAST_PAUSE = 0.1, 2.0

#: Maximum number of writers whose last batch number is remembered; the oldest are dropped.
_WRITERS = 10_000


class Opened(Struct, frozen=True):
    """The journal was opened, for the first time or again after a loss."""

    #: The last stored position.
    end: int


class CaughtUp(Struct, frozen=True):
    """Every batch that was stored when the journal was opened has been yielded."""


class Restarted(Struct, frozen=True):
    """The journal was replaced: the following batches are read from its beginning."""


class Away(Struct, frozen=True):
    """The journal can't be read now. Reading is tried again after a pause."""

    error: PalermoError


JournalEvent = RecordBatch | Opened | CaughtUp | Restarted | Away


async def read_journal(
    keeper: SessionKeeper, start: ReadFrom = FROM_START, wants: Wants | None = None
) -> AsyncGenerator[JournalEvent]:
    """Yield the batches from `start` on as the journal grows, and the events of reading. It never ends.

    With `wants`, only batches that it accepts. Close the generator (`aclosing`) to stop reading.
    """
    once, last, pause = BatchFilter(), None, _FIRST_PAUSE
    while True:
        known = last
        try:
            session = await keeper.get_within_timeout()
            begin = start if last is None else ReadFrom(position=last.position)
            async with aclosing(_read_session(session.journal, begin, wants)) as events:
                async for event in events:
                    match event:
                        case Opened(end) if last is not None and end < last.position:
                            event = Restarted()
                        case RecordBatch() if known is not None:
                            if event == known:
                                known = None
                                continue
                            event = Restarted()
                        case RecordBatch():
                            last, pause = event, _FIRST_PAUSE
                            if not once.is_new(event):
                                continue
                        case CaughtUp():
                            pause = _FIRST_PAUSE
                    yield event
                    if isinstance(event, Restarted):
                        once, last = BatchFilter(), None
                        break
                else:
                    yield Away(BrokerUnavailable("the session was lost while the journal was being read."))
        except PalermoError as error:
            yield Away(error)
        await asyncio.sleep(pause)
        pause = min(2 * pause, _LAST_PAUSE)


async def _read_session(
    journal: Journal, start: ReadFrom, wants: Wants | None
) -> AsyncGenerator[RecordBatch | Opened | CaughtUp | Restarted]:
    """Read until the session is lost or the journal is deleted."""
    batches, arrived = deque[RecordBatch](), asyncio.Event()

    def on_batch(batch: RecordBatch) -> None:
        batches.append(batch)
        arrived.set()

    reader = await journal.read(on_batch, start, wants)
    try:
        yield Opened(reader.end)
        awaited = [reader.caught_up, reader.ended, arrived]
        while True:
            while batches:
                yield batches.popleft()
            if reader.caught_up.is_set() and reader.caught_up in awaited:
                awaited.remove(reader.caught_up)
                yield CaughtUp()
            elif reader.ended.is_set():
                break
            else:
                arrived.clear()
                await wait_for_any(*awaited)
        if reader.deleted:
            yield Restarted()
    finally:
        with suppress(PalermoError):
            await reader.close()


class BatchFilter:
    """Recognizes duplicate batches, stored again because the broker did not answer the writer the first time."""

    def __init__(self) -> None:
        self._written: OrderedDict[str, int] = OrderedDict()

    def is_new(self, batch: RecordBatch) -> bool:
        """Whether this is the first copy of the batch. A writer sends one batch at a time, so a copy comes next."""
        if not batch.source:
            return True
        before = self._written.pop(batch.source, 0)
        self._written[batch.source] = max(before, batch.number)
        if len(self._written) > _WRITERS:
            self._written.popitem(last=False)
        return batch.number > before
