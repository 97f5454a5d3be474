"""Events in the file: whoever publishes one puts it into the queue of each group that wants it, in one transaction.

What is kept besides lies in a table; whoever publishes also forgets what is too old or too much.
"""

import json
import sqlite3
import time
import uuid
from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any

from palermo.broker import Session, Swept
from palermo.brokers.sqlite.bell import Bell
from palermo.brokers.sqlite.messages import COLUMNS, WIDTH, declare, from_row, insert_many, to_row
from palermo.brokers.sqlite.store import Store
from palermo.core.message import Message
from palermo.core.topics import Event, as_job
from palermo.errors import BrokerRefused, NoSubscriber, NotFound
from palermo.events import ALL, Old, Subscription

#: Events published between two looks at the bounds: one reads a page of the file for each event that there is.
_TRIM_EVERY = 200

#: Old events that are told in one transaction.
_AT_ONCE = 500


class SqliteEvents:
    """The events of one exchange in one file. See palermo.events.Events."""

    def __init__(self, store: Store, bell: Bell, session: Session) -> None:
        self._store = store
        self._bell = bell
        self._session = session
        self._exchange = session.exchange
        self._published = 0

    async def publish(self, event: Event) -> None:
        trim = self._published % _TRIM_EVERY == 0
        self._published += 1

        def insert(db: sqlite3.Connection) -> None:
            now = time.time()
            groups = [one for one in subscriptions(db, self._exchange) if one.wants(event.topic)]
            if not groups and not self._session.keep_events:
                raise NoSubscriber(
                    f"no group subscribes to topic {event.topic!r}: event {event.message.id} was refused. Start a"
                    " worker that subscribes, or have such events kept by the setting events_unsubscribed."
                )
            _give(db, self._exchange, [_job(event, one) for one in groups])
            if self._session.keep_events:
                row = to_row(event.message)[:WIDTH]
                marks = ", ".join("?" * (WIDTH + 3))
                db.execute(
                    f"insert into event (exchange, topic, at, {COLUMNS}) values ({marks})",
                    (self._exchange, event.topic, event.message.queued_at or now, *row),
                )
                if trim:
                    self._trim(db, now)

        await self._store.write(insert, publishing=True)
        self._bell.ring()

    async def subscribe(self, subscription: Subscription, *, from_start: bool = False) -> int:
        def put(db: sqlite3.Connection) -> int:
            found = {one.group: one for one in subscriptions(db, self._exchange)}.get(subscription.group)
            now = time.time()
            since = found.since if found is not None else subscription.since or now
            state = json.dumps(replace(subscription, since=since).to_plain())
            db.execute(
                "insert or replace into subscription (exchange, name, state) values (?, ?, ?)",
                (self._exchange, subscription.group, state),
            )
            declare(db, self._exchange, subscription.queue)
            if found is not None or not from_start or not self._session.keep_events:
                return 0
            kept = (event for _, at, event in self._kept(db, 0, -1, now) if ALL.means(subscription, event.topic, at))
            return _give(db, self._exchange, [_old(_job(event, subscription)) for event in kept])

        told = await self._store.write(put)
        self._bell.ring()
        return told

    async def unsubscribe(self, group: str) -> None:
        def remove(db: sqlite3.Connection) -> None:
            self._find(db, group)
            db.execute("delete from subscription where exchange = ? and name = ?", (self._exchange, group))

        await self._store.write(remove)

    async def subscriptions(self) -> list[Subscription]:
        return await self._store.read(lambda db: subscriptions(db, self._exchange))

    async def replay(self, group: str, old: Old = ALL, *, progress: Callable[[Swept], None] | None = None) -> int:
        if not self._session.keep_events:
            raise BrokerRefused("events are not kept here, so none can be told again; see setting events_unsubscribed.")
        run = uuid.uuid4().hex[:8]
        last = await self._store.read(lambda db: self._last(db))
        next, told = 1, 0

        def some(db: sqlite3.Connection) -> tuple[int, int]:
            subscription = self._find(db, group)
            jobs, seen = list[Message](), last
            for place, at, event in self._kept(db, next, last, time.time()):
                if old.means(subscription, event.topic, at):
                    jobs.append(_old(_job(event, subscription, run=run)))
                if len(jobs) >= _AT_ONCE:
                    seen = place
                    break
            return seen, _give(db, self._exchange, jobs)

        while True:
            seen, count = await self._store.write(some)
            self._bell.ring()
            told += count
            if progress is not None:
                progress(Swept(total=last, seen=seen, moved=told))
            if seen >= last:
                return told
            next = seen + 1

    async def kept(self) -> int | None:
        if not self._session.keep_events:
            return None
        query = "select count(*) from event where exchange = ?"
        ((count,),) = await self._store.read(lambda db: db.execute(query, (self._exchange,)).fetchall())
        return int(count)

    def _find(self, db: sqlite3.Connection, group: str) -> Subscription:
        for one in subscriptions(db, self._exchange):
            if one.group == group:
                return one
        raise NotFound(f"no group {group!r} subscribes to events; `palermo topics` lists those that do.")

    def _last(self, db: sqlite3.Connection) -> int:
        ((last,),) = db.execute("select coalesce(max(id), 0) from event where exchange = ?", (self._exchange,))
        return int(last)

    def _kept(self, db: sqlite3.Connection, first: int, last: int, now: float) -> Iterable[tuple[int, float, Event]]:
        """The events that are kept, from one place to another (or the last, below 0), each with place and instant."""
        rows: Iterable[tuple[Any, ...]] = db.execute(
            f"select id, at, topic, {COLUMNS} from event where exchange = ? and id >= ? and (id <= ? or ? < 0)"
            " and at >= ? order by id",
            (self._exchange, first, last, last, now - self._session.events_age),
        )
        for id, at, topic, *row in rows:
            yield id, at, Event(topic, from_row(row, None))

    def _trim(self, db: sqlite3.Connection, now: float) -> None:
        db.execute("delete from event where exchange = ? and at < ?", (self._exchange, now - self._session.events_age))
        db.execute(
            "delete from event where exchange = :exchange and id <= (select max(id) from"
            " (select id, sum(length(body) + length(headers)) over (order by id desc) as size from event"
            " where exchange = :exchange) where size > :most)",
            {"exchange": self._exchange, "most": self._session.events_bytes},
        )


def subscriptions(db: sqlite3.Connection, exchange: str) -> list[Subscription]:
    """All subscriptions, by group."""
    rows = db.execute("select state from subscription where exchange = ? order by name", (exchange,)).fetchall()
    return [Subscription.from_plain(json.loads(state)) for (state,) in rows]


def deleted(db: sqlite3.Connection, exchange: str, queue: str) -> None:
    """A queue is being deleted: its group subscribes no more."""
    for one in subscriptions(db, exchange):
        if one.queue == queue:
            db.execute("delete from subscription where exchange = ? and name = ?", (exchange, one.group))


def _job(event: Event, subscription: Subscription, *, run: str = "") -> Message:
    job = as_job(event.message, group=subscription.group, topic=event.topic, run=run)
    return replace(job, queue=subscription.queue)


def _old(job: Message) -> Message:
    """Its wait is not counted from when it was published."""
    return replace(job, queued_at=None)


def _give(db: sqlite3.Connection, exchange: str, jobs: list[Message]) -> int:
    insert_many(db, exchange, [(job.queue, to_row(job)) for job in jobs])
    return len(jobs)
