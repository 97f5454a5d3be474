"""The API of workers: list the workers that are alive, and send them orders."""

from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from palermo.jobs.redaction import masked_worker
from palermo.webui import actions
from palermo.webui.api.rows import PROBLEM_RESPONSES, Instant, Rows
from palermo.webui.site import Visiting
from palermo.webui.threads import Router

router = Router(prefix="/workers", tags=["workers"], responses=PROBLEM_RESPONSES)

Order = Literal["quiet", "resume", "stop", "kill", "stack"]


class RunningJob(BaseModel):
    """A job that a worker runs."""

    id: str
    job: str
    queue: str
    started_at: Instant | None
    progress: float | None = Field(description="How far it says it is, from 0 to 1.")
    text: str = Field(description="The same in words.")
    line: str = Field(description="The newest line that it logged about itself.")
    key: str | None = Field(default=None, description="The key that it was enqueued with.")
    parent: str | None = Field(default=None, description="The id of the job that enqueued it while it ran.")
    args: list[Any] | None = Field(description="Null where they cannot be shown, or are long.")
    kwargs: dict[str, Any] | None
    preview: str | None = Field(description="The arguments for people, in one line.")
    content_type: str | None


class WorkerRow(BaseModel):
    """One worker."""

    id: str
    host: str
    pid: int | None = Field(description="Null, as the numbers below, for one that does not answer, if it is not known.")
    queues: list[str]
    slots: int | None
    state: str = Field(description="starting, idle, working, paused, quiet or stopping; silent if it does not answer.")
    answers: bool = Field(description="Whether it answers; if not, the rest is what was known last.")
    started_at: Instant | None
    processed: int | None
    failed: int | None
    clock: bool | None = Field(description="Whether it is the one that brings delayed jobs to their queues.")
    duties: list[str] | None = Field(description="The duties in which it is the leader: main, tenants.")
    version: str | None = Field(description="Version of Palermo; null if the worker did not answer.")
    release: str | None = Field(description="The deployed release, as its setting `release` names it.")
    last_seen: Instant | None = Field(description="When the broker, or who asks here, heard of it last.")
    jobs: list[RunningJob]


class OneWorker(WorkerRow):
    """One worker, with what is asked of it alone."""

    memory: int | None = Field(description="Bytes of RAM of its processes; null if it did not say.")
    cpu: float | None = Field(description="Seconds of processor time that they have used; null if it did not say.")


class Workers(Rows[WorkerRow]):
    """All workers that are alive, by id."""


class Answered(BaseModel):
    """The answer of one worker to an order."""

    model_config = ConfigDict(extra="allow")

    worker: str
    answered: bool = Field(description="False for one that said nothing in time; it may obey yet.")


@router.get("", name="api_workers")
def workers(visit: Visiting) -> Workers:
    """All workers that are alive, by id, with the jobs they run."""
    return Workers.whole([masked_worker(row, visit.site.hidden) for row in visit.inspector.workers.list()])


@router.get("/{id:palermo}", name="api_worker")
def worker(visit: Visiting, id: str) -> OneWorker:
    """One worker that is alive, by its id."""
    return OneWorker.model_validate(masked_worker(visit.inspector.workers.show(id), visit.site.hidden))


@router.post("/{action}", name="api_control_all")
def control_all(visit: Visiting, action: Order) -> list[Answered]:
    """Tell all workers something, in one command. Returns the answer of each. Roles as for one worker."""
    return [Answered.model_validate(row) for row in actions.control(visit, None, action)]


@router.post("/{id:palermo}/{action}", name="api_control")
def control(visit: Visiting, id: str, action: Order) -> Answered:
    """Tell a worker something.

    `quiet`: take no more jobs. `resume`: take jobs again. `stop`: finish the running jobs and
    end. `kill`: give the running jobs back and end. `stack`: return what it is doing, as `text`.
    Role: operator; admin for stop and kill.
    """
    return Answered.model_validate(actions.control(visit, [id], action)[0])
