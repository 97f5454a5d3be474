"""Apply conditions and changes in one transaction. palermo/brokers/features/steps.py explains them."""

import json
import sqlite3
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from functools import partial
from typing import Any

from palermo.brokers.features.steps import Decide, Entry, Extent, Found, Job, Outcome, Part, Step, StepStore, Stored
from palermo.brokers.sqlite.channels import Channels, send
from palermo.brokers.sqlite.file.store import Store, Work
from palermo.brokers.sqlite.tables import later, pauses_and_cancels, waiting
from palermo.brokers.sqlite.tables.claims import STILL_VALID, release
from palermo.brokers.sqlite.tables.jobs import (
    COLUMN_COUNT,
    COLUMNS,
    SHOWN_COLUMNS,
    declare_queue,
    from_row,
    insert,
    queue_number,
    to_row,
)
from palermo.brokers.sqlite.tables.permits import count_permits, delete_jobs, permit_name
from palermo.contract.broker import Tenant
from palermo.contract.finding import MOST_FOUND
from palermo.contract.scheduled import ScheduledFilter
from palermo.core.message import Message

#: Number of scheduled jobs read in one batch.
_SCAN_SIZE = 500

#: The tables of states, by their names in steps.
_TABLES = {
    "recurring": "recurring",
    "keys": "key",
    "unique-jobs": "unique_job",
    "limits": "limited",
    "groups": "subscription",
    "replays": "replay",
    "pauses": "pause",
    "cancels": "cancel",
    "flows": "workflow",
}

#: Changes that neither put a job into a queue nor schedule one.
_QUIET = ("append", "trim", "publish", "save")


