"""Jobs: enqueued by hand, found by id, cancelled."""

from fastapi import APIRouter

from palermo.webui import actions, looks, outcomes
from palermo.webui.api.rows import PROBLEM_RESPONSES, Cancelled, Enqueued, JobResult, JobRow, JobStatusRow, NewJob
from palermo.webui.site import Visiting

router = APIRouter(prefix="/jobs", tags=["jobs"], responses=PROBLEM_RESPONSES)


@router.post("", name="api_enqueue", status_code=201)
def enqueue(visit: Visiting, new: NewJob) -> Enqueued:
    """Enqueue a job; returns once the broker has stored it.

    Where the job's code is imported here (`palermo web MODULE`), its arguments are checked
    against its signature and its hooks run. Role: operator.
    """
    job = actions.enqueue(visit, new.job, new.args, new.kwargs, queue=new.queue, id=new.id, keep_result=new.keep_result)
    return Enqueued(id=job.id, job=job.job, queue=job.queue)


@router.get("/{id:palermo}", name="api_job")
def job(visit: Visiting, id: str, queue: str = "") -> JobRow:
    """One job that runs, waits or has failed.

    Waiting jobs are looked for in `queue`, or in all queues, among the first and the last of each.
    """
    return JobRow.model_validate(looks.job(visit, id, queue=queue))


@router.get("/{id:palermo}/status", name="api_status")
def status(visit: Visiting, id: str) -> JobStatusRow:
    """What has become of a job, as far as the broker and its journal tell; `unknown` with the reason otherwise."""
    return JobStatusRow.model_validate(outcomes.status(visit, id).row())


@router.get("/{id:palermo}/result", name="api_result")
def result(visit: Visiting, id: str) -> JobResult:
    """What a job that is done returned; 409 where that is not kept, or it is not done. Nothing is waited for."""
    found = outcomes.result(visit, id)
    return JobResult(id=id, job=found.job, result=found.value)


@router.post("/{id:palermo}/cancel", name="api_cancel")
def cancel(visit: Visiting, id: str) -> Cancelled:
    """Have a job not run, or end where it runs. A failed one is left where it is. Role: operator."""
    return Cancelled.model_validate(actions.cancel(visit, id))
