"""Lists the tenants that have jobs waiting in a queue, and removes the jobs of one tenant."""

from collections.abc import Mapping

from palermo.brokers.redis.store import Store
from palermo.brokers.redis.sweep import clear_tenant
from palermo.contract.broker import Tenant
from palermo.errors import NotFound


class RedisTenants:
    """The tenants of one exchange's queues. See palermo.contract.broker.Tenants."""

    def __init__(self, store: Store) -> None:
        self._store = store

    async def of(self, queue: str) -> list[Tenant]:
        found = [
            Tenant(name=name.decode(), pending=pending, share=float(share))
            for name, pending, share in await self._store.run("look", "tenants", queue)
            if pending
        ]
        return sorted(found, key=lambda tenant: (-tenant.pending, tenant.name))

    async def totals(self) -> Mapping[str, int]:
        counts = await self._store.fields("tenant-jobs")
        return {queue.decode(): int(count) for queue, count in counts.items()}

    async def clear(self, queue: str, tenant: str) -> int:
        removed = await clear_tenant(self._store, queue, tenant)
        if not removed:
            raise NotFound(
                f"no jobs of tenant {tenant!r} wait in queue {queue!r}; `palermo tenants` lists those that do."
            )
        return removed
