"""Pauses of queues and marks of cancelled jobs, as rows; file/schema.sql explains the columns."""

import sqlite3
from collections.abc import Iterable

from palermo.brokers.features import pauses_and_cancels
from palermo.core.message import Message
from palermo.core.queue_selection import PausedQueues


def paused(db: sqlite3.Connection, exchange: str) -> PausedQueues:
    rows = db.execute("select name from pause where exchange = ? and typeof(name) = 'text'", (exchange,)).fetchall()
    return pauses_and_cancels.paused_in(name for (name,) in rows)


def cancel(db: sqlite3.Connection, exchange: str, mark: str, most: int, ids: Iterable[str]) -> None:
    """Mark jobs as cancelled. Only the newest `most` marks are kept."""
    query = "insert or replace into cancel (exchange, name, state) values (?, ?, ?)"
    db.executemany(query, ((exchange, id, mark) for id in ids))
    db.execute("delete from cancel where id <= (select max(id) from cancel) - ?", (most,))


def restore(db: sqlite3.Connection, exchange: str, ids: Iterable[str]) -> None:
    """Remove the marks of these jobs."""
    db.executemany("delete from cancel where exchange = ? and name = ?", ((exchange, id) for id in ids))


def marks_of(db: sqlite3.Connection, exchange: str, number: int) -> list[tuple[object, ...]]:
    """The mark of the job with this number, if any, for `restore_marks`."""
    query = (
        "select exchange, name, state from cancel where exchange = ?"
        " and name = (select message_id from job where id = ?)"
    )
    return db.execute(query, (exchange, number)).fetchall()


def restore_marks(db: sqlite3.Connection, marks: Iterable[tuple[object, ...]]) -> None:
    """Restore marks that were deleted together with a job."""
    db.executemany("insert or ignore into cancel (exchange, name, state) values (?, ?, ?)", marks)


def cancelled_by(db: sqlite3.Connection, exchange: str, message: Message) -> str | None:
    """The user who cancelled this job; None without a mark that applies to it."""
    rows = db.execute("select state from cancel where exchange = ? and name = ?", (exchange, message.id)).fetchall()
    return pauses_and_cancels.cancelled_by(rows[0][0], message) if rows else None
