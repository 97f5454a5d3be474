"""The fair queue: how many jobs each tenant of a queue has waiting, and which tenant has the next turn."""

import random
import sqlite3
from collections.abc import Iterable

from palermo.core.fair_scheduling import stride

#: SQL for the first job of the tenant that has the next turn in a queue.
NEXT_JOB = (
    "(select (select id from job where queue = t.queue and tenant = t.name and holder is null"
    " order by priority desc, id limit 1)"
    " from tenant t where t.queue = ? order by t.mark, t.name limit 1)"
)


def add_jobs(db: sqlite3.Connection, queue: int, jobs: Iterable[tuple[str, float | None]]) -> None:
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
