"""The journal as a table: each row is a batch. A session that appends also deletes what is too old or too much."""

import sqlite3
from collections.abc import Sequence

from palermo.brokers.sqlite.file.notifier import Notifier
from palermo.brokers.sqlite.file.store import Store
from palermo.contract import clock
from palermo.contract.broker import SessionParameters
from palermo.contract.journal import FROM_START, OnBatch, ReadFrom, Wants
from palermo.contract.journal_poll import JournalPoll

#: Appends between two checks of the bounds. A check reads what it deletes, and one batch more.
_TRIM_EVERY = 200

#: Batches read in one transaction.
_BATCH_SIZE = 20

#: Seconds between two reads without a notification.
_POLL_EVERY = 1.0


class SqliteJournal:
    """The journal of one exchange, as one session writes and reads it. See palermo.contract.journal.Journal."""

    def __init__(self, store: Store, notifier: Notifier, session: SessionParameters) -> None:
        self._store = store
        self._notifier = notifier
        self._session = session
        self._readers: set[JournalPoll] = set()
        self._appended = 0

    async def append(self, batch: bytes) -> None:
        trim = self._appended % _TRIM_EVERY == 0
        self._appended += 1

        def insert(db: sqlite3.Connection) -> None:
            now = clock.now()
            append_batch(db, self._session.exchange, batch, now)
            if trim:
                self._trim(db, now)

        await self._store.write(insert, publishing=True)
        self.ring()

    def ring(self) -> None:
        """Tell readers that there may be a new batch."""
        self._notifier.notify()

    async def read(self, on_batch: OnBatch, start: ReadFrom = FROM_START, wants: Wants | None = None) -> JournalPoll:
        exchange = self._session.exchange

        def find(db: sqlite3.Connection) -> tuple[int, int]:
            ((end,),) = db.execute("select coalesce(max(seq), 0) from journal where exchange = ?", (exchange,))
            position = (start.position or 0) if start.last is None else max(0, end + 1 - start.last)
            if position > end + 1:
                position = 0
            if start.since is not None:
                # From the end: nearly all callers ask for the latest.
                older = db.execute(
                    "select seq from journal where exchange = ? and at < ? order by seq desc limit 1",
                    (exchange, start.since),
                ).fetchone()
                position = 0 if older is None else older[0] + 1
            rows = db.execute("select min(seq) from journal where exchange = ? and seq >= ?", (exchange, position))
            ((begin,),) = rows
            return begin or end + 1, end

        begin, end = await self._store.read(find)

        async def stop() -> None:
            self._notifier.unlisten(reader.look_again)

        reader = JournalPoll(self._find, on_batch, wants, begin=begin, end=end, every=_POLL_EVERY, stop=stop)
        self._readers.add(reader)
        self._notifier.listen(reader.look_again)
        reader.start()
        return reader

    async def close(self) -> None:
        """End all readers."""
        for reader in self._readers:
            await reader.close()
        self._notifier.close()

    async def _find(self, position: int) -> Sequence[tuple[int, bytes]]:
        return await self._store.read(
            lambda db: db.execute(
                "select seq, cast(body as blob) from journal where exchange = ? and seq >= ? order by seq limit ?",
                (self._session.exchange, position, _BATCH_SIZE),
            ).fetchall()
        )

    def _trim(self, db: sqlite3.Connection, now: float) -> None:
        bounds = {
            "exchange": self._session.exchange,
            "oldest": now - self._session.journal_age,
            "most": self._session.journal_bytes,
        }
        for kept in (
            "at >= :oldest",
            "upto - length(body) >= (select upto from journal where exchange = :exchange order by seq desc limit 1)"
            " - :most",
        ):
            db.execute(
                "delete from journal where exchange = :exchange and seq < (select seq from journal"
                f" where exchange = :exchange and {kept} order by seq limit 1)",
                bounds,
            )


def append_batch(db: sqlite3.Connection, exchange: str, batch: bytes, now: float) -> None:
    """Store a batch at the end of the journal."""
    db.execute(
        "insert into journal (exchange, at, body, upto) values (:exchange, :at, :body, :size + coalesce("
        "(select upto from journal where exchange = :exchange order by seq desc limit 1), 0))",
        {"exchange": exchange, "at": now, "body": batch, "size": len(batch)},
    )
