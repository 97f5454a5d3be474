"""Jobs as rows, with the same headers as on the wire; and the turns of the tenants whose jobs wait in a queue."""

import random
import sqlite3
import uuid
from collections.abc import Iterable
from typing import Any

from palermo.contract.clock import wall_clock
from palermo.core.fair_scheduling import stride
from palermo.core.header_json import dumps, message_with
from palermo.core.message import Message, to_headers
from palermo.core.topology import MAX_PRIORITY, is_failed
from palermo.errors import NotFound

#: The columns that hold a message, in the order of a Row.
COLUMNS = "message_id, content_type, content_encoding, headers, properties, body"

#: The same for a message that is only shown: of its body only so many bytes.
SHOWN_COLUMNS = COLUMNS.replace("body", "coalesce(substr(body, 1, ?), x'')")

#: How many values of a Row are in COLUMNS: all but the instant when it is due, its wire name, its priority, its tenant
#: and the tenant's share.
COLUMN_COUNT = 6

#: The priority of a job that has already waited for its turn or its permit: it goes before all others of its queue.
FRONT_PRIORITY = MAX_PRIORITY + 1

Row = tuple[str, str, str, str, str, bytes, float | None, str, int, str | None, float | None]


def to_row(message: Message) -> Row:
    """The message as values for COLUMNS, and the other values that `insert` needs.

    Raises EncodeError for a header that cannot be kept.
    """
    return (
        message.id,
        message.content_type,
        message.content_encoding,
        dumps(to_headers(message)),
        dumps(message.properties) if message.properties else "",
        message.body,
        message.run_at,
        message.job,
        priority_of(message),
        message.tenant or None,
        message.share,
    )


def priority_of(message: Message) -> int:
    """The message's priority as a row has it: SQLite takes no integer of more than 64 bits."""
    return max(0, min(MAX_PRIORITY, message.priority))


def from_row(row: Iterable[Any], taken_from: str | None) -> Message:
    """The message in the values of COLUMNS, as taken from this queue; `taken_from` is None for a scheduled job.

    It never raises: `defect` says what cannot be read. One row must not keep all that wait behind it.
    """
    message_id, content_type, content_encoding, headers, properties, body = row
    return message_with(
        headers,
        properties,
        message_id=_text(message_id),
        content_type=_text(content_type),
        content_encoding=_text(content_encoding),
        body=body if isinstance(body, bytes) else _text(body).encode(),
        taken_from=taken_from,
        new_id=_new_id,
    )


def _text(value: Any) -> str:
    """A value of a column for text, which may hold any other as well."""
    if isinstance(value, str):
        return value
    return value.decode(errors="backslashreplace") if isinstance(value, bytes) else str(value)


def insert(db: sqlite3.Connection, exchange: str, queue: str, row: Row) -> None:
    """Put a message at the end of a queue, which is made if need be; or among the scheduled jobs if it is due later."""
    insert_many(db, exchange, [(queue, row)])


def insert_many(db: sqlite3.Connection, exchange: str, rows: Iterable[tuple[str, Row]]) -> None:
    """Do as `insert` does, for many messages."""
    now, numbers = wall_clock(), dict[str, int]()
    due: list[tuple[Any, ...]] = []
    later: list[tuple[Any, ...]] = []
    tenant_jobs: dict[int, list[tuple[str, float | None]]] = {}
    for queue, row in rows:
        run_at, job = row[6], row[7]
        if run_at is not None and run_at > now and not is_failed(queue):
            later.append((exchange, queue, job, run_at, *row[:COLUMN_COUNT]))
            continue
        if queue not in numbers:
            numbers[queue] = declare_queue(db, exchange, queue)
        priority, tenant, share = row[8:]
        if tenant is not None and not is_failed(queue) and priority != FRONT_PRIORITY:
            tenant_jobs.setdefault(numbers[queue], []).append((tenant, share))
        else:
            tenant = None
        due.append((numbers[queue], tenant, priority, *row[:COLUMN_COUNT]))
    db.executemany(f"insert into job (queue, tenant, priority, {COLUMNS}) values (?, ?, ?, ?, ?, ?, ?, ?, ?)", due)
    for number, jobs in tenant_jobs.items():
        add_to_tenants(db, number, jobs)
    if later:
        db.executemany(
            f"insert into later (exchange, queue, job, run_at, {COLUMNS}) values (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)", later
        )


#: The condition of the queues that are shown and served. Another program may have written a name that is no text; such
#: rows are passed over, here and elsewhere, and `palermo doctor` names them.
LISTED = "exchange = ? and not hidden and typeof(name) = 'text'"


def declare_queue(db: sqlite3.Connection, exchange: str, queue: str) -> int:
    """The number of the queue, which is made or shown again if need be."""
    found = db.execute("select id, hidden from queue where exchange = ? and name = ?", (exchange, queue)).fetchall()
    if not found:
        return int(db.execute("insert into queue (exchange, name) values (?, ?)", (exchange, queue)).lastrowid or 0)
    ((number, hidden),) = found
    if hidden:
        db.execute("update queue set hidden = 0 where id = ?", (number,))
    return int(number)


def queue_number(db: sqlite3.Connection, exchange: str, queue: str, path: str) -> int:
    """The number of a queue that is shown, in the file at this path. Raises NotFound."""
    query = "select id from queue where exchange = ? and name = ? and not hidden"
    found = db.execute(query, (exchange, queue)).fetchone()
    if found is None:
        raise NotFound(f"there is no queue {queue!r} in {path}. `palermo queues` lists the queues.")
    return int(found[0])


def _new_id() -> str:
    return str(uuid.uuid4())


#: SQL for the first job of the tenant that has the next turn in a queue.
TENANTS_NEXT_JOB = (
    "(select (select id from job where queue = t.queue and tenant = t.name and holder is null"
    " order by priority desc, id limit 1)"
    " from tenant t where t.queue = ? order by t.mark, t.name limit 1)"
)


def add_to_tenants(db: sqlite3.Connection, queue: int, jobs: Iterable[tuple[str, float | None]]) -> None:
    """Count jobs of these tenants that have come into the queue, with the shares that they name."""
    db.executemany(
        "insert into tenant (queue, name, share, mark, waiting) values (:queue, :tenant, coalesce(:share, 1),"
        " coalesce((select mark from turn where queue = :queue), 0) + 1 / coalesce(:share, 1.0), 1)"
        " on conflict do update set waiting = waiting + 1, share = coalesce(:share, share)",
        ({"queue": queue, "tenant": tenant, "share": share} for tenant, share in jobs),
    )


def take_turn(db: sqlite3.Connection, queue: int, tenant: str, order: str) -> None:
    """Note that a job of this tenant was taken, and give the other tenants their turns."""
    rows = db.execute(
        "select mark, share, waiting from tenant where queue = ? and name = ?", (queue, tenant)
    ).fetchall()
    for mark, share, waiting in rows:
        db.execute(
            "insert into turn (queue, mark) values (:queue, :mark) on conflict do update set mark = max(mark, :mark)",
            {"queue": queue, "mark": mark},
        )
        if waiting > 0:
            values = (mark + stride(share, order, random.random()), queue, tenant)
            db.execute("update tenant set mark = ? where queue = ? and name = ?", values)
        else:
            db.execute("delete from tenant where queue = ? and name = ?", (queue, tenant))
