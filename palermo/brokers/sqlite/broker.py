"""The embedded broker: implements palermo.contract.broker.Broker on one SQLite file."""

import asyncio
import json
import logging
import sqlite3
from collections import Counter
from collections.abc import Callable, Iterable
from functools import partial

from msgspec.structs import replace

from palermo.brokers.features.broker import StepBroker
from palermo.brokers.features.portions import in_steps
from palermo.brokers.sqlite import workers
from palermo.brokers.sqlite.channels import Channels
from palermo.brokers.sqlite.consumer import SqliteConsumer
from palermo.brokers.sqlite.diagnosis import diagnose
from palermo.brokers.sqlite.direct_insert import DirectInsert
from palermo.brokers.sqlite.file.opening import open_store, side_directory
from palermo.brokers.sqlite.file.store import Store, unusable
from palermo.brokers.sqlite.grouped_inserts import GroupedInserts
from palermo.brokers.sqlite.steps import SqliteSteps
from palermo.brokers.sqlite.tables.jobs import LISTED, declare_queue, insert_many, to_row
from palermo.brokers.sqlite.tables.pauses_and_cancels import paused
from palermo.contract.broker import Finding, OnPublished, Overview, SessionParameters, ignore_count
from palermo.contract.trouble import Trouble
from palermo.contract.worker_info import (
    OnCommand,
    WorkerInfo,
    WorkerList,
    ignore_command,
    stored_patterns,
)
from palermo.core.message import Message
from palermo.core.queue_selection import QueueSelection
from palermo.core.topology import check_exchange_name
from palermo.errors import BrokerError, BrokerUnavailable, StoreInvalid

log = logging.getLogger("palermo.sqlite")


async def open_sqlite(session: SessionParameters) -> "SqliteBroker":
    """Open a session with the file at the address. Creates a missing file if `creates`.

    Raises UrlInvalid, StoreInvalid, BrokerUnavailable.
    """
    exchange = check_exchange_name(session.exchange)
    store = await open_store(session.address, session.timeout, warns=session.warns, creates=session.creates)
    return SqliteBroker(store, exchange, session)


