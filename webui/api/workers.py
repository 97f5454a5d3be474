"""The API for workers: list the running workers, and send them orders."""

from typing import Literal

from pydantic import BaseModel, ConfigDict, Field

from palermo.contract.row_types import WorkerRow, WorkerUsageRow
from palermo.jobs.redaction import masked_worker
from palermo.webui import actions
from palermo.webui.api.rows import PROBLEM_RESPONSES, Rows
from palermo.webui.site import Visiting
from palermo.webui.threads import Router

router = Router(prefix="/workers", tags=["workers"], responses=PROBLEM_RESPONSES)

Order = Literal["quiet", "resume", "stop", "kill", "stack"]


class Answered(BaseModel):
    """The answer of one worker to an order."""

    model_config = ConfigDict(extra="allow")

    worker: str
    answered: bool = Field(description="False if it did not answer in time; it may still obey.")


@router.get("", name="api_workers")
def workers(visit: Visiting) -> Rows[WorkerRow]:
    """All running workers, by id, with their running jobs."""
    return Rows[WorkerRow].whole([masked_worker(row, visit.site.hidden) for row in visit.inspector.workers.list()])


@router.get("/{id:palermo}", name="api_worker")
def worker(visit: Visiting, id: str) -> WorkerUsageRow:
    """One running worker, by its id."""
    return masked_worker(visit.inspector.workers.show(id), visit.site.hidden)


@router.post("/{action}", name="api_control_all")
def control_all(visit: Visiting, action: Order) -> list[Answered]:
    """Send an order to all workers. Returns each worker's answer. Roles are as for one worker."""
    return [Answered.model_validate(row) for row in actions.control(visit, None, action)]


@router.post("/{id:palermo}/{action}", name="api_control")
def control(visit: Visiting, id: str, action: Order) -> Answered:
    """Send an order to a worker.

    `quiet`: take no more jobs. `resume`: take jobs again. `stop`: finish the running jobs and end. `kill`: requeue
    the running jobs and end. `stack`: return the stacks of its running jobs, as `text`. Role: operator; admin for
    stop and kill.
    """
    return Answered.model_validate(actions.control(visit, [id], action)[0])
