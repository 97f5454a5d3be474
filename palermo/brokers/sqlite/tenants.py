"""The tenants of queues, in tables beside the jobs: who has some waiting, and whose turn it is."""

import random
import sqlite3
from collections.abc import Iterable

from palermo.core.shares import stride

#: SQL for the first job of the tenant whose turn it is in a queue.
FIRST = (
    "(select (select id from job where queue = t.queue and tenant = t.name and holder is null"
    " order by priority desc, id limit 1)"
    " from tenant t where t.queue = ? order by t.mark, t.name limit 1)"
)


def arrived(db: sqlite3.Connection, queue: int, jobs: Iterable[tuple[str, float | None]]) -> None:
    """Jobs of these tenants, with the shares that they say, have come into the queue."""
    db.executemany(
        "insert into tenant (queue, name, share, mark, waiting) values (?1, ?2, coalesce(?3, 1),"
        " coalesce((select mark from turn where queue = ?1), 0) + 1 / coalesce(?3, 1.0), 1)"
        " on conflict do update set waiting = waiting + 1, share = coalesce(?3, share)",
        ((queue, tenant, share) for tenant, share in jobs),
    )


def served(db: sqlite3.Connection, queue: int, tenant: str, order: str) -> None:
    """A job of this tenant has been taken: the others' turn."""
    rows = db.execute(
        "select mark, share, waiting from tenant where queue = ? and name = ?", (queue, tenant)
    ).fetchall()
    for mark, share, waiting in rows:
        db.execute(
            "insert into turn (queue, mark) values (?1, ?2) on conflict do update set mark = max(mark, ?2)",
            (queue, mark),
        )
        if waiting > 0:
            values = (mark + stride(share, order, random.random()), queue, tenant)
            db.execute("update tenant set mark = ? where queue = ? and name = ?", values)
        else:
            db.execute("delete from tenant where queue = ? and name = ?", (queue, tenant))
