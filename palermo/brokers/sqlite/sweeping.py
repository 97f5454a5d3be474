"""Going through a queue, message by message, in steps of bounded size."""

import asyncio
import sqlite3
from collections.abc import Callable

from palermo.broker import Keep, Move, Remove, Stop, Swept, Verdict
from palermo.brokers.sqlite.messages import COLUMNS, Row, from_row, insert, to_row
from palermo.brokers.sqlite.store import Store
from palermo.core.message import Message

#: How many messages, and how many bytes of bodies, are in memory at once.
_STEP = 200
_STEP_BYTES = 8 * 1024 * 1024

_PURGE_STEP = 2_000

#: What to do with one message: its number, and what to put where in its place.
_Change = tuple[int, tuple[str, Row] | None]


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
            verdict = decide(from_row(row, name))
            if isinstance(verdict, Stop):
                going = False
                break
            seen += 1
            match verdict:
                case Remove():
                    changes.append((id, None))
                case Move(message):
                    changes.append((id, (message.queue, to_row(message))))
                case Keep():
                    pass
        removed, put = 0, 0
        if changes:
            removed, put = await store.write(
                lambda db, changes=changes: _apply(db, exchange, changes),  # type: ignore[misc]
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


async def purge(store: Store, number: int) -> int:
    """Remove all messages that wait in the queue of this number at the start; returns how many."""
    last, _ = await store.read(lambda db: _extent(db, number))
    removed = 0
    while step := await store.write(lambda db: _purge_step(db, number, last)):
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


def _apply(db: sqlite3.Connection, exchange: str, changes: list[_Change]) -> tuple[int, int]:
    """Do the changes to those messages that still wait; returns how many were removed, and how many moved."""
    removed = moved = 0
    for id, place in changes:
        if db.execute("delete from job where id = ? and holder is null", (id,)).rowcount != 1:
            continue  # a worker, or another sweep, was faster
        if place is None:
            removed += 1
            continue
        queue, row = place
        insert(db, exchange, queue, row)
        moved += 1
    return removed, moved


def _purge_step(db: sqlite3.Connection, number: int, last: int) -> int:
    return db.execute(
        "delete from job where id in"
        " (select id from job where queue = ? and holder is null and id <= ? order by id limit ?)",
        (number, last, _PURGE_STEP),
    ).rowcount
