"""The inspector's methods for the tenants of queues: list them, count their jobs, remove the jobs of one."""

from palermo.contract.broker import Tenant
from palermo.contract.rows import Listing, Row
from palermo.core.failure import printable
from palermo.core.topology import check_job_queue
from palermo.inspector.context import Context


def clients(context: Context, queue: str, *, offset: int = 0, limit: int = 100) -> Listing:
    """The tenants that have jobs waiting in a queue, those with most first; none for a queue without tenants.

    A row has `tenant`, `queue`, `pending` and `share`. With thousands of tenants the counts may be seconds old.
    """
    check_job_queue(queue)
    found = context._ask(lambda broker: broker.tenants.of(queue), again=True)
    return Listing([tenant_row(queue, one) for one in found[offset : offset + limit]], len(found))


def shared(context: Context) -> dict[str, int]:
    """By queue, how many waiting jobs belong to tenants; queues without such jobs are left out."""
    totals = context._ask(lambda broker: broker.tenants.totals(), again=True)
    return {queue: totals[queue] for queue in sorted(totals) if totals[queue]}


def clear_client(context: Context, queue: str, tenant: str) -> int:
    """Remove the jobs of one tenant that wait in a queue; returns how many. Raises NotFound if it has none."""
    check_job_queue(queue)
    count = context._ask(lambda broker: broker.tenants.clear(queue, tenant))
    context._record("clear client", queue=queue, count=count, what=tenant)
    return count


def tenant_row(queue: str, one: Tenant) -> Row:
    """One tenant of a queue."""
    return {"tenant": printable(one.name), "queue": printable(queue), "pending": one.pending, "share": one.share}
