"""Scheduled jobs, which wait in a table of their own until they are due."""

import asyncio
import logging
import math
import sqlite3
import time
from collections.abc import Callable, Iterable
from typing import Any

from msgspec.structs import replace

from palermo.brokers.features import limits
from palermo.brokers.features.recurring import Recurring
from palermo.brokers.features.steps import Stored
from palermo.brokers.features.unique_keys import jobs_removed, keys_of, publish_due
from palermo.brokers.sqlite.file.notifier import Notifier
from palermo.brokers.sqlite.file.store import Store
from palermo.brokers.sqlite.steps import SqliteSteps, change_keys, due_names, next_due, read_keys
from palermo.brokers.sqlite.tables import pauses_and_cancels
from palermo.brokers.sqlite.tables.jobs import (
    COLUMNS,
    FRONT_PRIORITY,
    from_row,
    insert,
    insert_many,
    priority_of,
    to_row,
)
from palermo.contract import clock
from palermo.contract.scheduled import CANCEL, GIVE_UP, RUN, AlteredJob, OnJobs, ScheduledFilter, ScheduledPage
from palermo.core import header_json
from palermo.core.job_edit import JobEdit
from palermo.core.lifecycle import give_up
from palermo.core.limits import has_reservation
from palermo.core.message import Message
from palermo.core.time_slots import moved_to
from palermo.core.topology import failed_queue
from palermo.core.unique_keys import key_names
from palermo.errors import BrokerError

log = logging.getLogger("palermo.sqlite")

#: Seconds between two reads of the file at most: the wall clock may jump, and a publisher may die between its commit
#: and its notification.
_POLL_EVERY = 0.5

#: Seconds between two reads at least, while nothing is due: every job that is enqueued notifies us.
_MIN_WAIT = 0.01

#: Seconds until the next attempt after the file could not be read or written: it was locked, or the disk is full.
_AFTER_ERROR = 2.0

#: Jobs put into their queues, or altered, in one transaction.
_STEP = 500

#: Seconds between two looks for limited keys to forget, and for recurring jobs to mend.
_FORGET_EVERY, _MEND_EVERY = 5.0, 60.0

#: The header that a job has if it has failed, and how it is written in the text of the headers.
_ERROR = "exception-class"
_ERROR_WRITTEN = f'"{_ERROR}":'


