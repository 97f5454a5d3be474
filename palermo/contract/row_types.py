"""The types of the rows of queues, jobs and workers: a type checker sees a misspelt field.

palermo.contract.rows makes them.
"""

from typing import Any, TypedDict


class QueueRow(TypedDict):
    """One queue, as `queues` of the inspector lists it."""

    name: str
    #: How many jobs wait, and how many run.
    pending: int
    in_progress: int
    #: How many workers serve it.
    workers: int
    paused: bool


# `class` is a keyword of Python, so this type cannot be written as a class.
ErrorRow = TypedDict("ErrorRow", {"class": str, "message": str, "traceback": str})
ErrorRow.__doc__ = "The error with which a job ended last."

AttemptRow = TypedDict("AttemptRow", {"attempt": int, "class": str, "message": str, "failed_at": str | None})
AttemptRow.__doc__ = "One attempt at a job that went wrong."


class JobRow(TypedDict):
    """One job, as `jobs` lists those that wait.

    Instants are ISO 8601 in UTC. A value that does not apply, or cannot be shown safely, is None.
    """

    id: str
    job: str | None
    queue: str
    #: "pending", "retrying", "scheduled", "failed", "working" or "cancelled".
    state: str
    args: list[Any] | None
    kwargs: dict[str, Any] | None
    #: The arguments as short text.
    preview: str | None
    content_type: str
    created_at: str | None
    #: When it is due, or was.
    run_at: str | None
    retries: int | None
    failed_at: str | None
    #: Its last error: `class`, `message` and `traceback`.
    error: ErrorRow | None
    #: Each run that went wrong: `attempt`, `class`, `message` and `failed_at`.
    attempts: list[AttemptRow]
    #: The worker that ran it last.
    worker: str | None
    priority: int | None
    tenant: str | None
    topic: str | None
    #: The id of the job that enqueued it.
    parent: str | None
    #: The headers that were given to it when it was enqueued.
    headers: dict[str, Any]


class FailedRow(JobRow):
    """One failed job, as `failed` lists it; `error` says why, and `failed_at` when."""


class ScheduledRow(JobRow):
    """One job that is due later, as `scheduled` and `retries` list it; `run_at` says when."""


class RunningRow(TypedDict):
    """One job that a worker runs."""

    id: str
    job: str
    queue: str
    started_at: str | None
    #: How far it is, from 0 to 1 and in words, if it tells; and the newest line that it logged.
    progress: float | None
    text: str
    line: str
    #: Its unique key.
    key: str | None
    parent: str | None
    args: list[Any] | None
    kwargs: dict[str, Any] | None
    preview: str | None
    content_type: str


class WorkerRow(TypedDict):
    """One worker, as `workers` lists it. Of one that does not answer, what is not known is None."""

    id: str
    host: str
    pid: int | None
    queues: list[str]
    slots: int | None
    #: "starting", "idle", "working", "paused", "quiet" or "stopping"; "silent" if it does not answer, "unasked" if
    #: this user may not ask it.
    state: str
    answers: bool
    started_at: str | None
    processed: int | None
    failed: int | None
    #: Whether it brings delayed jobs to their queues when they are due.
    clock: bool | None
    #: What it does for all workers.
    duties: list[str] | None
    #: The version of Palermo, and the release that its settings name.
    version: str | None
    release: str | None
    #: When the broker heard of it last.
    last_seen: str | None
    #: The jobs that it runs.
    jobs: list[RunningRow]


class WorkerUsageRow(WorkerRow):
    """One worker, with what it uses: bytes of memory, and seconds of processor time."""

    memory: int | None
    cpu: float | None
