"""The tenants of queues, in tables beside the jobs: who has some waiting, and whose turn it is."""

import asyncio
import random
import sqlite3
from collections.abc import Iterable, Mapping

from palermo.brokers.sqlite.store import Store
from palermo.brokers.sqlite.values import loads
from palermo.core.shares import stride
from palermo.errors import NotFound
from palermo.tenants import Tenant

#: Jobs removed in one transaction.
_STEP = 2_000

#: How the header that names a tenant stands in the text of a job's headers.
_WRITTEN = '"tenant":'

#: SQL for the oldest job of the tenant whose turn it is in a queue.
FIRST = (
    "(select (select id from job where queue = t.queue and tenant = t.name and holder is null order by id limit 1)"
    " from tenant t where t.queue = ? order by t.mark, t.name limit 1)"
)


def whose(headers: str) -> tuple[str | None, float | None]:
    """The tenant that these headers, as text, name, and its share; None for nobody."""
    if _WRITTEN not in headers:
        return None, None
    found = loads(headers)
    tenant, share = found.get("tenant"), found.get("share")
    return (tenant or None) if isinstance(tenant, str) else None, share if isinstance(share, int | float) else None


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


class Tenancy:
    """See palermo.tenants.Tenants."""

    def __init__(self, store: Store, exchange: str) -> None:
        self._store = store
        self._exchange = exchange

    async def of(self, queue: str) -> list[Tenant]:
        def find(db: sqlite3.Connection) -> list[Tenant]:
            rows = db.execute(
                "select tenant.name, waiting, share from tenant join queue on queue.id = tenant.queue"
                " where exchange = ? and queue.name = ? and waiting > 0 order by waiting desc, tenant.name",
                (self._exchange, queue),
            ).fetchall()
            return [Tenant(name=name, pending=waiting, share=share) for name, waiting, share in rows]

        return await self._store.read(find)

    async def totals(self) -> Mapping[str, int]:
        def find(db: sqlite3.Connection) -> Mapping[str, int]:
            rows = db.execute(
                "select queue.name, sum(waiting) from tenant join queue on queue.id = tenant.queue"
                " where exchange = ? group by queue.name",
                (self._exchange,),
            ).fetchall()
            return dict(rows)

        return await self._store.read(find)

    async def clear(self, queue: str, tenant: str) -> int:
        def step(db: sqlite3.Connection) -> int:
            return db.execute(
                "delete from job where id in (select job.id from job join queue on queue.id = job.queue"
                " where exchange = ? and name = ? and tenant = ? and holder is null order by job.id limit ?)",
                (self._exchange, queue, tenant, _STEP),
            ).rowcount

        removed = 0
        while done := await self._store.write(step):
            removed += done
            await asyncio.sleep(0)
        if not removed:
            raise NotFound(
                f"no jobs of tenant {tenant!r} wait in queue {queue!r}; `palermo clients` lists those that do."
            )
        return removed
