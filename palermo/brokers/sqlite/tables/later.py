"""Scheduled jobs, which have a table of their own until they are due."""

import sqlite3
from typing import Any

from msgspec.structs import replace

from palermo.brokers.sqlite.tables.jobs import COLUMNS, FRONT_PRIORITY, from_row, insert, priority_of
from palermo.contract.scheduled import ScheduledFilter
from palermo.core import header_json
from palermo.core.limits import has_reservation
from palermo.core.message import Message

#: Maximum number of ids compared in SQL.
_MOST_IDS = 500

#: The header that marks a failed job, and how it appears in the headers' text.
_ERROR = "exception-class"
_ERROR_WRITTEN = f'"{_ERROR}":'


def put_due(db: sqlite3.Connection, exchange: str, now: float, most: int) -> None:
    """Move due jobs to their queues."""
    rows: list[Any] = db.execute(
        f"select id, queue, {COLUMNS} from later where exchange = ? and run_at <= ? order by run_at, id limit ?",
        (exchange, now, most),
    ).fetchall()
    for number, queue, *row in rows:
        message = from_row(row, queue)
        priority = FRONT_PRIORITY if has_reservation(message) else priority_of(message)
        insert(db, exchange, queue, (*row, None, "", priority, message.tenant or None, message.share))
        db.execute("delete from later where id = ?", (number,))


def page(
    db: sqlite3.Connection, exchange: str, chosen: ScheduledFilter, offset: int, limit: int
) -> tuple[list[Message], int]:
    """A page of the matching jobs, soonest first, and their total number."""
    where, values = _where(db, exchange, chosen)
    rows = db.execute(
        f"select {COLUMNS} from later where {where} order by run_at, id limit ? offset ?", (*values, limit, offset)
    ).fetchall()
    ((total,),) = db.execute(f"select count(*) from later where {where}", values).fetchall()
    return [from_row(row, None) for row in rows], total


def some(
    db: sqlite3.Connection, exchange: str, chosen: ScheduledFilter, after: int, last: int, most: int
) -> list[tuple[int, Message]]:
    """The next matching jobs by number, each with its number."""
    where, values = _where(db, exchange, chosen)
    rows = db.execute(
        f"select id, {COLUMNS} from later where {where} and id > ? and id <= ? order by id limit ?",
        (*values, after, last, most),
    ).fetchall()
    return [(int(number), from_row(row, None)) for number, *row in rows]


def _where(db: sqlite3.Connection, exchange: str, chosen: ScheduledFilter) -> tuple[str, tuple[Any, ...]]:
    """The SQL condition for the filter, and its values."""
    if chosen.everything:
        return "exchange = ?", (exchange,)
    condition, values = "exchange = ?", list[Any]([exchange])
    if chosen.due is not None:
        condition += " and run_at >= ? and run_at <= ?"
        values += chosen.due
    if chosen.ids is not None and len(chosen.ids) <= _MOST_IDS:
        condition += f" and message_id in ({', '.join('?' * len(chosen.ids))})"
        values += chosen.ids
    unasked = replace(chosen, retries=None, due=None)
    if chosen.retries is None and unasked == ScheduledFilter(ids=chosen.ids) and len(chosen.ids or ()) <= _MOST_IDS:
        return condition, tuple(values)
    wanted = chosen.retries

    def matches(id: str, queue: str, job: str, headers: object) -> bool:
        if wanted is not None and wanted is not _has_failed(headers):
            return False
        return unasked.matches(Message(id=id, queue=queue, job=job))

    db.create_function("matches", 4, matches, deterministic=True)
    return f"{condition} and matches(message_id, queue, job, headers)", tuple(values)


def _has_failed(headers: object) -> bool:
    """Whether these headers, as text, belong to a failed job. Parses them only if they contain the header's name."""
    return isinstance(headers, str) and _ERROR_WRITTEN in headers and _ERROR in header_json.read(headers)[0]
