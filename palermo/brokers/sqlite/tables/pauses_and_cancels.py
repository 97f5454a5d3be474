"""Pauses of queues and cancels of jobs, as rows; file/schema.sql explains the columns."""

import sqlite3
from collections.abc import Iterable

from palermo.contract import clock
from palermo.core.message import Message
from palermo.core.queue_selection import EVERY_QUEUE, PausedQueues

#: The most cancel marks that are kept: older ones, for jobs that never came, are deleted.
MAX_CANCEL_MARKS = 100_000


def pause(db: sqlite3.Connection, exchange: str, queue: str, by: str) -> None:
    db.execute("insert or ignore into pause values (?, ?, ?)", (exchange, queue, by))


def resume(db: sqlite3.Connection, exchange: str, queue: str) -> None:
    db.execute("delete from pause where exchange = ? and queue = ?", (exchange, queue))


def paused(db: sqlite3.Connection, exchange: str) -> PausedQueues:
    rows = db.execute("select queue from pause where exchange = ? and typeof(queue) = 'text'", (exchange,)).fetchall()
    names = {name for (name,) in rows}
    return PausedQueues(frozenset(names - {EVERY_QUEUE}), every=EVERY_QUEUE in names)


def cancel(db: sqlite3.Connection, exchange: str, ids: Iterable[str], by: str, created_at: int | None) -> None:
    # The mark is deleted with its job. So a mark with a future time meets no later job with the same id.
    at = max(int(clock.now()), created_at or 0)
    db.executemany(
        "insert or replace into cancel (exchange, message_id, at, by) values (?, ?, ?, ?)",
        ((exchange, id, at, by) for id in ids),
    )
    db.execute("delete from cancel where id <= (select max(id) from cancel) - ?", (MAX_CANCEL_MARKS,))


def restore(db: sqlite3.Connection, exchange: str, ids: Iterable[str]) -> None:
    db.executemany("delete from cancel where exchange = ? and message_id = ?", ((exchange, id) for id in ids))


def marks_of(db: sqlite3.Connection, exchange: str, number: int) -> list[tuple[object, ...]]:
    """The cancel mark of the job with this number, if it has one, for `restore_marks`."""
    query = (
        "select exchange, message_id, at, by from cancel where exchange = ?"
        " and message_id = (select message_id from job where id = ?)"
    )
    return db.execute(query, (exchange, number)).fetchall()


def restore_marks(db: sqlite3.Connection, marks: Iterable[tuple[object, ...]]) -> None:
    """Store marks again that were deleted with a job."""
    db.executemany("insert or ignore into cancel (exchange, message_id, at, by) values (?, ?, ?, ?)", marks)


def cancelled_by(db: sqlite3.Connection, exchange: str, message: Message) -> str | None:
    """By whom this job was cancelled; None if it was not, or was enqueued after that."""
    rows = db.execute(
        "select at, by from cancel where exchange = ? and message_id = ?", (exchange, message.id)
    ).fetchall()
    if not rows:
        return None
    ((at, by),) = rows
    return str(by) if message.created_at is None or int(message.created_at) <= at else None
