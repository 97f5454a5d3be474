"""The API of single jobs: enqueue one, find one by its id, ask for its status and result, cancel it."""

from fastapi import APIRouter

from palermo.webui import actions
from palermo.webui.api.rows import PROBLEM_RESPONSES, Cancelled, Enqueued, JobResult, JobRow, JobStatusRow, NewJob
from palermo.webui.base.site import Visiting
from palermo.webui.state import job_results, listings

router = APIRouter(prefix="/jobs", tags=["jobs"], responses=PROBLEM_RESPONSES)


@router.post("", name="api_enqueue", status_code=201)
def enqueue(visit: Visiting, new: NewJob) -> Enqueued:
    """Enqueue a job. The answer comes once the broker has stored it.

    If the job's code is imported here (`palermo web MODULE`), its arguments are checked
    against its signature, and its hooks run. Role: operator.
    """
    job = actions.enqueue(visit, new.job, new.args, new.kwargs, queue=new.queue, id=new.id, keep_result=new.keep_result)
    return Enqueued(id=job.id, job=job.job, queue=job.queue)


@router.get("/{id:palermo}", name="api_job")
def job(visit: Visiting, id: str, queue: str = "") -> JobRow:
    """One job that runs, waits or has failed.

    Waiting jobs are searched among the first and the last of `queue`, or of each queue.
    """
    return JobRow.model_validate(listings.job(visit, id, queue=queue))


@router.get("/{id:palermo}/status", name="api_status")
def status(visit: Visiting, id: str) -> JobStatusRow:
    """The status of a job, from the broker and its journal. It is `unknown`, with the reason, if they do not know."""
    return JobStatusRow.model_validate(job_results.status(visit, id).row())


@router.get("/{id:palermo}/result", name="api_result")
def result(visit: Visiting, id: str) -> JobResult:
    """The result of a job that is done. 409 if the result is not kept or the job is not done. It does not wait."""
    found = job_results.result(visit, id)
    return JobResult(id=id, job=found.job, result=found.value)


@router.post("/{id:palermo}/cancel", name="api_cancel")
def cancel(visit: Visiting, id: str) -> Cancelled:
    """Cancel a job: it does not run, or its run is ended. A failed job stays where it is. Role: operator."""
    return Cancelled.model_validate(actions.cancel(visit, id))
