"""The types of the rows of queues, jobs and workers, with which a type checker finds misspelt fields.

palermo.contract.rows creates the rows.
"""

from typing import Any, TypedDict


class QueueRow(TypedDict):
    """One queue, as `inspector.queues.list()` returns it."""

    name: str
    #: The number of waiting jobs, and of running ones.
    pending: int
    in_progress: int
    #: The number of workers that serve it.
    workers: int
    paused: bool


# `class` is a keyword of Python, so this type cannot be written as a class.
ErrorRow = TypedDict("ErrorRow", {"class": str, "message": str, "traceback": str})
ErrorRow.__doc__ = "The error of a job's last run."

AttemptRow = TypedDict("AttemptRow", {"attempt": int, "class": str, "message": str, "failed_at": str | None})
AttemptRow.__doc__ = "One failed run of a job."


class JobRow(TypedDict):
    """One job that waits, that is due later, or that has failed.

    Times are ISO 8601 in UTC. A value that doesn't apply, or that can't be shown safely, is None.
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
    #: When it is or was due.
    run_at: str | None
    retries: int | None
    failed_at: str | None
    #: Its last error.
    error: ErrorRow | None
    #: Its failed runs.
    attempts: list[AttemptRow]
    #: The worker that ran it last.
    worker: str | None
    priority: int | None
    tenant: str | None
    topic: str | None
    #: The id of the job that enqueued it.
    parent: str | None
    #: The headers that the program gave it when enqueuing.
    headers: dict[str, Any]


class RunningRow(TypedDict):
    """One running job."""

    id: str
    job: str
    queue: str
    started_at: str | None
    #: The progress that it reported, from 0 to 1 and as text, and its newest log line.
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
    """One worker. If it doesn't answer, the values that aren't known are None."""

    id: str
    host: str
    pid: int | None
    queues: list[str]
    slots: int | None
    #: "starting", "idle", "working", "paused", "quiet" or "stopping"; "silent" if it doesn't answer, "unasked"
    #: if this user has no permission to ask it.
    state: str
    answers: bool
    started_at: str | None
    processed: int | None
    failed: int | None
    #: Whether it moves scheduled jobs to their queues when they are due.
    clock: bool | None
    #: The duties that it has as a leader.
    duties: list[str] | None
    #: The version of Palermo, and the `release` of its settings.
    version: str | None
    release: str | None
    #: When the broker last received a report from it.
    last_seen: str | None
    #: Its running jobs.
    jobs: list[RunningRow]


class WorkerUsageRow(WorkerRow):
    """One worker, with its memory in bytes and its processor time in seconds."""

    memory: int | None
    cpu: float | None
