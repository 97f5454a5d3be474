"""The API for single jobs: enqueue, find and cancel a job, and get its status and result."""

from collections.abc import Iterable
from dataclasses import fields
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, create_model

from palermo.client.handle import Conflict
from palermo.client.prepare import plain_note
from palermo.client.status import INSTANTS, JobStatus
from palermo.contract.row_types import Instant, JobRow
from palermo.core.topology import MAX_PRIORITY
from palermo.jobs import option_kinds, registry
from palermo.jobs.option_kinds import Choice, Flag, Headers, Kind, UniqueFor
from palermo.jobs.options import ENQUEUE_OPTIONS, OPTIONS, EnqueueOptions
from palermo.webui import actions
from palermo.webui.api.rows import PROBLEM_RESPONSES, UNSERVED_MEANS, Enqueued
from palermo.webui.filters import instant_of
from palermo.webui.site import Visiting
from palermo.webui.state.job import job_result, job_row, job_status
from palermo.webui.state.journal_views import recorded_job
from palermo.webui.state.live_state import live_state
from palermo.webui.threads import Router

router = Router(prefix="/jobs", tags=["jobs"], responses=PROBLEM_RESPONSES)


if TYPE_CHECKING:
    JobStatusRow = dict[str, Any]
else:
    JobStatusRow = create_model(
        "JobStatusRow",
        __doc__="The attributes of palermo.JobStatus, with instants as ISO 8601.",
        **{each.name: (Instant | None if each.name in INSTANTS else each.type, ...) for each in fields(JobStatus)},
    )


class JobResult(BaseModel):
    """The return value of a job."""

    id: str
    job: str
    result: Any = Field(description="The value as JSON, with redacted values masked.")


#: Strict, because true is not a duration.
Seconds = Annotated[float, Field(strict=True, gt=0)]
Number = Annotated[float, Field(strict=True)]
Count = Annotated[int, Field(strict=True)]


def _type_of(kind: Kind) -> Any:
    """Return the JSON type of an option."""
    match kind:
        case UniqueFor(words):
            return Literal[words] | Seconds
        case Choice(words):
            return Literal[words]
        case option_kinds.Seconds():
            return Seconds
        case option_kinds.Count():
            return Count
        case option_kinds.Number():
            return Number
        case Flag():
            return bool
        case Headers():
            return dict[str, str | int | float | bool]
        case _:
            return str


def option_fields(names: Iterable[str]) -> dict[str, Any]:
    """Return optional fields for these job options, for `create_model`."""
    rows = ((name, OPTIONS[name]) for name in names)
    return {name: (_type_of(row.kind) | None, Field(default=None, description=row.help)) for name, row in rows}


if TYPE_CHECKING:
    _Options = BaseModel
else:
    #: The options of `.options()`, except those that NewJob declares itself.
    _Options = create_model(
        "_Options",
        **option_fields(name for name in ENQUEUE_OPTIONS if name not in ("queue", "id", "delay", "run_at")),
    )


class NewJob(_Options):
    """A job to enqueue. Its options are as in `.options()`; a missing option has its declared value."""

    model_config = ConfigDict(extra="forbid")

    job: str = Field(min_length=1, max_length=255, description="Its wire name, such as shop.tasks.resize.")
    args: list[Any] = Field(default_factory=list)
    kwargs: dict[str, Any] = Field(default_factory=dict)
    queue: str | None = Field(default=None, description="By default the job's own, or the default queue.")
    id: str | None = Field(default=None, description="By default a new one.")
    delay: Seconds | None = Field(default=None, description="Seconds from now.")
    run_at: str | Number | None = Field(default=None, description="ISO 8601 with a time zone, or Unix seconds.")


class EnqueuedJob(Enqueued):
    """A stored job, possibly with a warning."""

    conflict: Conflict | None = Field(description="The job that already had its key.")
    note: str | None = Field(description="The consequences, if its code is not imported here.")


