"""Workers: who is alive, and what they can be told."""

from typing import Literal

from fastapi import APIRouter

from palermo.webui import actions
from palermo.webui.api.rows import PROBLEM_RESPONSES, Answered, Workers
from palermo.webui.site import Visiting

router = APIRouter(prefix="/workers", tags=["workers"], responses=PROBLEM_RESPONSES)


@router.get("", name="api_workers")
def workers(visit: Visiting) -> Workers:
    """All workers that are alive, by id, with the jobs they run."""
    rows = visit.inspector.workers()
    return Workers.model_validate({"rows": rows, "total": len(rows), "page": 1, "limit": len(rows)})


@router.post("/{id:palermo}/{action}", name="api_control")
def control(visit: Visiting, id: str, action: Literal["quiet", "resume", "stop", "kill", "stack"]) -> Answered:
    """Tell a worker something.

    `quiet`: take no more jobs; `resume`: take them again; `stop`: finish the running ones and
    end; `kill`: give the running ones back and end; `stack`: say what it is doing, as `text`.
    Role: operator; for stop and kill, admin.
    """
    return Answered.model_validate(actions.control(visit, id, action))
