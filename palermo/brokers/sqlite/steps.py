"""Carries out conditions and changes in one transaction. palermo/brokers/features/steps.py says what they are for."""

import json
import sqlite3
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from functools import partial
from typing import Any, TypeVar

from palermo.brokers.features.steps import Decide, Extent, Job, Outcome, Part, Step, StepStore, Stored
from palermo.brokers.features.unique_keys import KeyStates
from palermo.brokers.sqlite.file.notifier import Notifier
from palermo.brokers.sqlite.file.store import Store, Work
from palermo.brokers.sqlite.journal import append_batch
from palermo.brokers.sqlite.tables import later, pauses_and_cancels, waiting
from palermo.brokers.sqlite.tables.claims import STILL_VALID, release
from palermo.brokers.sqlite.tables.jobs import insert, queue_number, to_row
from palermo.brokers.sqlite.tables.permits import count_permits, delete_jobs, permit_name
from palermo.contract import clock
from palermo.contract.scheduled import ScheduledFilter
from palermo.core.message import Message

T = TypeVar("T")

#: Scheduled jobs that are read at once.
_SCAN_SIZE = 500

#: The tables of states, by their names in steps.
_TABLES = {
    "recurring": "recurring",
    "keys": "key",
    "unique-jobs": "unique_job",
    "limits": "limited",
    "flows": "workflow",
}


