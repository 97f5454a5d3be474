"""Events in the file: the publisher puts an event into the queue of each group that wants it, in one transaction.

Events that are kept are also rows of a table, from which the publisher deletes those that are too old or too many.
"""

import json
import sqlite3
import uuid
from collections.abc import Callable, Iterable
from typing import Any

from msgspec.structs import replace

from palermo.brokers.sqlite.file.notifier import Notifier
from palermo.brokers.sqlite.file.store import Store
from palermo.brokers.sqlite.tables.jobs import COLUMN_COUNT, COLUMNS, declare_queue, from_row, insert_many, to_row
from palermo.contract import clock
from palermo.contract.broker import SessionParameters
from palermo.contract.events import ALL_EVENTS, ReplayFilter, Subscription, no_group, no_subscriber, not_kept
from palermo.contract.sweep import SweepProgress
from palermo.core.message import Message
from palermo.core.topics import Event

#: Events published between two checks of the bounds: a check reads a page of the file for each kept event.
_TRIM_EVERY = 200

#: Old events that are given to a group in one transaction.
_BATCH_SIZE = 500


class SqliteEvents:
    """The events of one exchange in one file. See palermo.contract.events.Events."""

    def __init__(self, store: Store, notifier: Notifier, session: SessionParameters) -> None:
        self._store = store
        self._notifier = notifier
        self._session = session
        self._exchange = session.exchange
        self._published = 0

    async def publish(self, event: Event) -> None:
        trim = self._published % _TRIM_EVERY == 0
        self._published += 1

        def insert(db: sqlite3.Connection) -> None:
            now = clock.now()
            groups = [one for one in subscriptions(db, self._exchange) if one.wants(event.topic)]
            if not groups and not self._session.keep_events:
                raise no_subscriber(event)
            _publish(db, self._exchange, [one.job(event) for one in groups])
            if self._session.keep_events:
                row = to_row(event.message)[:COLUMN_COUNT]
                marks = ", ".join("?" * (COLUMN_COUNT + 3))
                db.execute(
                    f"insert into event (exchange, topic, at, {COLUMNS}) values ({marks})",
                    (self._exchange, event.topic, event.message.queued_at or now, *row),
                )
                if trim:
                    self._trim(db, now)

        await self._store.write(insert, publishing=True)
        self._notifier.notify()

    async def subscribe(self, subscription: Subscription, *, from_start: bool = False) -> int:
        def put(db: sqlite3.Connection) -> int:
            found = {one.group: one for one in subscriptions(db, self._exchange)}.get(subscription.group)
            now = clock.now()
            since = found.since if found is not None else subscription.since or now
            state = json.dumps(replace(subscription, since=since).to_plain())
            db.execute(
                "insert or replace into subscription (exchange, name, state) values (?, ?, ?)",
                (self._exchange, subscription.group, state),
            )
            declare_queue(db, self._exchange, subscription.queue)
            if found is not None or not from_start or not self._session.keep_events:
                return 0
            kept = (
                event
                for _, at, event in self._kept(db, 0, -1, now)
                if ALL_EVENTS.matches(subscription, event.topic, at)
            )
            return _publish(db, self._exchange, [subscription.job(event, old=True) for event in kept])

        replayed = await self._store.write(put)
        self._notifier.notify()
        return replayed

    async def unsubscribe(self, group: str) -> None:
        def remove(db: sqlite3.Connection) -> None:
            removed = "delete from subscription where exchange = ? and name = ?"  # also of one that cannot be read
            if not db.execute(removed, (self._exchange, group)).rowcount:
                raise no_group(group)

        await self._store.write(remove)

    async def subscriptions(self) -> list[Subscription]:
        return await self._store.read(lambda db: subscriptions(db, self._exchange))

    async def replay(
        self, group: str, old: ReplayFilter = ALL_EVENTS, *, progress: Callable[[SweepProgress], None] | None = None
    ) -> int:
        if not self._session.keep_events:
            raise not_kept()
        run = uuid.uuid4().hex[:8]
        last = await self._store.read(lambda db: self._last(db))
        next, replayed = 1, 0

        def some(db: sqlite3.Connection) -> tuple[int, int]:
            subscription = self._find(db, group)
            jobs, seen = list[Message](), last
            for place, at, event in self._kept(db, next, last, clock.now()):
                if old.matches(subscription, event.topic, at):
                    jobs.append(subscription.job(event, run=run, old=True))
                if len(jobs) >= _BATCH_SIZE:
                    seen = place
                    break
            return seen, _publish(db, self._exchange, jobs)

        while True:
            seen, count = await self._store.write(some)
            self._notifier.notify()
            replayed += count
            if progress is not None:
                progress(SweepProgress(total=last, seen=seen, moved=replayed))
            if seen >= last:
                return replayed
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
        raise no_group(group)

    def _last(self, db: sqlite3.Connection) -> int:
        ((last,),) = db.execute("select coalesce(max(id), 0) from event where exchange = ?", (self._exchange,))
        return int(last)

    def _kept(self, db: sqlite3.Connection, first: int, last: int, now: float) -> Iterable[tuple[int, float, Event]]:
        """The kept events from place `first` to `last` (below 0: to the newest), each with its place and instant."""
        rows: Iterable[tuple[Any, ...]] = db.execute(
            f"select id, at, topic, {COLUMNS} from event where exchange = ? and id >= ? and (id <= ? or ? < 0)"
            " and at >= ? and typeof(at) in ('real', 'integer') and typeof(topic) = 'text' order by id",
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
    rows = db.execute("select name, state from subscription where exchange = ? order by name", (exchange,)).fetchall()
    found = (Subscription.from_stored(name, state) for name, state in rows)
    return [one for one in found if one is not None]


def unsubscribe_group_of(db: sqlite3.Connection, exchange: str, queue: str) -> None:
    """Remove the subscription of the group whose queue is being deleted."""
    for one in subscriptions(db, exchange):
        if one.queue == queue:
            db.execute("delete from subscription where exchange = ? and name = ?", (exchange, one.group))


def _publish(db: sqlite3.Connection, exchange: str, jobs: list[Message]) -> int:
    insert_many(db, exchange, [(job.queue, to_row(job)) for job in jobs])
    return len(jobs)
