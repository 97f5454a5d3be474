"""The embedded broker: all that palermo.broker.Broker asks for, on one SQLite file."""

import asyncio
import json
import sqlite3
import time
from collections.abc import Callable, Iterable
from itertools import islice

from palermo.broker import Ended, Page, QueueInfo, Session, Swept, Verdict
from palermo.brokers.sqlite import holders, keys, marks, orders, permits, sweeping
from palermo.brokers.sqlite.bell import Bell
from palermo.brokers.sqlite.consumer import SqliteConsumer
from palermo.brokers.sqlite.diagnosis import diagnose
from palermo.brokers.sqlite.events import SqliteEvents, deleted
from palermo.brokers.sqlite.faults import unusable
from palermo.brokers.sqlite.journal import TableJournal
from palermo.brokers.sqlite.messages import COLUMNS, Row, declare, from_row, insert, insert_many, to_row
from palermo.brokers.sqlite.opening import open_store, side_directory
from palermo.brokers.sqlite.store import Store
from palermo.brokers.sqlite.tenancy import Tenancy
from palermo.brokers.sqlite.timekeeper import Timekeeper
from palermo.core.message import Message
from palermo.core.patterns import QueueSelection
from palermo.core.permits import LimitInfo
from palermo.core.prefetch import ONE, Prefetch
from palermo.core.topology import check_exchange_name
from palermo.crew import Answer, Obey, Order, WorkerInfo, deaf
from palermo.entries import PUT, REMOVE, RUN, SWITCH, Change, Entry, run_id
from palermo.errors import BrokerError, BrokerRefused, BrokerUnavailable, NotFound
from palermo.findings import Finding
from palermo.timetable import Altered, Chosen, Scheduled, Tell, meant_by, nobody

#: How many messages publish_many puts into one transaction, and about how many bytes of bodies.
_BATCH = 500
_BATCH_BYTES = 8 * 1024 * 1024

#: SQLite's numbers have 64 bits.
_MOST = 2**63 - 1


async def open_sqlite(session: Session) -> "SqliteBroker":
    """A session with the file that the address names, made if it is not there.

    Raises UrlInvalid, StoreInvalid, BrokerUnavailable.
    """
    exchange = check_exchange_name(session.exchange)
    store = await open_store(session.address, session.timeout)
    holders.tidy(side_directory(store.path))
    return SqliteBroker(store, exchange, session)