class JobChanges(BaseModel):
    """Changes to a job. Missing values stay the same."""

    model_config = ConfigDict(extra="forbid")

    args: list[Any] | None = None
    kwargs: dict[str, Any] | None = None
    queue: str | None = None
    priority: Count | None = Field(default=None, description=f"From 0 to {MAX_PRIORITY}; the highest runs first.")
    run_at: str | Number | None = Field(default=None, description="ISO 8601 with a time zone, or Unix seconds.")
    unserved: bool = Field(default=False, description=UNSERVED_MEANS)

    def given(self) -> dict[str, Any]:
        """Return the changes as arguments for the inspector."""
        at = None if self.run_at is None else instant_of(self.run_at, "run_at")
        return {**self.model_dump(exclude={"run_at"}), "at": at}


class Cancelled(BaseModel):
    """The result of cancelling a job."""

    id: str
    state: str = Field(description="marked, cancelled, cancelling, done, failed or interrupted.")
    worker: str | None
    job: str | None
    queue: str | None


@router.post("", name="api_enqueue", status_code=201)
def enqueue(visit: Visiting, new: NewJob) -> EnqueuedJob:
    """Enqueue a job. Answers once the broker has stored it.

    If the job's code is imported here (`palermo web MODULE`), its arguments are checked against its signature, its
    hooks run, and its declared options apply. Role: operator.
    """
    options: EnqueueOptions = new.model_dump(exclude={"job", "args", "kwargs"}, exclude_none=True)  # type: ignore[assignment]
    if new.run_at is not None:
        options["run_at"] = instant_of(new.run_at, "run_at")
    job = actions.enqueue(visit, new.job, new.args, new.kwargs, **options)
    served = live_state(visit.site).is_served
    unknown = registry.find(new.job) is None
    note = plain_note(new.job, options, visit.site.client.unique_job, served, job.queue) if unknown else ""
    return EnqueuedJob(id=job.id, job=job.job, queue=job.queue, conflict=job.conflict, note=note or None)


@router.get("/{id:palermo}", name="api_job")
def job(visit: Visiting, id: str, queue: str = "") -> JobRow:
    """A running, waiting or failed job.

    Waiting jobs are searched for among the first and last jobs of `queue`, or of each queue.
    """
    return job_row(visit, id, queue=queue)


@router.get("/{id:palermo}/status", name="api_status")
def status(visit: Visiting, id: str) -> JobStatusRow:
    """The status of a job, from the broker and the journal. It is `unknown`, with a reason, if neither contains the
    job.
    """
    return dict(job_status(visit, id))


@router.get("/{id:palermo}/result", name="api_result")
def result(visit: Visiting, id: str) -> JobResult:
    """The result of a finished job. 409 if the job isn't done or its result isn't kept. Does not wait."""
    found = job_result(visit, id)
    return JobResult(id=id, job=found.job, result=found.value)


@router.post("/{id:palermo}/cancel", name="api_cancel")
def cancel(visit: Visiting, id: str) -> Cancelled:
    """Cancel a waiting or running job. Failed jobs are unchanged. Role: operator."""
    return Cancelled.model_validate(actions.cancel(visit, id))


@router.post("/{id:palermo}/again", name="api_run_again", status_code=201)
def run_again(visit: Visiting, id: str, changes: JobChanges) -> Enqueued:
    """Enqueue a finished job again, as a new job with the recorded arguments and options.

    422 if the journal lacks the exact arguments, and `args` and `kwargs` aren't given. Role: operator.
    """
    done = actions.run_again(visit, id, recorded_job(visit.site, id), **changes.given())
    return Enqueued(id=done.id, job=done.job, queue=done.queue)


@router.post("/{id:palermo}/edit", name="api_edit")
def edit(visit: Visiting, id: str, changes: JobChanges) -> Enqueued:
    """Change a waiting, scheduled or retrying job. It keeps its id. Role: operator."""
    done = actions.edit(visit, id, **changes.given())
    return Enqueued(id=done.id, job=done.job, queue=done.queue)
