"""The journal as a stream: each entry is a batch."""

from collections.abc import Sequence

from palermo.brokers.redis.log import Log, place_at
from palermo.brokers.redis.store import Store
from palermo.contract import clock
from palermo.contract.broker import SessionParameters
from palermo.contract.journal import FROM_START, OnBatch, ReadFrom, Wants
from palermo.contract.journal_poll import JournalPoll

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
        self._readers: set[JournalPoll] = set()

    async def append(self, batch: bytes) -> None:
        await self._store.change((), self._log.appended(batch, clock.now()))

    async def read(self, on_batch: OnBatch, start: ReadFrom = FROM_START, wants: Wants | None = None) -> JournalPoll:
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
        bell = f"bell:{self._log.name}"

        async def stop() -> None:
            await self._store.unlisten(bell, reader.look_again)

        reader = JournalPoll(self._find, on_batch, wants, begin=begin, end=end, every=_POLL_EVERY, stop=stop)
        self._readers.add(reader)
        await self._store.listen(bell, reader.look_again)
        reader.start()
        return reader

    async def close(self) -> None:
        """End all readers."""
        for reader in self._readers:
            await reader.close()

    async def _find(self, position: int) -> Sequence[tuple[int, bytes]]:
        return [(entry.place, entry.blob) for entry in await self._log.read(position, None, _BATCH_SIZE)]