class SqliteBroker:
    """One session with the file. Opened by open_sqlite."""

    def __init__(self, store: Store, exchange: str, session: Session) -> None:
        self._store = store
        self._session = session
        self.tenants = Tenancy(store, exchange)
        self._exchange = exchange
        self._directory = side_directory(store.path)
        self._bell = Bell(self._directory, store.data_version)
        self._timekeeper = Timekeeper(store, self._bell, exchange)
        self.journal = TableJournal(store, Bell(self._directory, store.data_version, "journal-bell"), session)
        self.events = SqliteEvents(store, self._bell, session)
        self.keys = keys.TableKeys(store, self._bell, exchange)
        self._consumers: list[SqliteConsumer] = []
        self._closed = False

    async def publish(self, message: Message) -> None:
        row = to_row(message)
        await self._store.write(lambda db: insert(db, self._exchange, message.queue, row), publishing=True)
        self._bell.ring()

    def post(self, message: Message, ended: Ended) -> bool:
        return False  # a transaction is waited for, in a thread

    async def publish_many(self, messages: Iterable[Message], sent: Callable[[], None] | None = None) -> int:
        waiting = iter(messages)
        stored = 0
        while batch := _batch(waiting):
            await self._store.write(lambda db, batch=batch: insert_many(db, self._exchange, batch), publishing=True)  # type: ignore[misc]
            self._bell.ring()
            stored += len(batch)
            await asyncio.sleep(0)
        return stored

    async def consume(
        self,
        selection: QueueSelection,
        *,
        slots: int,
        tag: str,
        report: Callable[[], WorkerInfo],
        obey: Obey = deaf,
        prefetch: Prefetch = ONE,
    ) -> SqliteConsumer:
        await holders.bury(self._store, self._directory)
        reported = report()
        try:
            lock = holders.Lock(self._directory)
        except OSError as error:
            raise unusable(self._store.shown, error) from error

        def enter(db: sqlite3.Connection) -> tuple[int, int]:
            for name in selection.select(()):
                declare(db, self._exchange, name)
            values = (self._exchange, tag, lock.name, json.dumps(selection.patterns), json.dumps(reported.to_plain()))
            cursor = db.execute(
                "insert into holder (exchange, tag, lock, selection, report) values (?, ?, ?, ?, ?)", values
            )
            return cursor.lastrowid or 0, orders.last(db)

        try:
            holder, since = await self._store.write(enter)
        except BaseException:
            lock.drop()
            raise
        consumer = SqliteConsumer(
            self._store,
            self._bell,
            directory=self._directory,
            lock=lock,
            holder=holder,
            exchange=self._exchange,
            selection=selection,
            report=report,
            reported=reported,
            order=self._session.tenant_order,
            orders=orders.Listener(self._store, self._exchange, holder, tag, obey, since=since),
        )
        self._consumers.append(consumer)
        return consumer

    async def queues(self) -> list[QueueInfo]:
        await self._settle_down()
        return await self._store.read(self._list_queues)

    async def workers(self) -> list[WorkerInfo]:
        await self._settle_down()
        rows = await self._store.read(
            lambda db: db.execute("select report from holder where exchange = ?", (self._exchange,)).fetchall()
        )
        return sorted((WorkerInfo.from_plain(json.loads(report)) for (report,) in rows), key=lambda worker: worker.id)

    async def command(self, order: Order, *, timeout: float = 5.0) -> list[Answer]:
        await self._settle_down()
        return await orders.command(self._store, self._directory, self._exchange, order, timeout=timeout)

    async def pause(self, queue: str, *, by: str = "") -> None:
        await self._store.write(lambda db: marks.pause(db, self._exchange, queue, by))
        self._bell.ring()

    async def resume(self, queue: str, *, by: str = "") -> None:
        await self._store.write(lambda db: marks.resume(db, self._exchange, queue))
        self._bell.ring()

    async def cancel(self, ids: Iterable[str], *, by: str = "") -> None:
        chosen = list(ids)

        def mark(db: sqlite3.Connection) -> None:
            marks.cancel(db, self._exchange, chosen, by)
            keys.cancelled(db, self._exchange, chosen)

        await self._store.write(mark)

    async def restore(self, ids: Iterable[str]) -> None:
        chosen = list(ids)
        await self._store.write(lambda db: marks.restore(db, self._exchange, chosen))

    async def browse(self, queue: str, *, offset: int = 0, limit: int = 100, newest: bool = False) -> Page:
        await self._settle_down()
        page = (min(limit, _MOST), min(offset, _MOST))

        order = "tenant desc, priority, id desc" if newest else "tenant, priority desc, id"

        def find(db: sqlite3.Connection) -> Page:
            number = self._number(db, queue)
            rows = db.execute(
                f"select {COLUMNS} from job where queue = ? and holder is null order by {order} limit ? offset ?",
                (number, *page),
            ).fetchall()
            ((total,),) = db.execute(
                "select count(*) from job where queue = ? and holder is null", (number,)
            ).fetchall()
            messages = tuple(from_row(row, queue) for row in rows)
            cancelled = (one.id for one in messages if marks.find(db, self._exchange, one) is not None)
            return Page(messages=messages, total=total, cancelled=frozenset(cancelled))

        return await self._store.read(find)

    async def sweep(
        self,
        queue: str,
        decide: Callable[[Message], Verdict],
        *,
        progress: Callable[[Swept], None] | None = None,
        only_look: bool = False,
        id: str = "",
    ) -> Swept:
        await self._settle_down()
        number = await self._store.read(lambda db: self._number(db, queue))
        return await sweeping.sweep(
            self._store,
            exchange=self._exchange,
            queue=(number, queue),
            decide=decide,
            progress=progress,
            moved=self._bell.ring,
        )

    async def keep_time(self, fired: Tell = nobody) -> None:
        await self._timekeeper.keep(fired)

    @property
    def leads(self) -> bool:
        return self._timekeeper.leads

    async def scheduled(self, chosen: Chosen, *, offset: int = 0, limit: int = 100) -> Scheduled:
        return await self._timekeeper.show(chosen, offset=min(offset, _MOST), limit=min(limit, _MOST))

    async def alter_scheduled(
        self, chosen: Chosen, action: str, *, at: float | None = None, failed_per_queue: bool = False
    ) -> list[Altered]:
        return await self._timekeeper.alter(meant_by(chosen, action), action, at, failed_per_queue=failed_per_queue)

    async def recurring(self) -> list[Entry]:
        return await self._timekeeper.recurring()

    async def put_recurring(self, entry: Entry) -> None:
        await self._timekeeper.change(Change(name=entry.name, action=PUT, entry=entry))

    async def remove_recurring(self, name: str) -> None:
        await self._timekeeper.change(Change(name=name, action=REMOVE))

    async def switch_recurring(self, name: str, *, on: bool) -> None:
        await self._timekeeper.change(Change(name=name, action=SWITCH, on=on))

    async def fire_recurring(self, name: str) -> str:
        id = run_id(name, time.time())
        await self._timekeeper.change(Change(name=name, action=RUN, id=id))
        return id

    async def purge(self, queue: str) -> int:
        await self._settle_down()
        number = await self._store.read(lambda db: self._number(db, queue))
        return await sweeping.purge(self._store, number, self._exchange)

    async def migrate(self, queue: str, kind: str, *, progress: Callable[[Swept], None] | None = None) -> int:
        raise BrokerRefused("queues in an SQLite file have no types: there is nothing to migrate.")

    async def delete(self, queue: str) -> int:
        removed = await self.purge(queue)

        def drop(db: sqlite3.Connection) -> int:
            number = self._number(db, queue)
            deleted(db, self._exchange, queue)
            late = sweeping.purge_step(db, number, self._exchange, _MOST)
            # A job that a worker holds may come back, and then needs a queue to come back to.
            db.execute("update queue set hidden = 1 where id = ?", (number,))
            db.execute(
                "delete from queue where id = ? and not exists (select 1 from job where queue = ?)", (number, number)
            )
            return late

        return removed + await self._store.write(drop)

    async def limits(self) -> list[LimitInfo]:
        return await self._store.read(lambda db: permits.known(db, self._exchange))

    async def diagnose(self) -> list[Finding]:
        return await diagnose(self._store, self._exchange)

    async def lost(self) -> BrokerError:
        # A file does not go away by itself; what befalls it is told by the next call.
        never: asyncio.Future[BrokerError] = asyncio.get_running_loop().create_future()
        return await never

    async def close(self) -> None:
        if self._closed:
            return
        self._closed = True
        for consumer in self._consumers:
            await consumer.close()
        await self.journal.close()
        self._bell.close()
        self._store.close()

    @property
    def blocked(self) -> bool:
        return False

    def describe(self) -> str:
        return f"SQLite file {self._store.shown}, exchange {self._exchange}"

    async def _settle_down(self) -> None:
        """Write what is done and bury the dead, so that what follows sees things as they are."""
        if self._closed:
            raise BrokerUnavailable(f"the session with {self._store.shown} is closed. Open another.")
        for consumer in self._consumers:
            await consumer.flush()
        if await holders.bury(self._store, self._directory):
            self._bell.ring()

    def _number(self, db: sqlite3.Connection, queue: str) -> int:
        rows = db.execute(
            "select id from queue where exchange = ? and name = ? and not hidden", (self._exchange, queue)
        ).fetchall()
        if not rows:
            raise NotFound(
                f"there is no queue {queue!r} in {self._store.shown}. `palermo queues` lists those there are."
            )
        return int(rows[0][0])

    def _list_queues(self, db: sqlite3.Connection) -> list[QueueInfo]:
        names = dict(
            db.execute("select id, name from queue where exchange = ? and not hidden", (self._exchange,)).fetchall()
        )
        paused = marks.paused(db, self._exchange)
        held = dict(db.execute("select queue, count(*) from job where holder is not null group by queue").fetchall())
        selections = db.execute("select selection from holder where exchange = ?", (self._exchange,)).fetchall()
        served = [
            name
            for (patterns,) in selections
            for name in QueueSelection(tuple(json.loads(patterns))).select(names.values())
        ]
        pending = "select count(*) from job where queue = ? and holder is null"
        found = [
            QueueInfo(
                name=name,
                pending=db.execute(pending, (number,)).fetchone()[0],
                in_progress=held.get(number, 0),
                workers=served.count(name),
                paused=name in paused,
            )
            for number, name in names.items()
        ]
        unmade = paused.difference(names.values())
        found += [QueueInfo(name=name, pending=0, in_progress=0, workers=0, paused=True) for name in unmade]
        return sorted(found, key=lambda info: info.name)


def _batch(messages: Iterable[Message]) -> list[tuple[str, Row]]:
    """The next messages, as rows."""
    batch: list[tuple[str, Row]] = []
    size = 0
    for message in islice(messages, _BATCH):
        batch.append((message.queue, to_row(message)))
        size += len(message.body)
        if size >= _BATCH_BYTES:
            break
    return batch
