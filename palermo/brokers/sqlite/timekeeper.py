"""Jobs that are due later, in a table of their own until their time has come; and those that recur."""

import asyncio
import sqlite3
import time
from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any

from palermo.brokers.sqlite import keys, recurring
from palermo.brokers.sqlite.bell import Bell
from palermo.brokers.sqlite.messages import BEFORE_ALL, COLUMNS, from_row, insert, insert_many, to_row
from palermo.brokers.sqlite.store import Store
from palermo.brokers.sqlite.values import loads
from palermo.core.delay import moved
from palermo.core.lifecycle import give_up
from palermo.core.message import Message
from palermo.core.permits import has_turn
from palermo.core.topology import failed_queue
from palermo.entries import Change, Entry
from palermo.timetable import CANCEL, GIVE_UP, RUN, Altered, Chosen, Scheduled, Tell

#: The wall clock may jump, and a publisher die between its commit and its ring: so often the file is asked, in seconds.
_LOOK_EVERY = 0.5

#: Seconds between two looks at least, where nothing is due: the bell rings for every job that is enqueued.
_PACE = 0.01

#: Jobs put into their queues, or altered, in one transaction.
_STEP = 500

#: The header that a job bears if it has failed, and how it stands in the text of its headers.
_ERROR = "exception-class"
_ERROR_WRITTEN = f'"{_ERROR}":'


class Timekeeper:
    """See palermo.timetable.Timetable. A transaction decides about each job, so any number may keep the time."""

    def __init__(self, store: Store, bell: Bell, exchange: str) -> None:
        self._store = store
        self._bell = bell
        self._exchange = exchange
        self.leads = False

    async def keep(self, fired: Tell) -> None:
        """Put jobs into their queues when they are due, until this is cancelled or the file is lost."""
        rung = asyncio.Event()
        self._bell.listen(rung.set)
        self.leads = True
        try:
            while True:
                rung.clear()
                looked = time.monotonic()
                due = await self._store.read(self._next)
                if due is not None and due <= time.time():
                    jobs = await self._store.write(self._put_in_queues)
                    self._bell.ring()
                    fired(jobs)
                    await asyncio.sleep(0)
                    continue
                wait = _LOOK_EVERY if due is None else min(_LOOK_EVERY, max(0.0, due - time.time()))
                try:
                    async with asyncio.timeout(wait):
                        await rung.wait()
                except TimeoutError:
                    continue
                await asyncio.sleep(max(0.0, looked + _PACE - time.monotonic()))
        finally:
            self.leads = False
            self._bell.ignore(rung.set)

    async def recurring(self) -> list[Entry]:
        """See palermo.entries.Entries."""
        return await self._store.read(lambda db: recurring.entries(db, self._exchange))

    async def change(self, change: Change) -> None:
        """Do this to a recurring job. Raises NotFound."""
        await self._store.write(lambda db: recurring.change(db, self._exchange, change, time.time()))
        # Jobs may wait now, or another instant be the next.
        self._bell.ring()

    async def show(self, chosen: Chosen, *, offset: int, limit: int) -> Scheduled:
        """A page of the jobs that are meant, and how many there are."""

        def find(db: sqlite3.Connection) -> Scheduled:
            where, values = self._where(db, chosen)
            rows = db.execute(
                f"select {COLUMNS} from later where {where} order by run_at, id limit ? offset ?",
                (*values, limit, offset),
            ).fetchall()
            ((total,),) = db.execute(f"select count(*) from later where {where}", values).fetchall()
            return Scheduled(messages=tuple(from_row(row, None) for row in rows), total=total)

        return await self._store.read(find)

    async def alter(
        self, chosen: Chosen, action: str, at: float | None, *, failed_per_queue: bool = False
    ) -> list[Altered]:
        """Do this to the jobs that are meant and there when it begins; in steps, each wholly or not."""
        altered: dict[str, Altered] = {}
        (last,) = await self._store.read(
            lambda db: db.execute(
                "select coalesce(max(id), 0) from later where exchange = ?", (self._exchange,)
            ).fetchone()
        )

        def put(db: sqlite3.Connection, found: list[Message]) -> None:
            if action in (CANCEL, GIVE_UP):
                keys.gone(db, self._exchange, found)
            if action == GIVE_UP:
                given_up = (give_up(message) for message in found)
                there = [(failed_queue(one.queue, per_queue=failed_per_queue), to_row(one)) for one in given_up]
                insert_many(db, self._exchange, there)
            elif action != CANCEL:
                instant = time.time() if action == RUN or at is None else at
                moves = (moved(message, instant) for message in found)
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
                    Altered(id=message.id, job=message.job, queue=message.queue, run_at=message.run_at or 0.0),
                )
            if action != CANCEL:
                self._bell.ring()
            await asyncio.sleep(0)
        return sorted(altered.values(), key=lambda one: one.run_at)

    def _step(
        self,
        db: sqlite3.Connection,
        chosen: Chosen,
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
        also = (recurring.next_due(db, self._exchange), keys.next_due(db, self._exchange))
        return min((float(each) for each in (due, *also) if each is not None), default=None)

    def _put_in_queues(self, db: sqlite3.Connection) -> list[Message]:
        """Those that were fired."""
        rows: Iterable[Any] = db.execute(
            f"select id, queue, {COLUMNS} from later where exchange = ? and run_at <= ? order by run_at, id limit ?",
            (self._exchange, time.time(), _STEP),
        ).fetchall()
        for number, queue, *row in rows:
            message = from_row(row, queue)
            priority = BEFORE_ALL if has_turn(message) else message.priority
            insert(db, self._exchange, queue, (*row, None, "", priority, message.tenant or None, message.share))
            db.execute("delete from later where id = ?", (number,))
        keys.look_after(db, self._exchange, time.time())
        return recurring.fire(db, self._exchange, time.time())

    def _where(self, db: sqlite3.Connection, chosen: Chosen) -> tuple[str, tuple[Any, ...]]:
        """The condition for these jobs, and its values."""
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
        if chosen.retries is None and unasked == Chosen(ids=chosen.ids) and len(chosen.ids or ()) <= _STEP:
            return condition, tuple(values)
        wanted = chosen.retries

        def means(id: str, queue: str, job: str, headers: str) -> bool:
            if wanted is not None and wanted is not _has_failed(headers):
                return False
            return unasked.means(Message(id=id, queue=queue, job=job))

        db.create_function("means", 4, means, deterministic=True)
        return f"{condition} and means(message_id, queue, job, headers)", tuple(values)


def _has_failed(headers: str) -> bool:
    """Whether these headers, as text, are of a job that failed; only few have to be read for that."""
    return _ERROR_WRITTEN in headers and _ERROR in loads(headers)