class SqliteBroker(StepBroker[SqliteSteps, SqliteConsumer]):
    """One session with the file, opened by open_sqlite."""

    def __init__(self, store: Store, exchange: str, session: SessionParameters) -> None:
        self._store = store
        self._exchange = exchange
        self._directory = side_directory(store.path)
        self._channels = Channels(store, exchange, self._directory)
        super().__init__(SqliteSteps(store, exchange, self._channels), session)
        self._direct_insert = DirectInsert(store, exchange)
        self._grouped_inserts = GroupedInserts(store, exchange, self._channels)
        self._cut_off: tuple[workers.CutOff, ...] = session.unfinished or ()
        self._closed = False

    async def publish(self, message: Message) -> None:
        await self._grouped_inserts.insert(message)

    def try_publish(self, message: Message, ended: OnPublished) -> bool:
        if not self._direct_insert.insert(message):
            return False
        ended(None)
        return True

    async def publish_many(
        self,
        messages: Iterable[Message],
        stored: Callable[[int], None] = ignore_count,
    ) -> int:
        count = 0
        for step in in_steps(messages):
            rows = [(message.queue, to_row(message)) for message in step]
            await self._store.write(partial(insert_many, exchange=self._exchange, rows=rows), publishing=True)
            self._channels.ring()
            count += len(rows)
            stored(count)
            await asyncio.sleep(0)
        return count

    async def consume(
        self,
        selection: QueueSelection,
        *,
        slots: int,
        tag: str,
        report: Callable[[], WorkerInfo],
        on_command: OnCommand = ignore_command,
        prefetch: int = 1,
    ) -> SqliteConsumer:
        if prefetch > 1:
            log.info("prefetch is 1, because a slot takes jobs from SQLite one at a time")
        await workers.reap_dead(self._store, self._directory)
        reported = report()
        try:
            lock = workers.WorkerLock(self._directory)
        except OSError as error:
            raise unusable(self._store.display_path, error) from error

        def enter(db: sqlite3.Connection) -> int:
            for name in selection.select(()):
                declare_queue(db, self._exchange, name)
            values = (self._exchange, tag, lock.name, json.dumps(selection.patterns), json.dumps(reported.to_plain()))
            cursor = db.execute(
                "insert into holder (exchange, tag, lock, selection, report) values (?, ?, ?, ?, ?)", values
            )
            holder = cursor.lastrowid or 0
            for one in self._cut_off:
                workers.take_over(db, one, holder)
            return holder

        try:
            holder = await self._store.write(enter)
        except BaseException:
            lock.release()
            raise
        resumes, self._cut_off = self._cut_off, ()
        for one in resumes:
            one.lock.release()
        consumer = SqliteConsumer(
            self._store,
            self._channels,
            directory=self._directory,
            lock=lock,
            holder=holder,
            exchange=self._exchange,
            selection=selection,
            report=report,
            reported=reported,
            order=self._session.tenant_order,
            resumes=bool(resumes),
            on_command=on_command,
        )
        self._consumers.append(consumer)
        self._store.be_patient()
        await consumer.start()
        return consumer

    async def overview(self) -> Overview:
        trouble = await self.find_trouble()
        await self._sync()
        return replace(await self._store.read(self._overview), trouble=trouble)

    async def workers(self) -> WorkerList:
        await self._sync()
        rows = await self._store.read(
            lambda db: db.execute(
                "select id, tag, report, lock from holder where exchange = ?", (self._exchange,)
            ).fetchall()
        )
        return WorkerList(workers.from_report(self._directory, *row) for row in rows)

    async def diagnose(self) -> list[Finding]:
        return await diagnose(self._store, self._steps, self._exchange)

    async def lost(self) -> BrokerError:
        # A file doesn't disconnect; the next call raises an error if something has happened to it.
        never: asyncio.Future[BrokerError] = asyncio.get_running_loop().create_future()
        return await never

    @property
    def is_lost(self) -> bool:
        return False

    async def close(self) -> None:
        if self._closed:
            return
        self._closed = True
        for consumer in self._consumers:
            await consumer.close()
        await self.journal.close()
        self._direct_insert.close()
        self._channels.close()
        self._store.close()

    @property
    def trouble(self) -> Trouble | None:
        return self._store.trouble

    async def find_trouble(self) -> Trouble | None:
        return await self._store.find_trouble()

    def describe(self) -> str:
        return f"SQLite file {self._store.display_path}, exchange {self._exchange}"

    def after_failure(self) -> SessionParameters:
        cut_off = (*self._cut_off, *(one.cut_off for one in self._consumers if one.cut_off is not None))
        return replace(self._session, unfinished=cut_off)

    async def _sync(self) -> None:
        """Write finished jobs and remove dead holders, so that the next transaction sees the true state."""
        if self._closed:
            raise BrokerUnavailable(f"the session with {self._store.display_path} is closed. Open another.")
        for consumer in self._consumers:
            await consumer.flush()
        try:
            reaped = await workers.reap_dead(self._store, self._directory)
        except StoreInvalid:
            if self._store.trouble is None:
                raise
            return  # a file on a full disk is still readable
        if reaped:
            self._channels.ring()

    def _overview(self, db: sqlite3.Connection) -> Overview:
        names = dict(db.execute(f"select id, name from queue where {LISTED}", (self._exchange,)).fetchall())
        held = db.execute("select queue, count(*) from job where holder is not null group by queue").fetchall()
        rows = db.execute(
            "select selection, id, tag, report, lock from holder where exchange = ?", (self._exchange,)
        ).fetchall()
        known = [
            (stored_patterns(row[1], selection), workers.from_report(self._directory, *row)) for selection, *row in rows
        ]
        serving = Counter(patterns for patterns, worker in known if worker.answers)
        pending = "select count(*) from job where queue = ? and holder is null"
        return Overview.of(
            {name: db.execute(pending, (number,)).fetchone()[0] for number, name in names.items()},
            in_progress={names[number]: count for number, count in held if number in names},
            selections=((QueueSelection(patterns), count) for patterns, count in serving.items()),
            workers=WorkerList(worker for _, worker in known),
            paused=paused(db, self._exchange),
        )
