"""The API for queues: list them and their jobs, and pause, resume, purge and delete them."""

from pydantic import BaseModel

from palermo.contract.row_types import JobRow, QueueRow, TenantRow
from palermo.webui import actions
from palermo.webui.api.rows import PROBLEM_RESPONSES, PageLimit, PageNumber, Removed, Rows, Text
from palermo.webui.filters import asked_filter
from palermo.webui.site import Visiting
from palermo.webui.state import listings
from palermo.webui.threads import Router

router = Router(prefix="/queues", tags=["queues"], responses=PROBLEM_RESPONSES)


class AllPaused(BaseModel):
    """Whether all queues are paused."""

    all_paused: bool


@router.get("", name="api_queues")
def queues(visit: Visiting) -> Rows[QueueRow]:
    """All queues by name. `failed` is always included."""
    return Rows[QueueRow].whole(visit.inspector.queues.list())


@router.get("/{name:palermo}/jobs", name="api_queue_jobs")
def jobs(
    visit: Visiting,
    name: str,
    filter: Text = None,
    page: PageNumber = 1,
    limit: PageLimit = 100,
    newest: bool = False,
) -> Rows[JobRow]:
    """Waiting jobs of a queue, oldest first. A filter is compared with the first 10,000 of them.

    Reading takes no job and keeps the order. Quorum queues aren't read (409), because that would count towards the
    delivery limit of their jobs.
    """
    wanted = asked_filter({"filter": filter})
    listing = listings.jobs(visit, name, page=page, limit=limit, newest=newest, filter=wanted)
    return Rows[JobRow].of(listing.rows, total=listing.total, page=page, limit=limit)


@router.get("/{name:palermo}/tenants", name="api_tenants")
def tenants(
    visit: Visiting, name: str, tenant: str | None = None, page: PageNumber = 1, limit: PageLimit = 100
) -> Rows[TenantRow]:
    """The tenants with waiting jobs in a queue, largest first, or only one tenant.

    With thousands of tenants the counts may be a few seconds old.
    """
    listing = visit.inspector.tenants.list(name, tenant, offset=(page - 1) * limit, limit=limit)
    return Rows[TenantRow].of(listing.rows, total=listing.total, page=page, limit=limit)


@router.delete("/{name:palermo}/tenants/{tenant:palermo}", name="api_clear_tenant")
def clear_tenant(visit: Visiting, name: str, tenant: str) -> Removed:
    """Remove a tenant's waiting jobs from a queue. Running jobs continue. Role: admin."""
    return Removed(removed=actions.clear_tenant(visit, name, tenant))


@router.post("/pause", name="api_pause_all")
def pause_all(visit: Visiting) -> AllPaused:
    """Pause all queues for all workers until they are resumed, including queues created later. Role: operator."""
    actions.pause_all(visit)
    return AllPaused(all_paused=True)


@router.post("/resume", name="api_resume_all")
def resume_all(visit: Visiting) -> AllPaused:
    """End the pause of all queues. Queues that were paused by name stay paused. Role: operator."""
    actions.resume_all(visit)
    return AllPaused(all_paused=False)


@router.post("/{name:palermo}/pause", name="api_pause")
def pause(visit: Visiting, name: str) -> QueueRow:
    """Pause a queue: no worker takes jobs from it until it is resumed. Running jobs continue. Role: operator."""
    return actions.pause(visit, name)


@router.post("/{name:palermo}/resume", name="api_resume")
def resume(visit: Visiting, name: str) -> QueueRow:
    """Resume a paused queue. It still stays paused while all queues are paused. Role: operator."""
    return actions.resume(visit, name)


@router.post("/{name:palermo}/purge", name="api_purge")
def purge(visit: Visiting, name: str) -> Removed:
    """Remove all waiting jobs of a queue. Jobs that a worker holds stay. Role: admin."""
    return Removed(removed=actions.purge(visit, name))


@router.post("/purge", name="api_purge_all")
def purge_all(visit: Visiting) -> Removed:
    """Remove all waiting jobs of all queues. Failed, scheduled and running jobs stay. Role: admin."""
    return Removed(removed=sum(actions.purge_all(visit).values()))


@router.delete("/{name:palermo}", name="api_delete_queue")
def delete(visit: Visiting, name: str) -> Removed:
    """Delete a queue with its waiting jobs. Role: admin."""
    return Removed(removed=actions.delete_queue(visit, name))
