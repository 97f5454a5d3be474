"""Sweeps a queue, message by message, in steps of bounded size."""

import asyncio
import json
import sqlite3
from collections.abc import Callable, Collection, Sequence
from functools import partial

from palermo.brokers.features.unique_keys import jobs_removed, keys_of, readmit
from palermo.brokers.sqlite.file.store import Store
from palermo.brokers.sqlite.steps import change_keys, read_keys
from palermo.brokers.sqlite.tables.jobs import COLUMNS, from_row, insert, to_row
from palermo.brokers.sqlite.tables.permits import delete_jobs
from palermo.contract.sweep import Keep, Move, Remove, Stop, SweepDecision, SweepProgress
from palermo.core.message import Message
from palermo.core.topology import is_failed
from palermo.core.unique_keys import UNIQUE_KEY, key_names

#: How many messages, and how many bytes of bodies, are in memory at once.
_STEP = 200
_STEP_BYTES = 8 * 1024 * 1024

_PURGE_STEP = 2_000

#: One message that leaves the queue: its number, itself, and the move to make, or None to remove it.
_Change = tuple[int, Message, Move | None]


async def sweep(
    store: Store,
    *,
    exchange: str,
    queue: tuple[int, str],
    decide: Callable[[Message], SweepDecision],
    progress: Callable[[SweepProgress], None] | None,
    moved: Callable[[], None],
    ids: Collection[str] = (),
) -> SweepProgress:
    """Broker.sweep, for the queue of this number and name; `moved` is called after messages went to a queue.

    With `ids` it asks only about messages with these ids.

    Each step's removals and moves are one transaction: after an interruption all of a step is done, or nothing.
    """
    number, name = queue
    last, total = await store.read(lambda db: _extent(db, number))
    swept = SweepProgress(total=total)
    after, going = 0, True
    while going:
        rows = await store.read(partial(_step, exchange=exchange, queue=queue, after=after, last=last, ids=ids))
        changes: list[_Change] = []
        seen = 0
        for id, there in rows:
            verdict = decide(there)
            if isinstance(verdict, Stop):
                going = False
                break
            seen += 1
            match verdict:
                case Remove():
                    changes.append((id, there, None))
                case Move() as move:
                    changes.append((id, there, move))
                case Keep():
                    pass
        removed, put = 0, 0
        if changes:
            removed, put = await store.write(
                lambda db, changes=changes: _apply(db, exchange, name, changes),  # type: ignore[misc]
                publishing=True,
            )
        if put:
            moved()
        seen = total - swept.seen if ids and not rows else seen
        swept = SweepProgress(
            total=total, seen=swept.seen + seen, removed=swept.removed + removed, moved=swept.moved + put
        )
        if progress is not None and (rows or ids):
            progress(swept)
        going = going and bool(rows)
        after = rows[-1][0] if rows else after
        await asyncio.sleep(0)
    return swept


async def purge(store: Store, number: int, exchange: str) -> int:
    """Remove all messages that wait in the queue of this number at the start; returns how many."""
    last, _ = await store.read(lambda db: _extent(db, number))
    removed = 0
    while step := await store.write(lambda db: purge_step(db, number, exchange, last)):
        removed += step
        await asyncio.sleep(0)
    return removed


def _extent(db: sqlite3.Connection, number: int) -> tuple[int, int]:
    """The number of the newest message that waits, and how many wait. Later messages have higher numbers."""
    ((last, total),) = db.execute(
        "select coalesce(max(id), 0), count(*) from job where queue = ? and holder is null", (number,)
    ).fetchall()
    return int(last), int(total)