class SqliteSteps(StepStore):
    """The steps of one session with a file, which `notifier` tells others about."""

    def __init__(
        self,
        store: Store,
        exchange: str,
        notifier: Notifier,
        write: Callable[[Work[Outcome], bool], Awaitable[Outcome]] | None = None,
    ) -> None:
        """`write` carries out a transaction, and is told whether it stores a job."""
        self._store = store
        self._exchange = exchange
        self._notifier = notifier
        self._write = write or (lambda work, publishing: store.write(work, publishing=publishing))

    async def states(self, table: str, names: Sequence[Stored]) -> list[Stored | None]:
        return await self._store.read(lambda db: [_state(db, self._exchange, table, name) for name in names])

    async def fields(self, table: str) -> Mapping[Any, Any]:
        query = f"select name, state from {_TABLES[table]} where exchange = ? order by name"
        return dict(await self._store.read(lambda db: db.execute(query, (self._exchange,)).fetchall()))

    async def some(self, table: str, cursor: Stored, most: int) -> tuple[Stored, Sequence[tuple[Stored, Stored]]]:
        query = (
            f"select name, state from {_TABLES[table]} where exchange = ? and name > ? and typeof(name) = 'text'"
            " order by name limit ?"
        )
        values = (self._exchange, cursor, most)
        rows = await self._store.read(lambda db: db.execute(query, values).fetchall())
        return rows[-1][0] if len(rows) == most else "", rows

    async def permits(self, number: Any, permit: str) -> tuple[bool, int]:
        query = "select count(*) filter (where id = ?), count(*) from job where permit = ?"
        values = (number, permit_name(self._exchange, permit))
        has, running = await self._store.read(lambda db: db.execute(query, values).fetchone())
        return bool(has), running

    async def permit_counts(self, permits: Sequence[Stored]) -> Sequence[tuple[int, int, int]]:
        return await self._store.read(lambda db: count_permits(db, self._exchange, permits))

    async def absent(self, ids: Collection[str]) -> set[str]:
        query = (
            "select value from json_each(?) where value not in (select message_id from job)"
            " and value not in (select message_id from later where exchange = ?)"
        )
        values = (json.dumps(list(ids)), self._exchange)
        return {id for (id,) in await self._store.read(lambda db: db.execute(query, values).fetchall())}

    async def due(self, table: str, now: float, most: int) -> Sequence[str]:
        query = (
            f"select name from {_TABLES[table]} where exchange = ? and due <= ? and typeof(name) = 'text'"
            " order by due limit ?"
        )
        rows = await self._store.read(lambda db: db.execute(query, (self._exchange, now, most)).fetchall())
        return [name for (name,) in rows]

    async def flow_data(self, workflow: str, names: Sequence[str]) -> list[bytes | None]:
        query = (
            "select name, data from workflow_data where exchange = ? and workflow = ?"
            " and name in (select value from json_each(?))"
        )
        values = (self._exchange, workflow, json.dumps(list(names)))
        found = dict(await self._store.read(lambda db: db.execute(query, values).fetchall()))
        return [found.get(name) for name in names]

    @property
    def ended(self) -> bool:
        return False  # a file does not go away by itself

    async def listen(self, channel: str, callback: Callable[..., None]) -> None:
        self._notifier.listen(callback)

    async def unlisten(self, channel: str, callback: Callable[..., None]) -> None:
        self._notifier.unlisten(callback)

    async def put_due(self, now: float, most: int) -> Sequence[float | None]:
        due = await self._store.read(self._next_due)
        if due[0] is None or due[0] > now:
            return due
        await self._store.write(lambda db: later.put_due(db, self._exchange, now, most))
        self._notifier.notify()
        return await self._store.read(self._next_due)

    def _next_due(self, db: sqlite3.Connection) -> Sequence[float | None]:
        ((due,),) = db.execute("select min(run_at) from later where exchange = ?", (self._exchange,)).fetchall()
        return (due, *(next_due(db, self._exchange, table) for table in ("keys", "recurring", "flows")))

    async def later_page(self, chosen: ScheduledFilter, offset: int, limit: int) -> tuple[list[Message], int]:
        return await self._store.read(lambda db: later.page(db, self._exchange, chosen, offset, limit))

    async def later(self, chosen: ScheduledFilter) -> AsyncIterator[tuple[Any, Message]]:
        query = "select coalesce(max(id), 0) from later where exchange = ?"
        ((last,),) = await self._store.read(lambda db: db.execute(query, (self._exchange,)).fetchall())
        read, after = partial(later.some, exchange=self._exchange, chosen=chosen, last=last, most=_SCAN_SIZE), 0
        while found := await self._store.read(partial(read, after=after)):
            for one in found:
                yield one
            after = found[-1][0]

    async def cancelled(self, messages: Sequence[Message]) -> frozenset[str]:
        def find(db: sqlite3.Connection) -> frozenset[str]:
            by = pauses_and_cancels.cancelled_by
            return frozenset(one.id for one in messages if by(db, self._exchange, one) is not None)

        return await self._store.read(find)

    async def extent(self, queue: str) -> Extent:
        def find(db: sqlite3.Connection) -> Extent:
            number = queue_number(db, self._exchange, queue, self._store.display_path)
            query = "select coalesce(max(id), 0), count(*) from job where queue = ? and holder is null"
            last, total = db.execute(query, (number,)).fetchone()
            return Extent(last, total, ("",))

        return await self._store.read(find)

    async def part(self, queue: str, place: str, after: Any, last: int, ids: Collection[str]) -> Part:
        jobs = await self._store.read(
            lambda db: waiting.part(db, self._exchange, queue=queue, after=after or 0, last=last, ids=ids)
        )
        found = [(seen, number, message) for seen, (number, message) in enumerate(jobs)]
        return Part(not jobs, len(jobs), jobs[-1][0] if jobs else None, found)

    async def purge_some(
        self, queue: str, places: Sequence[str], last: int, *, leave_keyed: bool
    ) -> tuple[int, bool, list[tuple[str, Any, Message]]]:
        (tenant,) = places
        return await self._store.write(
            lambda db: waiting.purge_some(
                db, self._exchange, queue=queue, tenant=tenant, last=last, leave_keyed=leave_keyed
            )
        )

    async def try_change(self, conditions: Sequence[Step], changes: Sequence[Step]) -> Outcome:
        publishing = any(name in ("put", "key", "remove", "remove_later") for name, *_ in changes)
        outcome = await self._write(lambda db: carry_out(db, self._exchange, conditions, changes), publishing)
        self._notifier.notify()
        return outcome

    async def try_decide(
        self, table: str, names: Sequence[Stored], decide: Decide, conditions: Sequence[Step], changes: Sequence[Step]
    ) -> Outcome:
        """See StepStore. It reads, decides and changes in one transaction, so no state changes in the meantime."""

        def make(db: sqlite3.Connection) -> Outcome:
            _, more = decide([_state(db, self._exchange, table, name) for name in names])
            return carry_out(db, self._exchange, conditions, [*changes, *more])

        outcome = await self._write(make, True)
        self._notifier.notify()
        return outcome


