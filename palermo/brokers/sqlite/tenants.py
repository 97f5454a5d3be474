"""Lists the tenants that have jobs waiting in a queue, and removes the jobs of one tenant."""

import sqlite3
from collections.abc import Mapping

from palermo.brokers.features.steps import StepStore
from palermo.brokers.features.sweep import clear_tenant
from palermo.brokers.features.workflows import Workflows
from palermo.brokers.sqlite.file.store import Store
from palermo.contract.broker import Tenant
from palermo.errors import NotFound


class SqliteTenants:
    """The tenants of one exchange's queues. See palermo.contract.broker.Tenants."""

    def __init__(self, store: Store, steps: StepStore, workflows: Workflows, exchange: str) -> None:
        self._store = store
        self._workflows = workflows
        self._steps = steps
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
        removed = await clear_tenant(self._steps, self._workflows, queue, tenant)
        if not removed:
            raise NotFound(
                f"no jobs of tenant {tenant!r} wait in queue {queue!r}; `palermo tenants` lists those that do."
            )
        return removed
