"""Queues: what waits in them, and what can be done to them."""

from fastapi import APIRouter

from palermo.webui import actions
from palermo.webui.api.rows import Queues, Removed, problems
from palermo.webui.site import Visiting

router = APIRouter(prefix="/queues", tags=["queues"], responses=problems())


@router.get("")
def queues(visit: Visiting) -> Queues:
    """All queues by name, `failed` always among them."""
    rows = visit.inspector.queues()
    return Queues.model_validate({"rows": rows, "total": len(rows), "page": 1, "limit": len(rows)})


@router.post("/{name:palermo}/purge")
def purge(visit: Visiting, name: str) -> Removed:
    """Remove all jobs that wait in a queue; what a worker holds is left to it."""
    return Removed(removed=actions.purge(visit, name))
