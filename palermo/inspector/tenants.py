"""`inspector.tenants`: the tenants that share a queue."""

from palermo.contract.broker import Tenant
from palermo.contract.row_types import TenantRow
from palermo.contract.rows import Listing
from palermo.core.failure import printable
from palermo.core.topology import check_job_queue
from palermo.inspector.context import Context


class Tenants(Context):
    """The tenants that share queues."""

    def totals(self) -> dict[str, int]:
        """Return the number of tenants' waiting jobs by queue, without queues that have none."""
        totals = self._ask(lambda broker: broker.tenants.totals(), again=True)
        return {queue: totals[queue] for queue in sorted(totals) if totals[queue]}

    def clear(self, queue: str, tenant: str) -> int:
        """Remove one tenant's waiting jobs from a queue, and return their number. Raises NotFound if it has none."""
        check_job_queue(queue)
        count = self._ask(lambda broker: broker.tenants.clear(queue, tenant))
        self._record("clear tenant", queue=queue, count=count, what=tenant)
        return count

    def list(self, queue: str, tenant: str | None = None, *, offset: int = 0, limit: int = 100) -> Listing[TenantRow]:
        """List the tenants with waiting jobs in a queue, largest first.

        `tenant` selects one of them. With thousands of tenants the counts may be seconds old. Raises NotFound for a
        queue that doesn't exist.
        """
        check_job_queue(queue)
        found = self._ask(lambda broker: broker.tenants.of(queue), again=True)
        if not found:
            self._browse(queue, limit=0)
        if tenant is not None:
            found = [one for one in found if one.name == tenant]
        return Listing([_tenant_row(queue, one) for one in found[offset : offset + limit]], len(found))


def _tenant_row(queue: str, one: Tenant) -> TenantRow:
    return {"tenant": printable(one.name), "queue": printable(queue), "pending": one.pending, "share": one.share}
