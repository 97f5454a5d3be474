"""Jobs waiting in a queue, as sweeps and purges read and remove them."""

import json
import sqlite3
from collections.abc import Collection
from typing import Any

from palermo.brokers.sqlite.tables.jobs import COLUMNS, from_row
from palermo.brokers.sqlite.tables.permits import delete_jobs
from palermo.core.message import Message
from palermo.core.unique_keys import UNIQUE_KEY
from palermo.core.workflow import WORKFLOW

#: Maximum number of messages, and bytes of their bodies, in memory.
_STEP = 200
_STEP_BYTES = 8 * 1024 * 1024

_PURGE_STEP = 2_000

#: SQL condition of the jobs that wait in a queue.
_IN_QUEUE = "queue = (select id from queue where exchange = ? and name = ?) and holder is null"


def part(
    db: sqlite3.Connection, exchange: str, *, queue: str, after: int, last: int, ids: Collection[str]
) -> list[tuple[int, Message]]:
    """The next waiting messages with their numbers; with `ids`, only those."""
    found: list[tuple[int, Message]] = []
    size = 0
    chosen = "and message_id in (select value from json_each(?))" if ids else ""
    cursor = db.execute(
        f"select id, {COLUMNS} from job where {_IN_QUEUE} and id > ? and id <= ? {chosen} order by id limit ?",
        (exchange, queue, after, last, *((json.dumps(list(ids)),) if ids else ()), _STEP),
    )
    for id, *row in cursor:
        found.append((id, from_row(row, queue)))
        size += len(row[-1])
        if size > _STEP_BYTES:
            break
    cursor.close()
    return found


def purge_some(
    db: sqlite3.Connection, exchange: str, *, queue: str, tenant: str, last: int, leave_keyed: bool
) -> tuple[int, bool, list[tuple[str, Any, Message]]]:
    """See StepStore.purge_some. The place "" has all jobs of a queue; a tenant's jobs are also in its own place."""
    where = f"{_IN_QUEUE} and id <= ?"
    values: tuple[Any, ...] = (exchange, queue, last)
    if tenant:
        where, values = f"{where} and tenant = ?", (*values, tenant)
    if leave_keyed:
        rows = db.execute(
            f"select id, {COLUMNS} from job where {where}"
            " and (instr(headers, ?) or instr(headers, ?)) order by id limit ?",
            (*values, f'"{UNIQUE_KEY}"', f'"{WORKFLOW}"', _PURGE_STEP),
        ).fetchall()
        if rows:
            return 0, True, [("", number, from_row(row, queue)) for number, *row in rows]
    removed = delete_jobs(db, f"id in (select id from job where {where} order by id limit ?)", (*values, _PURGE_STEP))
    return removed, removed > 0, []
