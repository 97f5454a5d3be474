"""The journal as a stream: each entry is a batch."""

import asyncio
from contextlib import suppress

from palermo.brokers.redis.log import Log, place_at
from palermo.brokers.redis.store import Store
from palermo.contract import clock
from palermo.contract.broker import SessionParameters
from palermo.contract.journal import FROM_START, OnBatch, ReadFrom, Wants
from palermo.core.journal_records import decode
from palermo.errors import BrokerError

#: Batches read at once.
_BATCH_SIZE = 20

#: Seconds between two reads without a message that something was appended.
_POLL_EVERY = 5.0

#: Seconds by which Redis's clock may differ from ours: reading by time begins so much earlier.
_CLOCK_DIFFERENCE = 2.0


class RedisJournal:
    """The journal of one exchange, as one session writes and reads it. See palermo.contract.journal.Journal."""

    def __init__(self, store: Store, session: SessionParameters) -> None:
        self._store = store
        self._log = Log(store, "journal", age=session.journal_age, most_bytes=session.journal_bytes)
        self._readers: set[RedisJournalReader] = set()

    async def append(self, batch: bytes) -> None:
        await self._store.change((), self._log.appended(batch, clock.now()))

    async def read(
        self, on_batch: OnBatch, start: ReadFrom = FROM_START, wants: Wants | None = None
    ) -> "RedisJournalReader":
        end = await self._log.last()
        begin = end + 1
        if start.last is not None:
            begin = await self._log.newest(end, start.last) or end + 1
        else:
            position = start.position or 0
            if position > end + 1:
                position = 0
            if start.since is not None:
                position = place_at(start.since - _CLOCK_DIFFERENCE)
            begin = await self._log.first(position) or end + 1
        reader = RedisJournalReader(self._store, self._log, on_batch, wants, begin=begin, end=end)
        self._readers.add(reader)
        await reader.start()
        return reader

    async def close(self) -> None:
        """End all readers."""
        for reader in self._readers:
            await reader.close()


class RedisJournalReader:
    """A reader of the journal that goes on as batches come. See palermo.contract.journal.JournalReader."""

    def __init__(self, store: Store, log: Log, on_batch: OnBatch, wants: Wants | None, *, begin: int, end: int) -> None:
        self._store = store
        self._log = log
        self._on_batch = on_batch
        self._wants = wants
        self.begin = begin
        self.end = end
        self.deleted = False
        self.caught_up = asyncio.Event()
        self.ended = asyncio.Event()
        self._next = begin
        self._told = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Begin to read."""
        await self._store.listen(f"bell:{self._log.name}", self._on_message)
        self._task = asyncio.ensure_future(self._run())

    async def close(self) -> None:
        if self.ended.is_set():
            return
        self.ended.set()
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait({self._task})
        await self._store.unlisten(f"bell:{self._log.name}", self._on_message)

    def _on_message(self, text: bytes) -> None:
        self._told.set()

    async def _run(self) -> None:
        try:
            while True:
                self._told.clear()
                entries = await self._log.read(self._next, None, _BATCH_SIZE)
                for entry in entries:
                    self._next = entry.place + 1
                    if self._wants is None or self._wants(entry.blob):
                        self._on_batch(decode(entry.place, entry.blob))
                if self._next > self.end or not entries:
                    self.caught_up.set()
                if entries:
                    await asyncio.sleep(0)
                    continue
                with suppress(TimeoutError):
                    async with asyncio.timeout(_POLL_EVERY):
                        await self._told.wait()
        except BrokerError:
            self.ended.set()
