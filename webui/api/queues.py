"""Queues: what waits in them, and what can be done to them."""

from fastapi import APIRouter

from palermo.webui import actions, looks
from palermo.webui.api.rows import (
    PROBLEM_RESPONSES,
    Clients,
    Jobs,
    PageLimit,
    PageNumber,
    QueueRow,
    Queues,
    Removed,
)
from palermo.webui.site import Visiting

router = APIRouter(prefix="/queues", tags=["queues"], responses=PROBLEM_RESPONSES)


@router.get("", name="api_queues")
def queues(visit: Visiting) -> Queues:
    """All queues by name, `failed` always among them."""
    rows = visit.inspector.queues()
    return Queues.model_validate({"rows": rows, "total": len(rows), "page": 1, "limit": len(rows)})


@router.get("/{name:palermo}/jobs", name="api_queue_jobs")
def jobs(visit: Visiting, name: str, page: PageNumber = 1, limit: PageLimit = 100, newest: bool = False) -> Jobs:
    """Jobs that wait in a queue, oldest first.

    Looking takes none and leaves the order as it was. Quorum queues are not read (409): it
    would count against the delivery limit of their jobs.
    """
    listing = looks.jobs(visit, name, page=page, limit=limit, newest=newest)
    return Jobs.model_validate({"rows": listing.rows, "total": listing.total, "page": page, "limit": limit})


@router.get("/{name:palermo}/clients", name="api_clients")
def clients(visit: Visiting, name: str, page: PageNumber = 1, limit: PageLimit = 100) -> Clients:
    """The clients that have jobs waiting in a queue, those with most first.

    With thousands of them it may be what was counted some seconds ago.
    """
    listing = visit.inspector.clients(name, offset=(page - 1) * limit, limit=limit)
    return Clients.model_validate({"rows": listing.rows, "total": listing.total, "page": page, "limit": limit})


@router.delete("/{name:palermo}/clients/{tenant:palermo}", name="api_clear_client")
def clear_client(visit: Visiting, name: str, tenant: str) -> Removed:
    """Remove the jobs that a client has waiting in a queue; what runs goes on. Role: admin."""
    return Removed(removed=actions.clear_client(visit, name, tenant))


@router.post("/{name:palermo}/pause", name="api_pause")
def pause(visit: Visiting, name: str) -> QueueRow:
    """Have no worker take jobs from a queue until it is resumed; running jobs go on. Role: operator."""
    return QueueRow.model_validate(actions.pause(visit, name))


@router.post("/{name:palermo}/resume", name="api_resume")
def resume(visit: Visiting, name: str) -> QueueRow:
    """End a pause. Role: operator."""
    return QueueRow.model_validate(actions.resume(visit, name))


@router.post("/{name:palermo}/purge", name="api_purge")
def purge(visit: Visiting, name: str) -> Removed:
    """Remove all jobs that wait in a queue; what a worker holds is left to it. Role: admin."""
    return Removed(removed=actions.purge(visit, name))


@router.delete("/{name:palermo}", name="api_delete_queue")
def delete(visit: Visiting, name: str) -> Removed:
    """Remove a queue and the jobs that wait in it. Role: admin."""
    return Removed(removed=actions.delete_queue(visit, name))