def carry_out(db: sqlite3.Connection, exchange: str, conditions: Iterable[Step], changes: Iterable[Step]) -> Outcome:
    """Make these changes if all conditions hold."""
    for number, (name, *values) in enumerate(conditions, 1):
        if not _CONDITIONS[name](db, exchange, *values):
            return Outcome(number, [])
    return Outcome(0, [_CHANGES[name](db, exchange, *values) for name, *values in changes])


def next_due(db: sqlite3.Connection, exchange: str, table: str) -> float | None:
    """When the next name is due; None for never."""
    query = f"select min(due) from {_TABLES[table]} where exchange = ? and typeof(name) = 'text'"
    ((due,),) = db.execute(query, (exchange,)).fetchall()
    return None if due is None else float(due)


def read_keys(db: sqlite3.Connection, exchange: str, names: Iterable[str]) -> KeyStates:
    """The states of these keys now."""
    return KeyStates({name: _state(db, exchange, "keys", name) for name in dict.fromkeys(names)})


def change_keys(db: sqlite3.Connection, exchange: str, names: Iterable[str], decide: Callable[[KeyStates], T]) -> T:
    """Have `decide` decide about these keys in the transaction, and carry it out; returns its answer."""
    states = read_keys(db, exchange, names)
    answer = decide(states)
    carry_out(db, exchange, (), states.changes)
    return answer


def _state(db: sqlite3.Connection, exchange: str, table: str, name: Stored) -> Stored | None:
    query = f"select state from {_TABLES[table]} where exchange = ? and name = ?"
    found: tuple[Stored] | None = db.execute(query, (exchange, name)).fetchone()
    return None if found is None else found[0]


def _is_unchanged(db: sqlite3.Connection, exchange: str, table: str, name: Stored, state: Stored | bool) -> bool:
    return _state(db, exchange, table, name) == (None if state is False else state)


def _is_held(db: sqlite3.Connection, exchange: str, holder: int, number: int, times: int) -> bool:
    return db.execute(f"select 1 from job where {STILL_VALID}", (number, holder, times)).fetchone() is not None


def _waits(db: sqlite3.Connection, exchange: str, queue: str, place: str, number: int) -> bool:
    return db.execute("select 1 from job where id = ? and holder is null", (number,)).fetchone() is not None


def _is_scheduled(db: sqlite3.Connection, exchange: str, number: int) -> bool:
    return db.execute("select 1 from later where id = ?", (number,)).fetchone() is not None


def _has_running(db: sqlite3.Connection, exchange: str, permit: str, size: int) -> bool:
    ((running, called, _),) = count_permits(db, exchange, [permit])
    return running + called == size


_CONDITIONS: dict[str, Callable[..., bool]] = {
    "field": _is_unchanged,
    "held": _is_held,
    "waits": _waits,
    "scheduled": _is_scheduled,
    "running": _has_running,
}


def _put(db: sqlite3.Connection, exchange: str, job: Job) -> None:
    insert(db, exchange, job.queue or job.message.queue, to_row(job.message))


def _entry(
    db: sqlite3.Connection, exchange: str, table: str, name: Stored, state: Stored | bool, due: float | bool
) -> None:
    if state is False:
        _unset(db, exchange, table, name)
        return
    values = (exchange, name, None if due is False else due, state)
    query = f"insert or replace into {_TABLES[table]} (exchange, name, due, state) values (?, ?, ?, ?)"
    db.execute(query, values)