class SqliteSteps(StepStore):
    """The steps of one session with a file."""

    def __init__(
        self,
        store: Store,
        exchange: str,
        channels: Channels,
        write: Callable[[Work[Outcome]], Awaitable[Outcome]] | None = None,
    ) -> None:
        """`write` runs a transaction."""
        self._store = store
        self._exchange = exchange
        self._channels = channels
        self._write = write or partial(store.write, publishing=True)

    async def states(self, table: str, names: Sequence[Stored]) -> list[Stored | None]:
        return await self._store.read(lambda db: [_state(db, self._exchange, table, name) for name in names])

    async def fields(self, table: str) -> Mapping[Any, Any]:
        query = f"select name, state from {_TABLES[table]} where exchange = ? order by name"
        return dict(await self._rows(query, self._exchange))

    async def some(self, table: str, cursor: Stored, most: int) -> tuple[Stored, Sequence[tuple[Stored, Stored]]]:
        query = (
            f"select name, state from {_TABLES[table]} where exchange = ? and name > ? and typeof(name) = 'text'"
            " order by name limit ?"
        )
        rows = await self._rows(query, self._exchange, cursor, most)
        return rows[-1][0] if len(rows) == most else "", rows

    async def permits(self, number: Any, permit: str) -> tuple[bool, int]:
        query = "select count(*) filter (where id = ?), count(*) from job where permit = ?"
        ((has, running),) = await self._rows(query, number, permit_name(self._exchange, permit))
        return bool(has), running

    async def permit_counts(self, permits: Sequence[Stored]) -> Sequence[tuple[int, int, int]]:
        return await self._store.read(lambda db: count_permits(db, self._exchange, permits))

    async def absent(self, ids: Collection[str]) -> set[str]:
        query = (
            "select value from json_each(?) where value not in (select message_id from job)"
            " and value not in (select message_id from later where exchange = ?)"
        )
        return {id for (id,) in await self._rows(query, json.dumps(list(ids)), self._exchange)}

    async def due(self, table: str, now: float, most: int) -> Sequence[str]:
        query = (
            f"select name from {_TABLES[table]} where exchange = ? and due <= ? and typeof(name) = 'text'"
            " order by due limit ?"
        )
        return [name for (name,) in await self._rows(query, self._exchange, now, most)]

    async def entries(self, log: str, first: int, last: int | None, most: int) -> Sequence[Entry]:
        query = (
            "select id, cast(body as blob), topic, at from log where exchange = ? and name = ? and id >= ?"
            " and (id <= ? or ? is null) and typeof(topic) = 'text' and typeof(at) = 'real' order by id limit ?"
        )
        return [Entry(*row) for row in await self._rows(query, self._exchange, log, first, last, last, most)]

    async def newest(self, log: str, count: int = 1) -> int | None:
        query = "select min(id) from (select id from log where exchange = ? and name = ? order by id desc limit ?)"
        found: int | None = await self._one(query, self._exchange, log, count)
        return found

    async def place_at(self, log: str, instant: float) -> int:
        # Searched from the end, since nearly all callers want the latest entries.
        query = "select (select id + 1 from log where exchange = ? and name = ? and at < ? order by id desc limit 1)"
        return int(await self._one(query, self._exchange, log, instant) or 0)

    async def size(self, log: str) -> int:
        return int(await self._one("select count(*) from log where exchange = ? and name = ?", self._exchange, log))

    async def _rows(self, query: str, *values: Any) -> list[Any]:
        return await self._store.read(lambda db: db.execute(query, values).fetchall())

    async def _one(self, query: str, *values: Any) -> Any:
        """The single value of a query."""
        ((found,),) = await self._rows(query, *values)
        return found

    async def flow_data(self, workflow: str, names: Sequence[str]) -> list[bytes | None]:
        query = (
            "select name, data from workflow_data where exchange = ? and workflow = ? and typeof(data) = 'blob'"
            " and name in (select value from json_each(?))"
        )
        values = (self._exchange, workflow, json.dumps(list(names)))
        found = dict(await self._store.read(lambda db: db.execute(query, values).fetchall()))
        return [found.get(name) for name in names]

    @property
    def ended(self) -> bool:
        return False  # a file doesn't disconnect

    async def listen(self, channel: str, callback: Callable[..., None]) -> None:
        await self._channels.listen(channel, callback)

    async def unlisten(self, channel: str, callback: Callable[..., None]) -> None:
        await self._channels.unlisten(channel, callback)

    async def publish(self, channel: str, text: str) -> None:
        await self.change((), [("publish", channel, text)])

    async def put_due(self, now: float, most: int) -> Sequence[float | None]:
        due = await self._store.read(self._next_due)
        if due[0] is None or due[0] > now:
            return due
        await self._store.write(lambda db: later.put_due(db, self._exchange, now, most))
        self._channels.ring()
        return await self._store.read(self._next_due)

    def _next_due(self, db: sqlite3.Connection) -> Sequence[float | None]:
        ((due,),) = db.execute("select min(run_at) from later where exchange = ?", (self._exchange,)).fetchall()
        return (due, *(next_due(db, self._exchange, table) for table in ("keys", "recurring", "flows")))

    async def later_page(self, chosen: ScheduledFilter, offset: int, limit: int) -> tuple[list[Message], int]:
        return await self._store.read(lambda db: later.page(db, self._exchange, chosen, offset, limit))

    async def later(self, chosen: ScheduledFilter) -> AsyncIterator[tuple[Any, Message]]:
        last = await self._one("select coalesce(max(id), 0) from later where exchange = ?", self._exchange)
        read, after = partial(later.some, exchange=self._exchange, chosen=chosen, last=last, most=_SCAN_SIZE), 0
        while found := await self._store.read(partial(read, after=after)):
            for one in found:
                yield one
            after = found[-1][0]

    async def keys_held_by(self, ids: Sequence[str]) -> list[tuple[str, str]]:
        query = "select holder, name from key where exchange = ? and holder in (select value from json_each(?))"
        return await self._rows(query, self._exchange, json.dumps(ids))

    async def tenants(self, queue: str) -> list[Tenant]:
        query = (
            "select tenant.name, cast(waiting as integer), share from tenant join queue on queue.id = tenant.queue"
            " where exchange = ? and queue.name = ? and waiting > 0 and typeof(tenant.name) = 'text'"
        )
        rows = await self._rows(query, self._exchange, queue)
        return [Tenant(name=name, pending=waiting, share=share) for name, waiting, share in rows]

    async def tenant_jobs(self) -> Mapping[str, int]:
        query = (
            "select queue.name, sum(waiting) from tenant join queue on queue.id = tenant.queue"
            " where exchange = ? group by queue.name"
        )
        return dict(await self._rows(query, self._exchange))

    async def page(
        self, queue: str, offset: int, limit: int, max_body: int, *, newest: bool
    ) -> tuple[int, list[Message]]:
        order = "tenant desc, priority, id desc" if newest else "tenant, priority desc, id"
        waiting = "from job where queue = ? and holder is null"

        def find(db: sqlite3.Connection) -> tuple[int, list[Message]]:
            number = queue_number(db, self._exchange, queue, self._store.display_path)
            ((total,),) = db.execute(f"select count(*) {waiting}", (number,)).fetchall()
            query = f"select {SHOWN_COLUMNS} {waiting} order by {order} limit ? offset ?"
            rows = db.execute(query, (max_body + 1, number, limit, offset)).fetchall()
            return total, [from_row(row, queue) for row in rows]

        return await self._store.read(find)

    async def delete_empty(self, queue: str) -> bool:
        def delete(db: sqlite3.Connection) -> bool:
            number = queue_number(db, self._exchange, queue, self._store.display_path)
            if db.execute("select 1 from job where queue = ? and holder is null", (number,)).fetchone():
                return False
            # While a worker holds a job the row is only hidden, because a released job needs its queue.
            db.execute("update queue set hidden = 1 where id = ?", (number,))
            db.execute(
                "delete from queue where id = ? and not exists (select 1 from job where queue = ?)", (number, number)
            )
            return True

        return await self._store.write(delete)

    async def find(self, ids: Collection[str], *, beginnings: bool) -> list[Found]:
        condition = "exists (select 1 from json_each(:ids) where substr(message_id, 1, length(value)) = value)"
        if not beginnings:
            condition = "message_id in (select value from json_each(:ids))"

        def find(db: sqlite3.Connection) -> list[Found]:
            values = {"exchange": self._exchange, "ids": json.dumps(list(ids)), "most": MOST_FOUND}
            later = db.execute(
                f"select {COLUMNS} from later where exchange = :exchange and {condition} order by run_at limit :most",
                values,
            ).fetchall()
            queued = db.execute(
                f"select holder.tag, queue.name, {COLUMNS} from job join queue on queue.id = job.queue"
                " left join holder on holder.id = job.holder"
                f" where queue.exchange = :exchange and typeof(name) = 'text' and {condition} limit :most",
                values,
            ).fetchall()
            scheduled = [Found(from_row(row, None)) for row in later]
            return scheduled + [Found(from_row(row, queue), queue, tag) for tag, queue, *row in queued]

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
        outcome = await self._write(lambda db: carry_out(db, self._exchange, conditions, changes))
        self._notify(changes)
        return outcome

    async def try_decide(
        self, table: str, names: Sequence[Stored], decide: Decide, conditions: Sequence[Step], changes: Sequence[Step]
    ) -> Outcome:
        """See StepStore. Reads, decides and changes in one transaction, so no state changes in between."""
        made: list[Step] = []

        def make(db: sqlite3.Connection) -> Outcome:
            made[:] = [*changes, *decide([_state(db, self._exchange, table, name) for name in names])[1]]
            return carry_out(db, self._exchange, conditions, made)

        outcome = await self._write(make)
        self._notify(made)
        return outcome

    def _notify(self, changes: Sequence[Step]) -> None:
        """Wake the sessions that wait for such changes."""
        for channel in {change[1] for change in changes if change[0] == "publish"}:
            self._channels.ring(channel)
        if any(change[0] not in _QUIET for change in changes):
            self._channels.ring()


