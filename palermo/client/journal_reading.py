"""Reads the journal in batches, despite lost sessions and deleted journals. All readers use `read_journal`.

After a lost session, the last batch is read again before reading continues. If it has changed, the journal was deleted
and recreated, or no longer holds the batch. In that case `Restarted` is yielded, and reading starts again from the
beginning. A batch that its writer stored twice is yielded once.

Everything here runs in the client's event loop.
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

#: Seconds between attempts to open the journal, doubled from the first to the last value.
_FIRST_PAUSE, _LAST_PAUSE = 0.1, 2.0

#: Maximum number of writers whose last batch number is remembered. The oldest are dropped.
_WRITERS = 10_000


class Opened(Struct, frozen=True):
    """The journal was opened, for the first time or after a loss."""

    #: The last stored position.
    end: int


class CaughtUp(Struct, frozen=True):
    """All batches that existed when the journal was opened have been yielded."""


class Restarted(Struct, frozen=True):
    """The journal was replaced, so the following batches are read from its beginning."""


class Away(Struct, frozen=True):
    """The journal can't be read at present. Reading is retried after a pause."""

    error: PalermoError


JournalEvent = RecordBatch | Opened | CaughtUp | Restarted | Away


async def read_journal(
    keeper: SessionKeeper, start: ReadFrom = FROM_START, wants: Wants | None = None
) -> AsyncGenerator[JournalEvent]:
    """Yield the journal's batches from `start` on, forever, and events about the reading.

    `wants` selects the batches. Close the generator (`aclosing`) to stop reading.
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
    """Detects batches that were stored twice because their writer didn't receive the first answer."""

    def __init__(self) -> None:
        self._written: OrderedDict[str, int] = OrderedDict()

    def is_new(self, batch: RecordBatch) -> bool:
        """Whether this is the first copy of the batch. A copy directly follows the original, since a writer sends one
        batch at a time.
        """
        if not batch.source:
            return True
        before = self._written.pop(batch.source, 0)
        self._written[batch.source] = max(before, batch.number)
        if len(self._written) > _WRITERS:
            self._written.popitem(last=False)
        return batch.number > before