def _flow_data(db: sqlite3.Connection, exchange: str, workflow: str, name: str, data: bytes) -> None:
    query = "insert or replace into workflow_data (exchange, workflow, name, data) values (?, ?, ?, ?)"
    db.execute(query, (exchange, workflow, name, data))


def _forget_flow(db: sqlite3.Connection, exchange: str, workflow: str) -> None:
    db.execute("delete from workflow_data where exchange = ? and workflow = ?", (exchange, workflow))


def _append(db: sqlite3.Connection, exchange: str, log: str, batch: bytes, topic: str, at: str) -> None:
    append_batch(db, exchange, batch, clock.now())


def _set(db: sqlite3.Connection, exchange: str, table: str, name: str, state: str) -> None:
    query = f"insert or replace into {_TABLES[table]} (exchange, name, state) values (?, ?, ?)"
    db.execute(query, (exchange, name, state))


def _unset(db: sqlite3.Connection, exchange: str, table: str, name: Stored) -> None:
    db.execute(f"delete from {_TABLES[table]} where exchange = ? and name = ?", (exchange, name))


def _key(
    db: sqlite3.Connection,
    exchange: str,
    name: str,
    state: str | bool,
    due: float | bool,
    _holder_before: object,
    holder: str | bool,
) -> None:
    if state is False:
        _unset(db, exchange, "keys", name)
        return
    values = (exchange, name, None if holder is False else holder, None if due is False else due, state)
    db.execute("insert or replace into key (exchange, name, holder, due, state) values (?, ?, ?, ?, ?)", values)


def _drop(db: sqlite3.Connection, exchange: str, holder: int, number: int, times: int, keep_mark: str) -> None:
    marks = pauses_and_cancels.marks_of(db, exchange, number) if keep_mark else []
    delete_jobs(db, STILL_VALID, (number, holder, times))
    pauses_and_cancels.restore_marks(db, marks)


def _give_back(db: sqlite3.Connection, exchange: str, holder: int, number: int) -> None:
    release(db, "id = ? and holder = ?", (number, holder))


def _remove(db: sqlite3.Connection, exchange: str, queue: str, place: str, number: int, job: Job | bool) -> int:
    """Remove a job that waits, and put another in its place, if it still waits."""
    if not _waits(db, exchange, queue, place, number):
        return 0
    if isinstance(job, Job):
        _put(db, exchange, job)
    return delete_jobs(db, "id = ?", (number,))


def _remove_later(db: sqlite3.Connection, exchange: str, number: int, job: Job | bool) -> int:
    """Remove a scheduled job, and put another in its place, if it is still there."""
    removed = db.execute("delete from later where id = ?", (number,)).rowcount
    if removed and isinstance(job, Job):
        _put(db, exchange, job)
    return removed


def _permit(db: sqlite3.Connection, exchange: str, number: int, permit: str) -> None:
    db.execute("update job set permit = ? where id = ?", (permit_name(exchange, permit), number))


def _wait(db: sqlite3.Connection, exchange: str, permit: str) -> None:
    """Let the job that was put last wait for a permit."""
    permit = permit_name(exchange, permit)
    db.execute("update later set permit = ? where id = (select max(id) from later)", (permit,))


def _forget_limit(db: sqlite3.Connection, exchange: str, name: str, state: str) -> int:
    """Forget a limited key that is still in this state, unless a job has or awaits a permit of it."""
    ((running, called, waiting),) = count_permits(db, exchange, [name])
    if running or called or waiting or not _is_unchanged(db, exchange, "limits", name, state):
        return 0
    _unset(db, exchange, "limits", name)
    return 1


_CHANGES: dict[str, Callable[..., Any]] = {
    "put": _put,
    "drop": _drop,
    "give_back": _give_back,
    "remove": _remove,
    "remove_later": _remove_later,
    "set": _set,
    "unset": _unset,
    "key": _key,
    "entry": _entry,
    "flow_data": _flow_data,
    "forget_flow": _forget_flow,
    "append": _append,
    "permit": _permit,
    "wait": _wait,
    "forget_limit": _forget_limit,
}
