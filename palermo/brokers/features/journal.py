"""The journal as a log with one entry per batch."""

import asyncio

from palermo.brokers.features.log import Log
from palermo.brokers.features.steps import StepStore
from palermo.contract import clock
from palermo.contract.broker import SessionParameters
from palermo.contract.journal import FROM_START, OnBatch, ReadFrom, Wants
from palermo.contract.tasks import wait_for_any
from palermo.core.journal_records import decode
from palermo.errors import BrokerError

#: The channel that gets a message for each batch.
BELL = "bell:journal"

#: Number of batches read at once.
_BATCH_SIZE = 20

#: Seconds between two reads without a message.
_POLL_EVERY = 2.0


class StepJournal:
    """One session's access to the journal of an exchange. See palermo.contract.journal.Journal."""

    def __init__(self, store: StepStore, session: SessionParameters) -> None:
        self._store = store
        self._log = Log("journal", age=session.journal_age, most_bytes=session.journal_bytes)
        self._readers: set[Reader] = set()

    async def append(self, batch: bytes) -> None:
        await self._store.change((), [*self._log.append(batch, clock.now()), ("publish", BELL, "")])

    async def read(self, on_batch: OnBatch, start: ReadFrom = FROM_START, wants: Wants | None = None) -> "Reader":
        end = await self._store.newest("journal") or 0
        if start.last is not None:
            begin = await self._store.newest("journal", start.last)
        else:
            position = start.position or 0
            if start.since is not None:
                position = await self._store.place_at("journal", start.since)
            elif position > end + 1:
                position = 0
            begin = next((one.place for one in await self._store.entries("journal", position, None, 1)), None)
        reader = Reader(self._store, on_batch, wants, begin or end + 1, end)
        self._readers.add(reader)
        await reader.start()
        return reader

    async def close(self) -> None:
        """Stop all readers."""
        for reader in self._readers:
            await reader.close()


class Reader:
    """See palermo.contract.journal.JournalReader. Reads after each message, and periodically."""

    def __init__(self, store: StepStore, on_batch: OnBatch, wants: Wants | None, begin: int, end: int) -> None:
        self._store = store
        self._on_batch = on_batch
        self._wants = wants
        self.begin = begin
        self.end = end
        self.deleted = False
        self.caught_up = asyncio.Event()
        self.ended = asyncio.Event()
        self._notified = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Start reading."""
        await self._store.listen(BELL, self._look_again)
        self._task = asyncio.ensure_future(self._run())

    async def close(self) -> None:
        task, self._task = self._task, None
        if task is None:
            return
        task.cancel()
        await asyncio.wait({task})
        self.ended.set()
        await self._store.unlisten(BELL, self._look_again)

    def _look_again(self, text: bytes = b"") -> None:
        self._notified.set()

    async def _run(self) -> None:
        next = self.begin
        try:
            while True:
                self._notified.clear()
                batches = await self._store.entries("journal", next, None, _BATCH_SIZE)
                for one in batches:
                    next = one.place + 1
                    if self._wants is None or self._wants(one.body):
                        self._on_batch(decode(one.place, one.body))
                if next > self.end or not batches:
                    self.caught_up.set()
                if batches:
                    await asyncio.sleep(0)
                    continue
                await wait_for_any(self._notified, timeout=_POLL_EVERY)
        except BrokerError:
            self.ended.set()
