"""Keys of unique jobs, in a table: a key changes in the transaction that stores, starts or deletes its job."""

import json
import sqlite3
from collections.abc import Iterable, Sequence
from typing import TypeVar

from palermo.brokers.sqlite.file.notifier import Notifier
from palermo.brokers.sqlite.file.store import Store
from palermo.brokers.sqlite.tables.jobs import insert_many, to_row
from palermo.contract import clock
from palermo.contract.admission import KeyReport
from palermo.contract.broker import MAX_KEYED_BODY, KeyPage, OrphanedKey
from palermo.contract.unique_jobs import UniqueJob, stored_key
from palermo.core import unique_rules
from palermo.core.message import MAX_BODY, Message
from palermo.core.unique_keys import Key, KeyRequest, key_names, lock_of
from palermo.core.unique_rules import EnqueueAnswer, KeyUpdate, StartAnswer
from palermo.errors import PublishRefused

T = TypeVar("T")

#: The most claims, or due keys, that one transaction handles.
_BATCH_SIZE = 200


class SqliteKeys:
    """See palermo.contract.broker.UniqueKeys."""

    def __init__(self, store: Store, notifier: Notifier, exchange: str) -> None:
        self._store = store
        self._notifier = notifier
        self._exchange = exchange

    async def enqueue(self, claims: Sequence[KeyRequest]) -> list[EnqueueAnswer]:
        answers: list[EnqueueAnswer] = []
        check_body_size(claims)
        for first in range(0, len(claims), _BATCH_SIZE):
            some = claims[first : first + _BATCH_SIZE]
            answers += await self._store.write(
                lambda db, some=some: [_enqueue(db, self._exchange, claim) for claim in some],  # type: ignore[misc]
                publishing=True,
            )
            self._notifier.notify()
        return answers

    async def silence(self) -> None:
        return None

    async def known(self) -> list[Key]:
        return await self._store.read(self._known)

    async def page(self, text: str, *, offset: int, limit: int) -> KeyPage:
        found = await self._store.read(lambda db: self._known(db, text))
        return KeyPage(keys=tuple(found[offset : offset + limit]), total=len(found))

    async def find(self, name: str) -> Key | None:
        key = await self._store.read(lambda db: unique_rules.current(_load(db, self._exchange, name), clock.now()))
        return key if key.is_shown() else None

    def _known(self, db: sqlite3.Connection, text: str = "") -> list[Key]:
        now = clock.now()
        rows = db.execute("select name, state from key where exchange = ? order by name", (self._exchange,)).fetchall()
        keys = (unique_rules.current(stored_key(name, state), now) for name, state in rows)
        return [key for key in keys if key.is_shown(text)]

    async def free(self, names: Iterable[str]) -> list[str]:
        def do(db: sqlite3.Connection) -> list[str]:
            now, freed = clock.now(), []
            for name in dict.fromkeys(names):
                key = _load(db, self._exchange, name)
                if not unique_rules.current(key, now).is_free:
                    freed.append(name)
                    _save(db, self._exchange, unique_rules.free(key, now=now))
            return freed

        freed = await self._store.write(do)
        self._notifier.notify()
        return freed

    async def orphaned(self) -> list[OrphanedKey]:
        def find(db: sqlite3.Connection) -> list[OrphanedKey]:
            found: list[OrphanedKey] = []
            rows = db.execute(
                "select name, state from key where exchange = ? and holder is not null"
                " and not exists (select 1 from job where message_id = key.holder)"
                " and not exists (select 1 from later where exchange = key.exchange and message_id = key.holder)",
                (self._exchange,),
            ).fetchall()
            for name, state in rows:
                key = unique_rules.current(stored_key(name, state), clock.now())
                holder = key.holder
                if holder is not None and holder.until is None:
                    found.append(OrphanedKey(key=key.name, id=holder.id, queue=holder.queue, since=holder.since))
            return found

        return await self._store.read(find)

    async def announce(self, jobs: Iterable[str], unique: Iterable[UniqueJob]) -> None:
        known, wanted = await self.announced(), {one.name: one for one in unique}
        changed = [one for one in wanted.values() if known.get(one.name) != one]
        plain = (known.keys() & set(jobs)) - wanted.keys()
        if not changed and not plain:
            return

        def put(db: sqlite3.Connection) -> None:
            db.executemany(
                "insert or replace into unique_job (exchange, name, state) values (?, ?, ?)",
                ((self._exchange, one.name, json.dumps(one.to_plain())) for one in changed),
            )
            db.executemany(
                "delete from unique_job where exchange = ? and name = ?", ((self._exchange, name) for name in plain)
            )

        await self._store.write(put)

    async def announced(self) -> dict[str, UniqueJob]:
        query = "select name, state from unique_job where exchange = ? order by name"
        rows = await self._store.read(lambda db: db.execute(query, (self._exchange,)).fetchall())
        found = (UniqueJob.from_stored(name, state) for name, state in rows)
        return {one.name: one for one in found if one is not None}