def _step(
    db: sqlite3.Connection, *, exchange: str, queue: tuple[int, str], after: int, last: int, ids: Collection[str]
) -> list[tuple[int, Message]]:
    """The next messages that wait, as they will run, with their numbers."""
    number, name = queue
    numbers: list[int] = []
    found: list[Message] = []
    size = 0
    chosen = "and message_id in (select value from json_each(?))" if ids else ""
    cursor = db.execute(
        f"select id, {COLUMNS} from job where queue = ? and holder is null and id > ? and id <= ? {chosen}"
        " order by id limit ?",
        (number, after, last, *((json.dumps(list(ids)),) if ids else ()), _STEP),
    )
    for id, *row in cursor:
        numbers.append(id)
        found.append(from_row(row, name))
        size += len(row[-1])
        if size > _STEP_BYTES:
            break
    cursor.close()
    if not is_failed(name):
        found = read_keys(db, exchange, key_names(found)).as_they_run(found)
    return list(zip(numbers, found, strict=True))


def _apply(db: sqlite3.Connection, exchange: str, queue: str, changes: list[_Change]) -> tuple[int, int]:
    """Change those messages that still wait; returns how many were removed, and how many moved.

    A failed job whose key another job holds stays where it is.
    """
    removed = moved = 0
    for id, there, move in changes:
        put = None if move is None else move.message
        if db.execute("select 1 from job where id = ? and holder is null", (id,)).fetchone() is None:
            continue  # A worker or another sweep was faster.
        if put is not None and not is_failed(put.queue) and not _readmit(db, exchange, put):
            if move is not None and move.refused is not None:
                move.refused()
            continue
        delete_jobs(db, "id = ?", (id,))
        if put is None:
            if not is_failed(queue):
                _jobs_removed(db, exchange, [there])
            removed += 1
            continue
        insert(db, exchange, put.queue, to_row(put))
        moved += 1
    return removed, moved


def _readmit(db: sqlite3.Connection, exchange: str, message: Message) -> bool:
    return change_keys(db, exchange, keys_of([message]), lambda states: readmit(states, message))


def _jobs_removed(
    db: sqlite3.Connection, exchange: str, messages: Sequence[Message], *, drop_next: bool = False
) -> None:
    names = keys_of(messages)
    change_keys(db, exchange, names, lambda states: jobs_removed(states, messages, drop_next=drop_next))


def purge_step(db: sqlite3.Connection, number: int, exchange: str, last: int) -> int:
    """Remove some of the messages that wait in the queue of this number, up to message `last`; returns how many."""
    rows = db.execute(
        f"select id, {COLUMNS} from job where queue = ? and holder is null and id <= ? and instr(headers, ?)"
        " order by id limit ?",
        (number, last, f'"{UNIQUE_KEY}"', _PURGE_STEP),
    ).fetchall()
    ((name,),) = db.execute("select name from queue where id = ?", (number,)).fetchall()
    if not is_failed(name):
        _jobs_removed(db, exchange, [from_row(row, name) for _, *row in rows], drop_next=True)
    if rows:
        return sum(delete_jobs(db, "id = ?", (id,)) for id, *_ in rows)
    return delete_jobs(
        db,
        "id in (select id from job where queue = ? and holder is null and id <= ? order by id limit ?)",
        (number, last, _PURGE_STEP),
    )


def clear_step(db: sqlite3.Connection, exchange: str, *, queue: str, tenant: str) -> int:
    """Remove some of the messages of a tenant that wait in a queue; returns how many."""
    rows = db.execute(
        f"select job.id, {COLUMNS} from job join queue on queue.id = job.queue"
        " where exchange = ? and name = ? and tenant = ? and holder is null and instr(headers, ?)"
        " order by job.id limit ?",
        (exchange, queue, tenant, f'"{UNIQUE_KEY}"', _PURGE_STEP),
    ).fetchall()
    _jobs_removed(db, exchange, [from_row(row, queue) for _, *row in rows])
    if rows:
        return sum(delete_jobs(db, "id = ?", (id,)) for id, *_ in rows)
    return delete_jobs(
        db,
        "id in (select job.id from job join queue on queue.id = job.queue"
        " where exchange = ? and name = ? and tenant = ? and holder is null order by job.id limit ?)",
        (exchange, queue, tenant, _PURGE_STEP),
    )
