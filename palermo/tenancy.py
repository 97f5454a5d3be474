"""What the inspector shows of the tenants of queues."""

from typing import TYPE_CHECKING

from palermo.core.failure import printable
from palermo.core.topology import check_job_queue
from palermo.rows import Listing, Row
from palermo.tenants import Tenant

if TYPE_CHECKING:
    from palermo.inspector import Inspector


def clients(inspector: "Inspector", queue: str, *, offset: int = 0, limit: int = 100) -> Listing:
    """The tenants that have jobs waiting in a queue, those with most first; none for a queue without tenants.

    A row has `tenant`, `queue`, `pending` and `share`. With thousands of them it may be what was counted seconds ago.
    """
    check_job_queue(queue)
    found = inspector._ask(lambda broker: broker.tenants.of(queue), again=True)
    return Listing([client_row(queue, one) for one in found[offset : offset + limit]], len(found))


def shared(inspector: "Inspector") -> dict[str, int]:
    """By queue, how many jobs wait that belong to tenants; without queues that have none."""
    totals = inspector._ask(lambda broker: broker.tenants.totals(), again=True)
    return {queue: totals[queue] for queue in sorted(totals) if totals[queue]}


def clear_client(inspector: "Inspector", queue: str, tenant: str) -> int:
    """Remove the jobs of one tenant that wait in a queue; returns how many. Raises NotFound if it has none."""
    check_job_queue(queue)
    count = inspector._ask(lambda broker: broker.tenants.clear(queue, tenant))
    inspector._acted("clear client", queue=queue, count=count, what=tenant)
    return count


def client_row(queue: str, one: Tenant) -> Row:
    """One tenant of a queue."""
    return {"tenant": printable(one.name), "queue": printable(queue), "pending": one.pending, "share": one.share}
