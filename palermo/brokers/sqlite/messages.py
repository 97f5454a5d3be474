"""Messages as rows: the same headers as on the wire, so that both brokers read and write jobs by one rule."""

import sqlite3
import uuid
from collections.abc import Iterable
from typing import Any

from palermo.brokers.sqlite.values import dumps, loads
from palermo.core.message import NO_HEADERS, Message, from_wire, to_headers

#: The columns that hold a message, in the order of a Row.
COLUMNS = "message_id, content_type, content_encoding, headers, properties, body"

Row = tuple[str, str, str, str, str, bytes]


def to_row(message: Message) -> Row:
    """The message as values for COLUMNS. Raises EncodeError for a header that cannot be kept."""
    return (
        message.id,
        message.content_type,
        message.content_encoding,
        dumps(to_headers(message)),
        dumps(message.properties) if message.properties else "",
        message.body,
    )


def from_row(row: Iterable[Any], taken_from: str) -> Message:
    """The message in the values of COLUMNS, as taken from this queue."""
    message_id, content_type, content_encoding, headers, properties, body = row
    return from_wire(
        message_id=message_id,
        content_type=content_type,
        content_encoding=content_encoding,
        headers=loads(headers),
        body=body,
        taken_from=taken_from,
        new_id=_new_id,
        properties=loads(properties) if properties else NO_HEADERS,
    )


def insert(db: sqlite3.Connection, exchange: str, queue: str, row: Row) -> None:
    """Put a message at the end of a queue, which is made if need be."""
    db.execute(
        f"insert into job (queue, {COLUMNS}) values (?, ?, ?, ?, ?, ?, ?)",
        (declare(db, exchange, queue), *row),
    )


def declare(db: sqlite3.Connection, exchange: str, queue: str) -> int:
    """The number of the queue, made or shown again if need be."""
    found = db.execute("select id, hidden from queue where exchange = ? and name = ?", (exchange, queue)).fetchall()
    if not found:
        return int(db.execute("insert into queue (exchange, name) values (?, ?)", (exchange, queue)).lastrowid or 0)
    ((number, hidden),) = found
    if hidden:
        db.execute("update queue set hidden = 0 where id = ?", (number,))
    return int(number)


def release(db: sqlite3.Connection, held: str, values: tuple[Any, ...]) -> int:
    """Give the held jobs that match the condition back to their queues, at their old places; returns how many."""
    db.execute(f"update queue set hidden = 0 where hidden and id in (select queue from job where {held})", values)
    return db.execute(f"update job set holder = null, slot = null where {held}", values).rowcount


def _new_id() -> str:
    return str(uuid.uuid4())
