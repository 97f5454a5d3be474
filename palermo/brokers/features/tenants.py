"""List the tenants of a queue, and remove the jobs of one."""

from collections.abc import Mapping

from palermo.brokers.features.steps import StepStore
from palermo.brokers.features.sweep import clear_tenant
from palermo.brokers.features.workflows import Workflows
from palermo.contract.broker import Tenant
from palermo.errors import NotFound


class StepTenants:
    """The tenants of one exchange's queues. See palermo.contract.broker.Tenants."""

    def __init__(self, store: StepStore, workflows: Workflows) -> None:
        self._store = store
        self._workflows = workflows

    async def of(self, queue: str) -> list[Tenant]:
        found = await self._store.tenants(queue)
        return sorted(found, key=lambda tenant: (-tenant.pending, tenant.name))

    async def totals(self) -> Mapping[str, int]:
        return await self._store.tenant_jobs()

    async def clear(self, queue: str, tenant: str) -> int:
        removed = await clear_tenant(self._store, self._workflows, queue, tenant)
        if not removed:
            raise NotFound(
                f"no job of tenant {tenant!r} is waiting in queue {queue!r}; `palermo tenants` lists the tenants."
            )
        return removed
