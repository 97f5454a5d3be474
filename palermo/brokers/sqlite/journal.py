"""The journal as a table, each row of which is a batch. Whoever appends also forgets what is too old or too much."""

import asyncio
import sqlite3
import time
from contextlib import suppress

from palermo.broker import Session
from palermo.brokers.sqlite.bell import Bell
from palermo.brokers.sqlite.store import Store
from palermo.core.journal import decode
from palermo.errors import BrokerError
from palermo.journal import FIRST, OnBatch, Start

#: Appends between two looks at the bounds: one reads a page of the file for each batch that there is.
_TRIM_EVERY = 200

#: Batches read in one transaction.
_AT_ONCE = 20

#: Seconds between two looks without being woken.
_LOOK_EVERY = 1.0


class TableJournal:
    """The journal of one exchange, as one session writes and reads it. See palermo.journal.Journal."""

    def __init__(self, store: Store, bell: Bell, session: Session) -> None:
        self._store = store
        self._bell = bell
        self._session = session
        self._readers: set[TableReader] = set()
        self._appended = 0

    async def append(self, batch: bytes) -> None:
        trim = self._appended % _TRIM_EVERY == 0
        self._appended += 1

        def insert(db: sqlite3.Connection) -> None:
            now = time.time()
            db.execute(
                "insert into journal (exchange, at, body) values (?, ?, ?)", (self._session.exchange, now, batch)
            )
            if trim:
                self._trim(db, now)

        await self._store.write(insert, publishing=True)
        self._bell.ring()

    async def read(self, on_batch: OnBatch, start: Start = FIRST) -> "TableReader":
        exchange = self._session.exchange

        def find(db: sqlite3.Connection) -> tuple[int, int]:
            ((end,),) = db.execute("select coalesce(max(seq), 0) from journal where exchange = ?", (exchange,))
            if start.next:
                return end + 1, end
            where, value = "seq >= ?", float(start.position or 0)
            if start.position is not None and start.position > end + 1:
                value = 0
            if start.since is not None:
                where, value = "at >= ?", start.since
            rows = db.execute(f"select min(seq) from journal where exchange = ? and {where}", (exchange, value))
            ((begin,),) = rows
            return begin or end + 1, end

        begin, end = await self._store.read(find)
        reader = TableReader(self._store, self._bell, exchange, on_batch, begin=begin, end=end)
        self._readers.add(reader)
        return reader

    async def close(self) -> None:
        """End all reading."""
        for reader in self._readers:
            await reader.close()
        self._bell.close()

    def _trim(self, db: sqlite3.Connection, now: float) -> None:
        exchange = self._session.exchange
        db.execute("delete from journal where exchange = ? and at < ?", (exchange, now - self._session.journal_age))
        db.execute(
            "delete from journal where exchange = :exchange and seq <= (select max(seq) from"
            " (select seq, sum(length(body)) over (order by seq desc) as size from journal where exchange = :exchange)"
            " where size > :most)",
            {"exchange": exchange, "most": self._session.journal_bytes},
        )


class TableReader:
    """See palermo.journal.Reader."""

    def __init__(self, store: Store, bell: Bell, exchange: str, on_batch: OnBatch, *, begin: int, end: int) -> None:
        self._store = store
        self._bell = bell
        self._exchange = exchange
        self._on_batch = on_batch
        self.begin = begin
        self.end = end
        self.deleted = False
        self.caught_up = asyncio.Event()
        self.ended = asyncio.Event()
        self._next = begin
        self._rung = asyncio.Event()
        bell.listen(self._rung.set)
        self._task = asyncio.ensure_future(self._run())

    async def close(self) -> None:
        self._bell.ignore(self._rung.set)
        self._task.cancel()
        await asyncio.wait({self._task})
        self.ended.set()

    async def _run(self) -> None:
        try:
            while True:
                self._rung.clear()
                rows = await self._store.read(self._find)
                for seq, body in rows:
                    self._next = seq + 1
                    self._on_batch(decode(seq, body))
                if self._next > self.end or not rows:
                    self.caught_up.set()
                if rows:
                    await asyncio.sleep(0)
                    continue
                with suppress(TimeoutError):
                    async with asyncio.timeout(_LOOK_EVERY):
                        await self._rung.wait()
        except BrokerError:
            self.ended.set()

    def _find(self, db: sqlite3.Connection) -> list[tuple[int, bytes]]:
        return db.execute(
            "select seq, body from journal where exchange = ? and seq >= ? order by seq limit ?",
            (self._exchange, self._next, _AT_ONCE),
        ).fetchall()