class ScheduledJobs:
    """Puts scheduled jobs into their queues, shows and changes them. See palermo.contract.scheduled.ScheduledJobs.

    A transaction decides about each job, so any number of sessions may do this at once.
    """

    def __init__(
        self, store: Store, steps: SqliteSteps, notifier: Notifier, exchange: str, recurring: Recurring
    ) -> None:
        self._store = store
        self._steps = steps
        self._recurring = recurring
        self._notifier = notifier
        self._exchange = exchange
        self.is_leader = False

    async def run(self, fired: OnJobs) -> None:
        """Put jobs into their queues when they are due, until this is cancelled."""
        notified = asyncio.Event()
        self._notifier.listen(notified.set)
        self.is_leader = True
        forgot = mended = -math.inf
        limit: Stored = ""
        try:
            while True:
                notified.clear()
                looked = time.monotonic()
                try:
                    if looked - forgot > _FORGET_EVERY:
                        forgot = looked
                        limit = await limits.forget_idle(self._steps, limit)
                    if looked - mended > _MEND_EVERY:
                        mended = looked
                        await self._recurring.mend(clock.now())
                    due = await self._store.read(self._next)
                    if due is not None and due <= clock.wall_clock():
                        await self._store.write(self._put_in_queues)
                        self._notifier.notify()
                        fired(await self._recurring.fire(clock.wall_clock()))
                        await asyncio.sleep(0)
                        continue
                except BrokerError as error:
                    log.warning("jobs that are due wait error=%r", str(error))
                    await asyncio.sleep(_AFTER_ERROR)
                    continue
                wait = _POLL_EVERY if due is None else min(_POLL_EVERY, clock.seconds_until(due))
                try:
                    async with asyncio.timeout(wait):
                        await notified.wait()
                except TimeoutError:
                    continue
                await asyncio.sleep(max(0.0, looked + _MIN_WAIT - time.monotonic()))
        finally:
            self.is_leader = False
            self._notifier.unlisten(notified.set)

    async def show(self, chosen: ScheduledFilter, *, offset: int, limit: int) -> ScheduledPage:
        """A page of the chosen jobs, and how many there are."""

        def find(db: sqlite3.Connection) -> ScheduledPage:
            where, values = self._where(db, chosen)
            rows = db.execute(
                f"select {COLUMNS} from later where {where} order by run_at, id limit ? offset ?",
                (*values, limit, offset),
            ).fetchall()
            ((total,),) = db.execute(f"select count(*) from later where {where}", values).fetchall()
            found = [from_row(row, None) for row in rows]
            messages = read_keys(db, self._exchange, key_names(found)).as_they_run(found)
            cancelled = (
                one.id for one in messages if pauses_and_cancels.cancelled_by(db, self._exchange, one) is not None
            )
            return ScheduledPage(messages=tuple(messages), total=total, cancelled=frozenset(cancelled))

        return await self._store.read(find)

    async def alter(
        self,
        chosen: ScheduledFilter,
        action: str,
        at: float | None,
        *,
        failed_per_queue: bool = False,
        edit: JobEdit | None = None,
    ) -> list[AlteredJob]:
        """Change the chosen jobs that exist when this begins, in steps; each step is one transaction.

        `edit` is for "move": it changes more of the jobs than their instant.
        """
        altered: dict[str, AlteredJob] = {}
        (last,) = await self._store.read(
            lambda db: db.execute(
                "select coalesce(max(id), 0) from later where exchange = ?", (self._exchange,)
            ).fetchone()
        )

        def put(db: sqlite3.Connection, found: list[Message]) -> None:
            if action == GIVE_UP:
                found = read_keys(db, self._exchange, key_names(found)).as_they_run(found)
            if action in (CANCEL, GIVE_UP):
                change_keys(db, self._exchange, keys_of(found), lambda states: jobs_removed(states, found))
            if action == GIVE_UP:
                given_up = (give_up(message) for message in found)
                there = [(failed_queue(one.queue, per_queue=failed_per_queue), to_row(one)) for one in given_up]
                insert_many(db, self._exchange, there)
            elif action != CANCEL:
                instant = clock.wall_clock() if action == RUN or at is None else at
                moves = (moved_to(message, instant) if edit is None else edit.applied_to(message) for message in found)
                insert_many(db, self._exchange, [(message.queue, to_row(message)) for message in moves])

        after = 0
        while True:
            rows = await self._store.write(lambda db, after=after: self._step(db, chosen, put, after, last))  # type: ignore[misc]
            if not rows:
                break
            for number, message in rows:
                after = number
                altered.setdefault(
                    message.id,
                    AlteredJob(id=message.id, job=message.job, queue=message.queue, run_at=message.run_at or 0.0),
                )
            if action != CANCEL:
                self._notifier.notify()
            await asyncio.sleep(0)
        return sorted(altered.values(), key=lambda one: one.run_at)

    def _step(
        self,
        db: sqlite3.Connection,
        chosen: ScheduledFilter,
        put: Callable[[sqlite3.Connection, list[Message]], None],
        after: int,
        last: int,
    ) -> list[tuple[int, Message]]:
        where, values = self._where(db, chosen)
        rows = db.execute(
            f"select id, {COLUMNS} from later where {where} and id > ? and id <= ? order by id limit ?",
            (*values, after, last, _STEP),
        ).fetchall()
        found = [(int(number), from_row(row, None)) for number, *row in rows]
        db.executemany("delete from later where id = ?", ((number,) for number, _ in found))
        put(db, [message for _, message in found])
        return found

    def _next(self, db: sqlite3.Connection) -> float | None:
        ((due,),) = db.execute("select min(run_at) from later where exchange = ?", (self._exchange,)).fetchall()
        instants = (due, *(next_due(db, self._exchange, table) for table in ("recurring", "keys")))
        return min((float(each) for each in instants if each is not None), default=None)

    def _put_in_queues(self, db: sqlite3.Connection) -> None:
        """Put jobs that are due into their queues."""
        rows: Iterable[Any] = db.execute(
            f"select id, queue, {COLUMNS} from later where exchange = ? and run_at <= ? order by run_at, id limit ?",
            (self._exchange, clock.wall_clock(), _STEP),
        ).fetchall()
        for number, queue, *row in rows:
            message = from_row(row, queue)
            priority = FRONT_PRIORITY if has_reservation(message) else priority_of(message)
            insert(db, self._exchange, queue, (*row, None, "", priority, message.tenant or None, message.share))
            db.execute("delete from later where id = ?", (number,))
        now = clock.wall_clock()
        names = due_names(db, self._exchange, "keys", now, _STEP)
        change_keys(db, self._exchange, names, lambda states: publish_due(states, names, now))

    def _where(self, db: sqlite3.Connection, chosen: ScheduledFilter) -> tuple[str, tuple[Any, ...]]:
        """The SQL condition for the chosen jobs, and its values."""
        if chosen.everything:
            return "exchange = ?", (self._exchange,)
        condition, values = "exchange = ?", list[Any]([self._exchange])
        if chosen.due is not None:
            condition += " and run_at >= ? and run_at <= ?"
            values += chosen.due
        if chosen.ids is not None and len(chosen.ids) <= _STEP:
            condition += f" and message_id in ({', '.join('?' * len(chosen.ids))})"
            values += chosen.ids
        unasked = replace(chosen, retries=None, due=None)
        if chosen.retries is None and unasked == ScheduledFilter(ids=chosen.ids) and len(chosen.ids or ()) <= _STEP:
            return condition, tuple(values)
        wanted = chosen.retries

        def means(id: str, queue: str, job: str, headers: object) -> bool:
            if wanted is not None and wanted is not _has_failed(headers):
                return False
            return unasked.matches(Message(id=id, queue=queue, job=job))

        db.create_function("means", 4, means, deterministic=True)
        return f"{condition} and means(message_id, queue, job, headers)", tuple(values)


def _has_failed(headers: object) -> bool:
    """Whether these headers, as text, are of a job that failed; only few headers are parsed for that."""
    return isinstance(headers, str) and _ERROR_WRITTEN in headers and _ERROR in header_json.read(headers)[0]
