"""The API of single jobs: enqueue one, find one by its id, ask for its status and result, cancel it."""

from typing import Any, Literal

from fastapi import APIRouter
from pydantic import BaseModel, ConfigDict, Field

from palermo.webui import actions
from palermo.webui.api.rows import PROBLEM_RESPONSES, Enqueued, Instant, JobRow
from palermo.webui.site import Visiting
from palermo.webui.state.job import job_result, job_row, job_status

router = APIRouter(prefix="/jobs", tags=["jobs"], responses=PROBLEM_RESPONSES)


class JobStatusRow(BaseModel):
    """The status of a job. Fields that are not known are null or empty."""

    state: Literal["pending", "scheduled", "working", "retrying", "failed", "done", "discarded", "cancelled", "unknown"]
    id: str
    job: str
    queue: str
    attempt: int | None = Field(description="Which run this is or was, from 1.")
    worker: str | None
    started_at: Instant | None
    run_at: Instant | None
    ended_at: Instant | None
    took: float | None = Field(description="Seconds that its last run took.")
    progress: float | None
    text: str
    args: list[Any] | None = Field(description="Of a job that runs; null where they are not known.")
    kwargs: dict[str, Any] | None
    preview: str | None = Field(description="The arguments for people, in one line.")
    error: str = Field(description="The exception's dotted name.")
    message: str
    result_kept: bool | None
    reason: str = Field(description="Why nothing is known of it, or how what is said is known.")


class JobResult(BaseModel):
    """The value that a job returned."""

    id: str
    job: str
    result: Any = Field(description="In what JSON has; values whose names are redacted are masked.")


class NewJob(BaseModel):
    """A job to be enqueued."""

    model_config = ConfigDict(extra="forbid")

    job: str = Field(min_length=1, max_length=255, description="Its wire name, such as shop.tasks.resize.")
    args: list[Any] = Field(default_factory=list)
    kwargs: dict[str, Any] = Field(default_factory=dict)
    queue: str | None = Field(default=None, description="Else the job's own, or the default one.")
    id: str | None = Field(default=None, description="Else one is made.")
    keep_result: bool | None = Field(default=None, description="Whether what it returns is kept; else as declared.")


class Cancelled(BaseModel):
    """The outcome of cancelling a job."""

    id: str
    state: str = Field(description="marked, cancelled, cancelling, done, failed or interrupted.")
    worker: str | None
    job: str | None
    queue: str | None


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
    return JobRow.model_validate(job_row(visit, id, queue=queue))


@router.get("/{id:palermo}/status", name="api_status")
def status(visit: Visiting, id: str) -> JobStatusRow:
    """The status of a job, from the broker and its journal. It is `unknown`, with the reason, if they do not know."""
    return JobStatusRow.model_validate(job_status(visit, id))


@router.get("/{id:palermo}/result", name="api_result")
def result(visit: Visiting, id: str) -> JobResult:
    """The result of a job that is done. 409 if the result is not kept or the job is not done. It does not wait."""
    found = job_result(visit, id)
    return JobResult(id=id, job=found.job, result=found.value)


@router.post("/{id:palermo}/cancel", name="api_cancel")
def cancel(visit: Visiting, id: str) -> Cancelled:
    """Cancel a job: it does not run, or its run is ended. A failed job stays where it is. Role: operator."""
    return Cancelled.model_validate(actions.cancel(visit, id))
