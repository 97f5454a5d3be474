"""The embedded broker: it implements palermo.contract.broker.Broker on one SQLite file."""

import asyncio
import json
import logging
import sqlite3
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Sequence
from functools import partial

from msgspec.structs import replace

from palermo.brokers.features import limits, sweep
from palermo.brokers.features.recurring import Recurring
from palermo.brokers.features.scheduled_jobs import ScheduledJobs
from palermo.brokers.features.unique_keys import Keys, jobs_cancelled
from palermo.brokers.features.workflows import Workflows, end_runs, key_ender
from palermo.brokers.sqlite import workers
from palermo.brokers.sqlite.consumer import SqliteConsumer
from palermo.brokers.sqlite.diagnosis import diagnose
from palermo.brokers.sqlite.direct_insert import DirectInsert
from palermo.brokers.sqlite.events import SqliteEvents, unsubscribe_group_of
from palermo.brokers.sqlite.file.notifier import Notifier
from palermo.brokers.sqlite.file.opening import open_store, side_directory
from palermo.brokers.sqlite.file.store import Store, unusable
from palermo.brokers.sqlite.grouped_inserts import GroupedInserts
from palermo.brokers.sqlite.job_search import find_jobs
from palermo.brokers.sqlite.journal import SqliteJournal
from palermo.brokers.sqlite.steps import SqliteSteps, change_keys, read_keys
from palermo.brokers.sqlite.tables import pauses_and_cancels
from palermo.brokers.sqlite.tables.jobs import (
    LISTED,
    SHOWN_COLUMNS,
    declare_queue,
    from_row,
    insert_many,
    queue_number,
    to_row,
)
from palermo.brokers.sqlite.tenants import SqliteTenants
from palermo.contract.broker import (
    Finding,
    OnPublished,
    Overview,
    Page,
    QueueInfo,
    SessionParameters,
    ignore_count,
    in_steps,
)
from palermo.contract.finding import FoundJobs, with_reports
from palermo.contract.recurring_entries import EntryChange, RecurringEntry
from palermo.contract.scheduled import MOVE, AlteredJob, OnJobs, ScheduledFilter, ScheduledPage, filter_for, ignore_jobs
from palermo.contract.sweep import SweepDecision, SweepProgress
from palermo.contract.trouble import Trouble
from palermo.contract.worker_info import (
    CommandReply,
    OnCommand,
    WorkerCommand,
    WorkerInfo,
    WorkerList,
    ignore_command,
    stored_patterns,
)
from palermo.core.election import Duty
from palermo.core.job_edit import JobEdit
from palermo.core.limits import LimitInfo
from palermo.core.message import MAX_BODY, Message
from palermo.core.queue_selection import QueueSelection
from palermo.core.topology import check_exchange_name, is_failed
from palermo.core.unique_keys import key_names
from palermo.errors import BrokerError, BrokerRefused, BrokerUnavailable, StoreInvalid

log = logging.getLogger("palermo.sqlite")

#: SQLite's numbers have 64 bits.
_MOST = 2**63 - 1


async def open_sqlite(session: SessionParameters) -> "SqliteBroker":
    """A session with the file that the address names, which is created if it does not exist, unless `creates` is False.

    Raises UrlInvalid, StoreInvalid, BrokerUnavailable.
    """
    exchange = check_exchange_name(session.exchange)
    store = await open_store(session.address, session.timeout, warns=session.warns, creates=session.creates)
    try:
        await workers.remove_stale_locks(store, side_directory(store.path))
    except BaseException:
        store.close()
        raise
    return SqliteBroker(store, exchange, session)