def carry_out(db: sqlite3.Connection, exchange: str, conditions: Iterable[Step], changes: Iterable[Step]) -> Outcome:
    """Apply the changes if all conditions hold."""
    for number, (name, *values) in enumerate(conditions, 1):
        if not _CONDITIONS[name](db, exchange, *values):
            return Outcome(number, [])
    return Outcome(0, [_CHANGES[name](db, exchange, *values) for name, *values in changes])


def next_due(db: sqlite3.Connection, exchange: str, table: str) -> float | None:
    """When the next name is due; None for never."""
    query = f"select min(due) from {_TABLES[table]} where exchange = ? and typeof(name) = 'text' and due < 9e999"
    ((due,),) = db.execute(query, (exchange,)).fetchall()
    return None if due is None else float(due)


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


def _set(
    db: sqlite3.Connection, exchange: str, table: str, name: Stored, state: Stored, due: float | bool | None = None
) -> None:
    """Set the state of a name. With `due`, also set when it is due; False means never."""
    query = f"insert or replace into {_TABLES[table]} (exchange, name, state) values (?, ?, ?)"
    db.execute(query, (exchange, name, state))
    if due:
        db.execute(f"update {_TABLES[table]} set due = ? where exchange = ? and name = ?", (due, exchange, name))


def _unset(db: sqlite3.Connection, exchange: str, table: str, name: Stored) -> None:
    db.execute(f"delete from {_TABLES[table]} where exchange = ? and name = ?", (exchange, name))


def _flow_data(db: sqlite3.Connection, exchange: str, workflow: str, name: str, data: bytes) -> None:
    query = "insert or replace into workflow_data (exchange, workflow, name, data) values (?, ?, ?, ?)"
    db.execute(query, (exchange, workflow, name, data))


def _forget_flow(db: sqlite3.Connection, exchange: str, workflow: str) -> None:
    db.execute("delete from workflow_data where exchange = ? and workflow = ?", (exchange, workflow))


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