def check_body_size(claims: Iterable[KeyRequest]) -> None:
    """Raise PublishRefused if a job is too large to have a key."""
    for claim in claims:
        if len(claim.message.body) > MAX_KEYED_BODY:
            raise PublishRefused(
                f"job {claim.message.id} has a body of {len(claim.message.body):,} bytes; one with a key may have"
                f" {MAX_KEYED_BODY:,}. Put the data elsewhere and name the place."
            )


def start_run(
    db: sqlite3.Connection, exchange: str, message: Message, *, worker: str, run: str, again: bool
) -> StartAnswer:
    """Decide whether a worker may start a job that it holds, and update the job's key."""
    lock = lock_of(message)
    if lock is None:
        return StartAnswer(why=unique_rules.StartReason.RUN)
    key = _load(db, exchange, lock.key)
    step, answer = unique_rules.start(key, message, worker=worker, run=run, again=again, now=clock.now())
    _save(db, exchange, step)
    return answer


def end_run(db: sqlite3.Connection, exchange: str, message: Message, run_end: KeyReport) -> bool:
    """Update the key after a run of its job; returns true, as a part of the transaction's condition."""
    lock = lock_of(message)
    if lock is not None:
        step = unique_rules.end(
            _load(db, exchange, lock.key),
            message.id,
            run_end.how,
            serial=run_end.serial,
            starts=run_end.starts,
            now=clock.now(),
            run_at=run_end.run_at,
        )
        _save(db, exchange, step)
    return True


def may_readmit(db: sqlite3.Connection, exchange: str, message: Message) -> bool:
    """Whether a person may put the job back into its queue; if so, the job takes its key."""
    lock = lock_of(message)
    if lock is None:
        return True
    step, may = unique_rules.readmit(_load(db, exchange, lock.key), message, clock.now())
    _save(db, exchange, step)
    return may


def as_they_run(
    db: sqlite3.Connection, exchange: str, messages: Sequence[Message], *, max_body: int = MAX_BODY
) -> list[Message]:
    """These messages, which wait, with the arguments that they will run with."""
    keys = {name: _load(db, exchange, name) for name in key_names(messages)}
    return unique_rules.as_they_run(messages, keys, max_body=max_body)


def job_removed(db: sqlite3.Connection, exchange: str, messages: Iterable[Message], *, drop_next: bool = False) -> None:
    """Update the keys of these jobs, which waited and have been removed."""
    for message in messages:
        lock = lock_of(message)
        if lock is not None:
            key = _load(db, exchange, lock.key)
            _save(db, exchange, unique_rules.job_removed(key, message.id, clock.now(), drop_next=drop_next))


def jobs_cancelled(db: sqlite3.Connection, exchange: str, ids: Iterable[str]) -> None:
    """Update the keys that these jobs hold: they are cancelled, and will not run if they still wait."""
    for id in ids:
        rows = db.execute("select name, state from key where exchange = ? and holder = ?", (exchange, id)).fetchall()
        for name, state in rows:
            _save(db, exchange, unique_rules.job_removed(stored_key(name, state), id, clock.now()))


def next_due(db: sqlite3.Connection, exchange: str) -> float | None:
    """The instant at which `publish_due` must be called next; None for never."""
    ((due,),) = db.execute("select min(due) from key where exchange = ?", (exchange,)).fetchall()
    return None if due is None else float(due)


def publish_due(db: sqlite3.Connection, exchange: str, now: float) -> None:
    """Publish the jobs whose keys are due, and delete keys that are free by now."""
    rows = db.execute(
        "select name, state from key where exchange = ? and due <= ? order by due limit ?", (exchange, now, _BATCH_SIZE)
    ).fetchall()
    for name, state in rows:
        _save(db, exchange, unique_rules.publish_due(stored_key(name, state), now))


def _enqueue(db: sqlite3.Connection, exchange: str, claim: KeyRequest) -> EnqueueAnswer:
    step, answer = unique_rules.enqueue(_load(db, exchange, claim.key), claim, clock.now())
    _save(db, exchange, step)
    return answer


def _load(db: sqlite3.Connection, exchange: str, name: str) -> Key:
    found = db.execute("select state from key where exchange = ? and name = ?", (exchange, name)).fetchone()
    return Key(name=name) if found is None else stored_key(name, found[0])


def _save(db: sqlite3.Connection, exchange: str, step: KeyUpdate) -> None:
    """Store the key after a step, and the jobs that the step publishes; delete a key that is free."""
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
