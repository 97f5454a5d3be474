"""Jobs as rows, with the same headers as on the wire, and the turns of a queue's tenants."""

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

#: Columns of a message, in the order of a Row.
COLUMNS = "message_id, content_type, content_encoding, headers, properties, body"

#: The same for a message that is only displayed, with a part of its body.
SHOWN_COLUMNS = COLUMNS.replace("body", "coalesce(substr(body, 1, ?), x'')")

#: Number of a Row's values that are in COLUMNS. The others are the due time, wire name, priority, tenant and share.
COLUMN_COUNT = 6

#: Priority of a job that has had its turn or got its permit: it precedes all others in its queue.
FRONT_PRIORITY = MAX_PRIORITY + 1

Row = tuple[str, str, str, str, str, bytes, float | None, str, int, str | None, float | None]


def to_row(message: Message) -> Row:
    """The values of a message for COLUMNS, and the others that `insert` needs.

    Raises EncodeError for a header that can't be stored.
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
    """The message's priority as stored, limited to SQLite's 64 bits."""
    return max(0, min(MAX_PRIORITY, message.priority))


def from_row(row: Iterable[Any], taken_from: str | None) -> Message:
    """The message in the values of COLUMNS. `taken_from` is its queue, or None for a scheduled job.

    Never raises: `defect` describes an unreadable part. One broken row must not block the rows behind it.
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
    """The value of a column as text, whatever its type."""
    if isinstance(value, str):
        return value
    return value.decode(errors="backslashreplace") if isinstance(value, bytes) else str(value)


def insert(db: sqlite3.Connection, exchange: str, queue: str, row: Row) -> None:
    """Append a message to a queue, creating it if necessary, or schedule it if it is due later."""
    insert_many(db, exchange, [(queue, row)])


def insert_many(db: sqlite3.Connection, exchange: str, rows: Iterable[tuple[str, Row]]) -> None:
    """Like `insert`, for many messages."""
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


#: SQL condition of the queues that are listed and served. Rows whose name isn't text are skipped, here and elsewhere;
#: another program wrote them, and `palermo doctor` reports them.
LISTED = "exchange = ? and not hidden and typeof(name) = 'text'"


def declare_queue(db: sqlite3.Connection, exchange: str, queue: str) -> int:
    """The number of the queue, which is created or made visible again if necessary."""
    found = db.execute("select id, hidden from queue where exchange = ? and name = ?", (exchange, queue)).fetchall()
    if not found:
        return int(db.execute("insert into queue (exchange, name) values (?, ?)", (exchange, queue)).lastrowid or 0)
    ((number, hidden),) = found
    if hidden:
        db.execute("update queue set hidden = 0 where id = ?", (number,))
    return int(number)


def queue_number(db: sqlite3.Connection, exchange: str, queue: str, path: str) -> int:
    """The number of a visible queue, in the file at this path. Raises NotFound."""
    query = "select id from queue where exchange = ? and name = ? and not hidden"
    found = db.execute(query, (exchange, queue)).fetchone()
    if found is None:
        raise NotFound(f"there is no queue {queue!r} in {path}. `palermo queues` lists the queues.")
    return int(found[0])


def _new_id() -> str:
    return str(uuid.uuid4())


#: SQL for the first job of the tenant whose turn is next in a queue.
TENANTS_NEXT_JOB = (
    "(select (select id from job where queue = t.queue and tenant = t.name and holder is null"
    " order by priority desc, id limit 1)"
    " from tenant t where t.queue = ? order by t.mark, t.name limit 1)"
)


def add_to_tenants(db: sqlite3.Connection, queue: int, jobs: Iterable[tuple[str, float | None]]) -> None:
    """Count new jobs of these tenants in the queue, and store the shares in the jobs."""
    db.executemany(
        "insert into tenant (queue, name, share, mark, waiting) values (:queue, :tenant, coalesce(:share, 1),"
        " coalesce((select mark from turn where queue = :queue), 0) + 1 / coalesce(:share, 1.0), 1)"
        " on conflict do update set waiting = waiting + 1, share = coalesce(:share, share)",
        ({"queue": queue, "tenant": tenant, "share": share} for tenant, share in jobs),
    )


def take_turn(db: sqlite3.Connection, queue: int, tenant: str, order: str) -> None:
    """Record that a job of this tenant was taken, so that other tenants get their turns."""
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
