"""Keys of unique jobs, in a table: each changes in the transaction that stores, starts or takes away its job."""

import json
import logging
import sqlite3
import time
from collections.abc import Iterable, Sequence
from typing import TypeVar

from palermo.admission import Told
from palermo.brokers.sqlite.bell import Bell
from palermo.brokers.sqlite.messages import insert_many, to_row
from palermo.brokers.sqlite.store import Store
from palermo.core import unique
from palermo.core.keys import Claim, Key, lock_of
from palermo.core.message import Message
from palermo.core.unique import Answer, Start, Step
from palermo.errors import PublishRefused
from palermo.uniqueness import MAX_KEYED_BODY, Stray

log = logging.getLogger("palermo.sqlite")

T = TypeVar("T")

#: Claims in one transaction, and keys looked after in one.
_AT_ONCE = 200


class TableKeys:
    """See palermo.uniqueness.Keys."""

    def __init__(self, store: Store, bell: Bell, exchange: str) -> None:
        self._store = store
        self._bell = bell
        self._exchange = exchange

    async def enqueue(self, claims: Sequence[Claim]) -> list[Answer]:
        answers: list[Answer] = []
        check(claims)
        for start in range(0, len(claims), _AT_ONCE):
            some = claims[start : start + _AT_ONCE]
            answers += await self._store.write(
                lambda db, some=some: [_enqueue(db, self._exchange, claim) for claim in some],  # type: ignore[misc]
                publishing=True,
            )
            self._bell.ring()
        return answers

    async def known(self) -> list[Key]:
        def find(db: sqlite3.Connection) -> list[Key]:
            now = time.time()
            rows = db.execute("select state from key where exchange = ? order by name", (self._exchange,)).fetchall()
            keys = (unique.current(Key.from_plain(json.loads(state)), now) for (state,) in rows)
            return [key for key in keys if not key.is_free]

        return await self._store.read(find)

    async def free(self, names: Iterable[str]) -> list[str]:
        def do(db: sqlite3.Connection) -> list[str]:
            now, freed = time.time(), []
            for name in dict.fromkeys(names):
                key = _load(db, self._exchange, name)
                if not unique.current(key, now).is_free:
                    freed.append(name)
                    _keep(db, self._exchange, unique.free(key, now=now))
            return freed

        freed = await self._store.write(do)
        self._bell.ring()
        return freed

    async def strays(self) -> list[Stray]:
        def find(db: sqlite3.Connection) -> list[Stray]:
            found: list[Stray] = []
            rows = db.execute(
                "select state from key where exchange = ? and holder is not null"
                " and not exists (select 1 from job where message_id = key.holder)"
                " and not exists (select 1 from later where exchange = key.exchange and message_id = key.holder)",
                (self._exchange,),
            ).fetchall()
            for (state,) in rows:
                key = unique.current(Key.from_plain(json.loads(state)), time.time())
                holder = key.holder
                if holder is not None and holder.until is None:
                    found.append(Stray(key=key.name, id=holder.id, queue=holder.queue, since=holder.since))
            return found

        return await self._store.read(find)


def check(claims: Iterable[Claim]) -> None:
    """Raise PublishRefused for a job that is too large to have a key."""
    for claim in claims:
        if len(claim.message.body) > MAX_KEYED_BODY:
            raise PublishRefused(
                f"job {claim.message.id} has a body of {len(claim.message.body):,} bytes; one with a key may have"
                f" {MAX_KEYED_BODY:,}. Put the data elsewhere and name the place."
            )


def start(db: sqlite3.Connection, exchange: str, message: Message, *, worker: str, run: str, again: bool) -> Start:
    """A worker wants to start a job that it holds."""
    lock = lock_of(message)
    if lock is None:
        return Start(why=unique.Why.RUN)
    key = _load(db, exchange, lock.key)
    step, answer = unique.start(key, message, worker=worker, run=run, again=again, now=time.time())
    _keep(db, exchange, step)
    return answer


def end(db: sqlite3.Connection, exchange: str, message: Message, told: Told) -> bool:
    """A run of a job has ended; true, as whatever else is done in its transaction."""
    lock = lock_of(message)
    if lock is not None:
        step = unique.end(
            _load(db, exchange, lock.key),
            message.id,
            told.how,
            serial=told.serial,
            starts=told.starts,
            now=time.time(),
            run_at=told.run_at,
        )
        _keep(db, exchange, step)
    return True


def readmitted(db: sqlite3.Connection, exchange: str, message: Message) -> bool:
    """Whether a job may be put among those that wait again, by a person's hand; it takes its key then."""
    lock = lock_of(message)
    if lock is None:
        return True
    step, may = unique.readmit(_load(db, exchange, lock.key), message, time.time())
    _keep(db, exchange, step)
    return may


def gone(db: sqlite3.Connection, exchange: str, messages: Iterable[Message], *, drop_next: bool = False) -> None:
    """These jobs, which waited, have been taken away."""
    for message in messages:
        lock = lock_of(message)
        if lock is not None:
            key = _load(db, exchange, lock.key)
            _keep(db, exchange, unique.gone(key, message.id, time.time(), drop_next=drop_next))


def cancelled(db: sqlite3.Connection, exchange: str, ids: Iterable[str]) -> None:
    """These jobs, if they wait, are not going to run."""
    for id in ids:
        rows = db.execute("select state from key where exchange = ? and holder = ?", (exchange, id)).fetchall()
        for (state,) in rows:
            _keep(db, exchange, unique.gone(Key.from_plain(json.loads(state)), id, time.time()))


def next_due(db: sqlite3.Connection, exchange: str) -> float | None:
    """When the next key must be looked after."""
    ((due,),) = db.execute("select min(due) from key where exchange = ?", (exchange,)).fetchall()
    return None if due is None else float(due)


def look_after(db: sqlite3.Connection, exchange: str, now: float) -> None:
    """Publish what is due, and forget what says nothing any more."""
    rows = db.execute(
        "select state from key where exchange = ? and due <= ? order by due limit ?", (exchange, now, _AT_ONCE)
    ).fetchall()
    for (state,) in rows:
        _keep(db, exchange, unique.tick(Key.from_plain(json.loads(state)), now))


def _enqueue(db: sqlite3.Connection, exchange: str, claim: Claim) -> Answer:
    step, answer = unique.enqueue(_load(db, exchange, claim.key), claim, time.time())
    _keep(db, exchange, step)
    return answer


def _load(db: sqlite3.Connection, exchange: str, name: str) -> Key:
    found = db.execute("select state from key where exchange = ? and name = ?", (exchange, name)).fetchone()
    return Key(name=name) if found is None else Key.from_plain(json.loads(found[0]))


def _keep(db: sqlite3.Connection, exchange: str, step: Step) -> None:
    """Store the key after a step, and the jobs that it publishes."""
    key = step.key
    insert_many(db, exchange, [(job.queue, to_row(job)) for job in step.jobs])
    if key.is_free:
        db.execute("delete from key where exchange = ? and name = ?", (exchange, key.name))
        return
    holder = key.holder
    due = key.alarm if key.alarm is not None else key.over
    values = (exchange, key.name, holder and holder.id, holder and holder.queue, due, json.dumps(key.to_plain()))
    db.execute(
        "insert or replace into key (exchange, name, holder, queue, due, state) values (?, ?, ?, ?, ?, ?)", values
    )