class SqliteBroker:
    """One session with the file. Opened by open_sqlite."""

    def __init__(self, store: Store, exchange: str, session: SessionParameters) -> None:
        self._store = store
        self._session = session
        self._exchange = exchange
        self._directory = side_directory(store.path)
        self._notifier = Notifier(self._directory, store.data_version)
        self._steps = SqliteSteps(store, exchange, self._notifier)
        self._recurring = Recurring(self._steps)
        self.keys = Keys(self._steps)
        self.journal = SqliteJournal(store, Notifier(self._directory, store.data_version, "journal-bell"), session)
        self.workflows = Workflows(
            self._steps, key_ender(self._steps), recorded=self.journal.ring, cancel_jobs=self._end_runs
        )
        self.tenants = SqliteTenants(store, self._steps, self.workflows, exchange)
        self._scheduled_jobs = ScheduledJobs(self._steps, self.keys, self._recurring, self.workflows)
        self.events = SqliteEvents(store, self._notifier, session)
        self._direct_insert = DirectInsert(store, exchange)
        self._grouped_inserts = GroupedInserts(store, exchange, self._notifier)
        self._consumers: list[SqliteConsumer] = []
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
        sent: Callable[[], None] | None = None,
        stored: Callable[[int], None] = ignore_count,
    ) -> int:
        count = 0
        for step in in_steps(messages):
            rows = [(message.queue, to_row(message)) for message in step]
            await self._store.write(partial(insert_many, exchange=self._exchange, rows=rows), publishing=True)
            self._notifier.notify()
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

        def enter(db: sqlite3.Connection) -> tuple[int, int]:
            for name in selection.select(()):
                declare_queue(db, self._exchange, name)
            values = (self._exchange, tag, lock.name, json.dumps(selection.patterns), json.dumps(reported.to_plain()))
            cursor = db.execute(
                "insert into holder (exchange, tag, lock, selection, report) values (?, ?, ?, ?, ?)", values
            )
            holder = cursor.lastrowid or 0
            for one in self._cut_off:
                workers.take_over(db, one, holder)
            return holder, workers.last_command(db)

        try:
            holder, since = await self._store.write(enter)
        except BaseException:
            lock.release()
            raise
        resumes, self._cut_off = self._cut_off, ()
        for one in resumes:
            one.lock.release()
        consumer = SqliteConsumer(
            self._store,
            self._notifier,
            directory=self._directory,
            lock=lock,
            holder=holder,
            exchange=self._exchange,
            selection=selection,
            report=report,
            reported=reported,
            order=self._session.tenant_order,
            resumes=bool(resumes),
            recorded=self.journal.ring,
            commands=workers.CommandListener(self._store, self._exchange, holder, tag, on_command, since=since),
        )
        self._consumers.append(consumer)
        self._store.be_patient()
        return consumer

    async def queues(self) -> list[QueueInfo]:
        return (await self.overview()).queues

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

    async def command(self, command: WorkerCommand, *, timeout: float = 5.0) -> list[CommandReply]:
        await self._sync()
        return await workers.send_command(self._store, self._directory, self._exchange, command, timeout=timeout)

    async def pause(self, queue: str, *, by: str = "") -> None:
        await self._store.write(lambda db: pauses_and_cancels.pause(db, self._exchange, queue, by))
        self._notifier.notify()

    async def resume(self, queue: str, *, by: str = "") -> None:
        await self._store.write(lambda db: pauses_and_cancels.resume(db, self._exchange, queue))
        self._notifier.notify()

    async def all_paused(self) -> bool:
        return (await self._store.read(lambda db: pauses_and_cancels.paused(db, self._exchange))).every

    async def cancel(self, ids: Iterable[str], *, by: str = "", created_at: int | None = None) -> Sequence[str]:
        chosen = list(ids)
        steps = await self.workflows.cancel(chosen)
        chosen += steps

        def mark(db: sqlite3.Connection) -> None:
            pauses_and_cancels.cancel(db, self._exchange, chosen, by, created_at)
            held = db.execute(
                "select holder, name from key where exchange = ? and holder in (select value from json_each(?))",
                (self._exchange, json.dumps(chosen)),
            ).fetchall()
            names = (name for _, name in held)
            change_keys(db, self._exchange, names, lambda states: jobs_cancelled(states, held))

        await self._store.write(mark)
        return steps

    async def _end_runs(self, ids: Sequence[str]) -> None:
        await self.cancel(ids)
        await end_runs(self, ids)

    async def restore(self, ids: Iterable[str]) -> None:
        chosen = list(ids)
        await self._store.write(lambda db: pauses_and_cancels.restore(db, self._exchange, chosen))

    async def browse(
        self, queue: str, *, offset: int = 0, limit: int = 100, newest: bool = False, max_body: int = MAX_BODY
    ) -> Page:
        await self._sync()
        page = (min(limit, _MOST), min(offset, _MOST))

        order = "tenant desc, priority, id desc" if newest else "tenant, priority desc, id"

        def find(db: sqlite3.Connection) -> Page:
            number = queue_number(db, self._exchange, queue, self._store.display_path)
            rows = db.execute(
                f"select {SHOWN_COLUMNS} from job where queue = ? and holder is null order by {order} limit ? offset ?",
                (max_body + 1, number, *page),
            ).fetchall()
            ((total,),) = db.execute(
                "select count(*) from job where queue = ? and holder is null", (number,)
            ).fetchall()
            messages = tuple(from_row(row, queue) for row in rows)
            if not is_failed(queue):
                keys = read_keys(db, self._exchange, key_names(messages))
                messages = tuple(keys.as_they_run(messages, max_body=max_body))
            cancelled = (
                one.id for one in messages if pauses_and_cancels.cancelled_by(db, self._exchange, one) is not None
            )
            return Page(messages=messages, total=total, cancelled=frozenset(cancelled))

        return await self._store.read(find)

    async def find(
        self, ids: Collection[str], *, queue: str = "", failed: bool = True, beginnings: bool = False
    ) -> FoundJobs:
        await self._sync()
        search = partial(find_jobs, exchange=self._exchange, ids=ids, failed=failed, beginnings=beginnings)
        jobs = await self.workflows.with_workflows(await self._store.read(search), ids, failed=failed)
        return FoundJobs(jobs=with_reports(jobs, await self.workers()))

    async def sweep(
        self,
        queue: str,
        decide: Callable[[Message], SweepDecision],
        *,
        progress: Callable[[SweepProgress], None] | None = None,
        only_look: bool = False,
        ids: Collection[str] = (),
        most: int | None = None,
    ) -> SweepProgress:
        await self._sync()
        return await sweep.sweep(self._steps, self.workflows, queue, decide, progress, ids=frozenset(ids))

    async def run_scheduler(self, fired: OnJobs = ignore_jobs) -> None:
        await self._scheduled_jobs.run(fired)

    @property
    def duties(self) -> tuple[Duty, ...]:
        return (Duty.MAIN,) if self._scheduled_jobs.is_leader else ()

    async def scheduled(self, chosen: ScheduledFilter, *, offset: int = 0, limit: int = 100) -> ScheduledPage:
        return await self._scheduled_jobs.show(chosen, offset=min(offset, _MOST), limit=min(limit, _MOST))

    async def scheduled_progress(self) -> None:
        return None  # They are in order there: a look reads the jobs that it shows.

    async def alter_scheduled(
        self, chosen: ScheduledFilter, action: str, *, at: float | None = None, failed_per_queue: bool = False
    ) -> list[AlteredJob]:
        return await self._scheduled_jobs.alter(
            filter_for(chosen, action), action, at, failed_per_queue=failed_per_queue
        )

    async def edit_scheduled(self, id: str, edit: JobEdit) -> list[AlteredJob]:
        return await self._scheduled_jobs.alter(ScheduledFilter(ids=frozenset({id})), MOVE, edit.run_at, edit=edit)

    async def recurring(self) -> list[RecurringEntry]:
        return await self._recurring.all()

    async def change_recurring(self, change: EntryChange) -> None:
        await self._recurring.change(change)

    async def purge(self, queue: str) -> int:
        await self._sync()
        return await sweep.purge(self._steps, self.workflows, queue)

    async def migrate(self, queue: str, kind: str, *, progress: Callable[[SweepProgress], None] | None = None) -> int:
        raise BrokerRefused("queues in an SQLite file have no types: there is nothing to migrate.")

    async def delete(self, queue: str) -> int:
        removed = await self.purge(queue)

        def drop(db: sqlite3.Connection) -> bool:
            number = queue_number(db, self._exchange, queue, self._store.display_path)
            if db.execute("select 1 from job where queue = ? and holder is null", (number,)).fetchone():
                return False
            unsubscribe_group_of(db, self._exchange, queue)
            # The row is only hidden while a worker holds a job: the job may come back, and then needs its queue.
            db.execute("update queue set hidden = 1 where id = ?", (number,))
            db.execute(
                "delete from queue where id = ? and not exists (select 1 from job where queue = ?)", (number, number)
            )
            return True

        while not await self._store.write(drop):
            removed += await sweep.purge(self._steps, self.workflows, queue)
        return removed

    async def limits(self) -> list[LimitInfo]:
        return await limits.list_limits(self._steps)

    async def diagnose(self) -> list[Finding]:
        return await diagnose(self._store, self._exchange)

    async def lost(self) -> BrokerError:
        # A file does not go away by itself; the next call raises what happened to it.
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
        self._notifier.close()
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
            return  # A file on a full disk can still be read.
        if reaped:
            self._notifier.notify()

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
            paused=pauses_and_cancels.paused(db, self._exchange),
        )
