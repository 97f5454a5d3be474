"""Which queues are paused and which jobs are cancelled, as rows; the columns are explained in schema_2.sql."""

import sqlite3
import time
from collections.abc import Iterable

from palermo.core.message import Message

#: Marks for jobs that never come are forgotten when there are so many newer ones.
MOST = 100_000


def pause(db: sqlite3.Connection, exchange: str, queue: str, by: str) -> None:
    db.execute("insert or ignore into pause values (?, ?, ?)", (exchange, queue, by))


def resume(db: sqlite3.Connection, exchange: str, queue: str) -> None:
    db.execute("delete from pause where exchange = ? and queue = ?", (exchange, queue))


def paused(db: sqlite3.Connection, exchange: str) -> set[str]:
    return {name for (name,) in db.execute("select queue from pause where exchange = ?", (exchange,)).fetchall()}


def cancel(db: sqlite3.Connection, exchange: str, ids: Iterable[str], by: str) -> None:
    at = int(time.time())
    db.executemany(
        "insert or replace into cancel (exchange, message_id, at, by) values (?, ?, ?, ?)",
        ((exchange, id, at, by) for id in ids),
    )
    db.execute("delete from cancel where id <= (select max(id) from cancel) - ?", (MOST,))


def restore(db: sqlite3.Connection, exchange: str, ids: Iterable[str]) -> None:
    db.executemany("delete from cancel where exchange = ? and message_id = ?", ((exchange, id) for id in ids))


def of(db: sqlite3.Connection, exchange: str, id: str) -> list[tuple[object, ...]]:
    """The mark of a job, if it has one, for `put_back`."""
    query = "select exchange, message_id, at, by from cancel where exchange = ? and message_id = ?"
    return db.execute(query, (exchange, id)).fetchall()


def put_back(db: sqlite3.Connection, marks: Iterable[tuple[object, ...]]) -> None:
    """Have marks again that went with a job."""
    db.executemany("insert or ignore into cancel (exchange, message_id, at, by) values (?, ?, ?, ?)", marks)


def find(db: sqlite3.Connection, exchange: str, message: Message) -> str | None:
    """Who cancelled this job; None if nobody did, or did so before it was enqueued."""
    rows = db.execute(
        "select at, by from cancel where exchange = ? and message_id = ?", (exchange, message.id)
    ).fetchall()
    if not rows:
        return None
    ((at, by),) = rows
    return str(by) if message.created_at is None or int(message.created_at) <= at else None
