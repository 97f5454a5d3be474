"""Going through a queue, message by message, in steps of bounded size."""

import asyncio
import sqlite3
from collections.abc import Callable

from palermo.broker import Keep, Move, Remove, Stop, Swept, Verdict
from palermo.brokers.sqlite import keys
from palermo.brokers.sqlite.messages import COLUMNS, from_row, insert, to_row
from palermo.brokers.sqlite.store import Store
from palermo.core.keys import UNIQUE_KEY
from palermo.core.message import Message
from palermo.core.topology import is_failed

#: How many messages, and how many bytes of bodies, are in memory at once.
_STEP = 200
_STEP_BYTES = 8 * 1024 * 1024

_PURGE_STEP = 2_000

#: What to do with one message: its number, itself, and what to put in its place.
_Change = tuple[int, Message, Move | None]


async def sweep(
    store: Store,
    *,
    exchange: str,
    queue: tuple[int, str],
    decide: Callable[[Message], Verdict],
    progress: Callable[[Swept], None] | None,
    moved: Callable[[], None],
) -> Swept:
    """Broker.sweep, for the queue of this number and name; `moved` is called after messages went to a queue.

    Each step's removals and moves are one transaction: interrupted, it has happened or not.
    """
    number, name = queue
    last, total = await store.read(lambda db: _extent(db, number))
    swept = Swept(total=total)
    after, going = 0, True
    while going:
        rows = await store.read(lambda db, after=after: _step(db, number, after, last))  # type: ignore[misc]
        changes: list[_Change] = []
        seen = 0
        for id, *row in rows:
            there = from_row(row, name)
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
        swept = Swept(total=total, seen=swept.seen + seen, removed=swept.removed + removed, moved=swept.moved + put)
        if progress is not None and rows:
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
    """The number of the newest message that waits, and how many do. What comes later has a higher number."""
    ((last, total),) = db.execute(
        "select coalesce(max(id), 0), count(*) from job where queue = ? and holder is null", (number,)
    ).fetchall()
    return int(last), int(total)


def _step(
    db: sqlite3.Connection, number: int, after: int, last: int
) -> list[tuple[int, str, str, str, str, str, bytes]]:
    rows = []
    size = 0
    cursor = db.execute(
        f"select id, {COLUMNS} from job where queue = ? and holder is null and id > ? and id <= ? order by id limit ?",
        (number, after, last, _STEP),
    )
    for row in cursor:
        rows.append(row)
        size += len(row[-1])
        if size > _STEP_BYTES:
            break
    cursor.close()
    return rows


def _apply(db: sqlite3.Connection, exchange: str, queue: str, changes: list[_Change]) -> tuple[int, int]:
    """Do the changes to those messages that still wait; returns how many were removed, and how many moved.

    A failed job that another one keeps from its key stays where it is.
    """
    removed = moved = 0
    for id, there, move in changes:
        put = None if move is None else move.message
        if db.execute("select 1 from job where id = ? and holder is null", (id,)).fetchone() is None:
            continue  # a worker, or another sweep, was faster
        if put is not None and not is_failed(put.queue) and not keys.readmitted(db, exchange, put):
            if move is not None and move.refused is not None:
                move.refused()
            continue
        db.execute("delete from job where id = ?", (id,))
        if put is None:
            if not is_failed(queue):
                keys.gone(db, exchange, [there])
            removed += 1
            continue
        insert(db, exchange, put.queue, to_row(put))
        moved += 1
    return removed, moved


def purge_step(db: sqlite3.Connection, number: int, exchange: str, last: int) -> int:
    """Remove some of the messages that wait in the queue of this number, up to the one with that number."""
    rows = db.execute(
        f"select id, {COLUMNS} from job where queue = ? and holder is null and id <= ? and instr(headers, ?)"
        " order by id limit ?",
        (number, last, f'"{UNIQUE_KEY}"', _PURGE_STEP),
    ).fetchall()
    ((name,),) = db.execute("select name from queue where id = ?", (number,)).fetchall()
    if not is_failed(name):
        keys.gone(db, exchange, (from_row(row, name) for _, *row in rows), drop_next=True)
    if rows:
        db.executemany("delete from job where id = ?", ((id,) for id, *_ in rows))
        return len(rows)
    return db.execute(
        "delete from job where id in"
        " (select id from job where queue = ? and holder is null and id <= ? order by id limit ?)",
        (number, last, _PURGE_STEP),
    ).rowcount


def clear_step(db: sqlite3.Connection, exchange: str, *, queue: str, tenant: str) -> int:
    """Remove some of the messages of a tenant that wait in a queue; how many."""
    rows = db.execute(
        f"select job.id, {COLUMNS} from job join queue on queue.id = job.queue"
        " where exchange = ? and name = ? and tenant = ? and holder is null and instr(headers, ?)"
        " order by job.id limit ?",
        (exchange, queue, tenant, f'"{UNIQUE_KEY}"', _PURGE_STEP),
    ).fetchall()
    keys.gone(db, exchange, (from_row(row, queue) for _, *row in rows))
    if rows:
        db.executemany("delete from job where id = ?", ((id,) for id, *_ in rows))
        return len(rows)
    return db.execute(
        "delete from job where id in (select job.id from job join queue on queue.id = job.queue"
        " where exchange = ? and name = ? and tenant = ? and holder is null order by job.id limit ?)",
        (exchange, queue, tenant, _PURGE_STEP),
    ).rowcount
