"""The typed rows of the API. Their fields and names are those of palermo.contract.rows, a contract."""

from typing import Annotated, Any, Literal

from fastapi import Query
from pydantic import BaseModel, ConfigDict, Field

from palermo.webui.state.listings import MAX_DEPTH, MAX_LIMIT

#: The errors that any operation may answer, for the documentation.
PROBLEMS = {
    400: "The request cannot be read, or is for another host.",
    401: "Nobody, or a wrong password or token.",
    403: "Sent by another site's page, not allowed for this role, or these pages are read-only.",
    404: "There is no such queue, job, worker or address.",
    405: "This address does not take that method.",
    408: "The request took too long to arrive.",
    409: "It cannot be done as things are; the text says why.",
    413: "The request is too large.",
    414: "The address is too long.",
    415: "Changes are taken as application/json only.",
    422: "A value is not allowed; the text says which, and what is.",
    429: "Too many wrong passwords or tokens: wait as long as Retry-After says.",
    431: "The headers are too large.",
    500: "Something unexpected went wrong; the server's log tells more.",
    503: "The broker cannot be reached, or refuses us.",
}


#: ISO 8601 in UTC, kept as text: parsing it and writing it again would change its fractions.
Instant = Annotated[str, Field(json_schema_extra={"format": "date-time"})]


class Problem(BaseModel):
    """The answer to a request that failed."""

    error: str = Field(description="What happened, with the value, and what to do about it.")


#: The `responses` of every operation.
PROBLEM_RESPONSES: dict[int | str, dict[str, Any]] = {
    status: {"model": Problem, "description": text} for status, text in PROBLEMS.items()
}

PageNumber = Annotated[int, Query(ge=1, le=MAX_DEPTH, description="Which page, from 1.")]
PageLimit = Annotated[int, Query(ge=1, le=MAX_LIMIT, description="How many rows on a page.")]


class QueueRow(BaseModel):
    """One queue."""

    name: str
    pending: int = Field(description="Jobs that wait.")
    in_progress: int = Field(description="Jobs that a worker holds.")
    workers: int = Field(description="Workers that serve it.")
    paused: bool


class ClientRow(BaseModel):
    """One tenant, also called client, that has jobs waiting in a queue."""

    tenant: str
    queue: str
    pending: int = Field(description="Its jobs that wait.")
    share: float = Field(description="How much of the queue it has, beside others' 1.")


class JobError(BaseModel):
    """Why a job failed."""

    model_config = ConfigDict(populate_by_name=True)

    class_: str = Field(alias="class", description="The exception's dotted name.")
    message: str
    traceback: str


class JobAttempt(BaseModel):
    """One failed run of a job."""

    model_config = ConfigDict(populate_by_name=True)

    attempt: int = Field(description="Which run it was, from 1.")
    class_: str = Field(alias="class", description="The exception's dotted name.")
    message: str
    failed_at: Instant | None


class JobRow(BaseModel):
    """One job. Fields that do not apply, or cannot be decoded safely, are null."""

    id: str
    job: str | None = Field(description="Its wire name.")
    queue: str
    state: Literal["pending", "scheduled", "working", "retrying", "failed", "done", "discarded", "cancelled"]
    args: list[Any] | None
    kwargs: dict[str, Any] | None
    preview: str | None = Field(description="The arguments for people, in one line.")
    content_type: str | None
    created_at: Instant | None
    run_at: Instant | None = Field(description="Before when it is not started, or was not.")
    retries: int | None
    failed_at: Instant | None
    error: JobError | None
    attempts: list[JobAttempt] = Field(description="Its tries that failed, oldest first, as far as that is kept.")
    worker: str | None
    priority: int | None = Field(description="What goes first within its queue, from 0 to 9.")
    tenant: str | None
    topic: str | None = Field(default=None, description="Of the event that it handles.")


class RunningJob(BaseModel):
    """A job that a worker runs."""

    id: str
    job: str
    queue: str
    started_at: Instant | None
    progress: float | None = Field(description="How far it says it is, from 0 to 1.")
    text: str = Field(description="The same in words.")
    line: str = Field(description="The newest line that it logged about itself.")


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
    error: str = Field(description="The exception's dotted name.")
    message: str
    result_kept: bool | None
    reason: str = Field(description="Why nothing is known of it, or how what is said is known.")


class JobResult(BaseModel):
    """The value that a job returned."""

    id: str
    job: str
    result: Any = Field(description="In what JSON has; values whose names are redacted are masked.")


class WorkerRow(BaseModel):
    """One worker."""

    id: str
    host: str
    pid: int
    queues: list[str]
    slots: int
    state: str = Field(description="starting, idle, working, paused, quiet or stopping.")
    started_at: Instant | None
    processed: int
    failed: int
    clock: bool = Field(description="Whether it is the one that brings delayed jobs to their queues.")
    jobs: list[RunningJob]


class Clients(BaseModel):
    """The tenants (clients) of a queue, those with the most jobs first."""

    rows: list[ClientRow]
    total: int
    page: int
    limit: int


class Queues(BaseModel):
    """All queues, by name."""

    rows: list[QueueRow]
    total: int
    page: int
    limit: int


class Jobs(BaseModel):
    """A page of jobs."""

    rows: list[JobRow]
    total: int | None = Field(description="How many there are in all; null where nobody counted.")
    page: int
    limit: int


class Workers(BaseModel):
    """All workers that are alive, by id."""

    rows: list[WorkerRow]
    total: int
    page: int
    limit: int


class Removed(BaseModel):
    """How many jobs, or other things, were removed."""

    removed: int


class NewJob(BaseModel):
    """A job to be enqueued."""

    model_config = ConfigDict(extra="forbid")

    job: str = Field(min_length=1, max_length=255, description="Its wire name, such as shop.tasks.resize.")
    args: list[Any] = Field(default_factory=list)
    kwargs: dict[str, Any] = Field(default_factory=dict)
    queue: str | None = Field(default=None, description="Else the job's own, or the default one.")
    id: str | None = Field(default=None, description="Else one is made.")
    keep_result: bool | None = Field(default=None, description="Whether what it returns is kept; else as declared.")


class Enqueued(BaseModel):
    """A job that is stored."""

    id: str
    job: str
    queue: str


class Answered(BaseModel):
    """The answer of one worker to an order."""

    model_config = ConfigDict(extra="allow")

    worker: str
    answered: bool = Field(description="False for one that said nothing in time; it may obey yet.")


class Cancelled(BaseModel):
    """The outcome of cancelling a job."""

    id: str
    state: str = Field(description="marked, cancelled, cancelling, done, failed or interrupted.")
    worker: str | None
    job: str | None
    queue: str | None