def _save(db: sqlite3.Connection, exchange: str, number: int, job: Job) -> None:
    """Replace the message of a held job."""
    columns = ", ".join(f"{column} = ?" for column in COLUMNS.split(", "))
    db.execute(f"update job set {columns} where id = ?", (*to_row(job.message)[:COLUMN_COUNT], number))


def _release(db: sqlite3.Connection, exchange: str, holder: int, number: int) -> None:
    release(db, "id = ? and holder = ?", (number, holder))


def _remove(db: sqlite3.Connection, exchange: str, queue: str, place: str, number: int, job: Job | bool) -> int:
    """Remove a job if it still waits. `job` is another one to put in its place."""
    if not _waits(db, exchange, queue, place, number):
        return 0
    if isinstance(job, Job):
        _put(db, exchange, job)
    return delete_jobs(db, "id = ?", (number,))


def _remove_later(db: sqlite3.Connection, exchange: str, number: int, job: Job | bool) -> int:
    """Remove a scheduled job if it still exists. `job` is another one to put in its place."""
    removed = db.execute("delete from later where id = ?", (number,)).rowcount
    if removed and isinstance(job, Job):
        _put(db, exchange, job)
    return removed


def _declare(db: sqlite3.Connection, exchange: str, queue: str) -> None:
    declare_queue(db, exchange, queue)


#: SQL for the total size of the bodies in a log.
_UPTO = "select upto from log where exchange = :exchange and name = :name order by id desc limit 1"


def _append(db: sqlite3.Connection, exchange: str, name: str, body: bytes, topic: str, at: float) -> None:
    db.execute(
        "insert into log (exchange, name, topic, at, body, upto)"
        f" values (:exchange, :name, :topic, :at, :body, length(:body) + coalesce(({_UPTO}), 0))",
        {"exchange": exchange, "name": name, "topic": topic, "at": at, "body": body},
    )


def _trim(db: sqlite3.Connection, exchange: str, name: str, oldest: float, most: int) -> None:
    """Remove the entries of a log that exceed its age or its size."""
    for kept in ("at >= :oldest", f"upto - length(body) >= ({_UPTO}) - :most"):
        db.execute(
            "delete from log where exchange = :exchange and name = :name and id < (select id from log"
            f" where exchange = :exchange and name = :name and {kept} order by id limit 1)",
            {"exchange": exchange, "name": name, "oldest": oldest, "most": most},
        )


def _start_replay(db: sqlite3.Connection, exchange: str, name: str, group: str) -> None:
    """Record that a group should get a log's entries up to the newest one, and has received none of them yet."""
    query = "select max(id) from log where exchange = ? and name = ?"
    ((newest,),) = db.execute(query, (exchange, name)).fetchall()
    if newest is not None:
        _set(db, exchange, "replays", group, f"0 {newest}")


def _permit(db: sqlite3.Connection, exchange: str, number: int, permit: str) -> None:
    db.execute("update job set permit = ? where id = ?", (permit_name(exchange, permit), number))


def _wait(db: sqlite3.Connection, exchange: str, permit: str) -> None:
    """Make the last inserted job wait for a permit."""
    permit = permit_name(exchange, permit)
    db.execute("update later set permit = ? where id = (select max(id) from later)", (permit,))


def _forget_limit(db: sqlite3.Connection, exchange: str, name: str, state: str) -> int:
    """Delete a limited key if its state is unchanged, and no job has or awaits a permit."""
    ((running, called, waiting),) = count_permits(db, exchange, [name])
    if running or called or waiting or not _is_unchanged(db, exchange, "limits", name, state):
        return 0
    _unset(db, exchange, "limits", name)
    return 1


def _try_out(db: sqlite3.Connection, exchange: str, job: Job) -> int:
    """Store a job in a queue of its own and delete both again, invisible to others."""
    _put(db, exchange, job)
    number = declare_queue(db, exchange, job.message.queue)
    taken = db.execute("delete from job where queue = ?", (number,)).rowcount
    db.execute("delete from queue where id = ?", (number,))
    return taken


_CHANGES: dict[str, Callable[..., Any]] = {
    "put": _put,
    "drop": _drop,
    "save": _save,
    "release": _release,
    "remove": _remove,
    "remove_later": _remove_later,
    "set": _set,
    "unset": _unset,
    "key": _key,
    "flow_data": _flow_data,
    "forget_flow": _forget_flow,
    "permit": _permit,
    "wait": _wait,
    "cancel": pauses_and_cancels.cancel,
    "restore": pauses_and_cancels.restore,
    "declare": _declare,
    "append": _append,
    "trim": _trim,
    "start_replay": _start_replay,
    "publish": send,
    "try_out": _try_out,
    "forget_limit": _forget_limit,
}
