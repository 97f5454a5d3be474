"""The types of rows, for type checkers and for the API's schema."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated, Any, Literal

from msgspec import Struct

if TYPE_CHECKING:
    from typing import TypedDict
else:
    try:
        from typing_extensions import TypedDict  # Before Python 3.12 pydantic accepts no other one.
    except ImportError:
        from typing import TypedDict


class About(Struct, frozen=True):
    """The description of a field, for the schema."""

    text: str

    def __get_pydantic_json_schema__(self, schema: Any, make: Callable[[Any], dict[str, Any]]) -> dict[str, Any]:
        return {**make(schema), "description": self.text}


class _InstantFormat(Struct, frozen=True):
    def __get_pydantic_json_schema__(self, schema: Any, make: Callable[[Any], dict[str, Any]]) -> dict[str, Any]:
        return {**make(schema), "format": "date-time"}


#: ISO 8601 in UTC. Pydantic must not parse it: its own form has other fractions.
Instant = Annotated[str, _InstantFormat()]


class QueueRow(TypedDict):
    """One queue, as `inspector.queues.list()` returns it."""

    name: str
    pending: Annotated[int, About("Number of waiting jobs.")]
    in_progress: Annotated[int, About("Number of jobs that workers hold.")]
    workers: Annotated[int, About("Number of workers that serve it and answer.")]
    paused: bool


class TenantRow(TypedDict):
    """One tenant that has jobs waiting in a queue."""

    tenant: str
    queue: str
    pending: Annotated[int, About("Number of its waiting jobs.")]
    share: Annotated[float, About("Its share of the queue, where other tenants have 1.")]


# `class` is a keyword of Python, so these types cannot be written as classes.
ErrorRow = TypedDict(
    "ErrorRow",
    {"class": Annotated[str, About("The exception's dotted name.")], "message": str, "traceback": str},
)
ErrorRow.__doc__ = "The error of a job's last run."

AttemptRow = TypedDict(
    "AttemptRow",
    {
        "attempt": Annotated[int, About("Number of the run, from 1.")],
        "class": Annotated[str, About("The exception's dotted name.")],
        "message": str,
        "failed_at": Instant | None,
    },
)
AttemptRow.__doc__ = "One failed run of a job."


class JobRow(TypedDict):
    """A waiting, scheduled or failed job.

    Times are ISO 8601 in UTC. A value that doesn't apply, or that can't be shown safely, is None.
    """

    id: str
    job: Annotated[str | None, About("Its wire name.")]
    queue: str
    state: Annotated[str, About("pending, retrying, scheduled, failed, working or cancelled.")]
    args: list[Any] | None
    kwargs: dict[str, Any] | None
    preview: Annotated[str | None, About("The arguments as short text.")]
    content_type: str | None
    created_at: Instant | None
    run_at: Annotated[Instant | None, About("When it is or was due.")]
    retries: int | None
    failed_at: Instant | None
    error: Annotated[ErrorRow | None, About("Its last error.")]
    attempts: Annotated[list[AttemptRow], About("Its failed runs, oldest first.")]
    worker: Annotated[str | None, About("The worker that runs it, or ran it last.")]
    priority: Annotated[int | None, About("From 0 to 9; the highest goes first within its queue.")]
    tenant: str | None
    topic: Annotated[str | None, About("The topic of the event that it handles.")]
    parent: Annotated[str | None, About("Id of the job that enqueued it.")]
    headers: Annotated[dict[str, Any], About("The headers set when it was enqueued.")]


class RunningRow(TypedDict):
    """One running job."""

    id: str
    job: str
    queue: str
    started_at: Instant | None
    progress: Annotated[float | None, About("The progress that it reported, from 0 to 1.")]
    text: Annotated[str, About("Its progress as text.")]
    line: Annotated[str, About("Its newest log line.")]
    key: Annotated[str | None, About("Its unique key.")]
    parent: Annotated[str | None, About("Id of the job that enqueued it.")]
    args: Annotated[list[Any] | None, About("None if they can't be shown, or are long.")]
    kwargs: dict[str, Any] | None
    preview: Annotated[str | None, About("The arguments as short text.")]
    content_type: str | None


class WorkerRow(TypedDict):
    """One worker. If it doesn't answer, unknown values are None."""

    id: str
    host: str
    pid: int | None
    queues: list[str]
    slots: int | None
    state: Annotated[
        str,
        About(
            "starting, idle, working, paused, quiet or stopping; silent if it doesn't answer, unasked if this user"
            " has no permission to ask it."
        ),
    ]
    answers: Annotated[bool, About("Whether it answers; if not, the other values are those last known.")]
    started_at: Instant | None
    processed: int | None
    failed: int | None
    clock: Annotated[bool | None, About("Whether it moves scheduled jobs to their queues when they are due.")]
    duties: Annotated[list[str] | None, About("The duties that it has as a leader.")]
    version: Annotated[str | None, About("The version of Palermo.")]
    release: Annotated[str | None, About("The `release` setting of its program.")]
    last_seen: Annotated[Instant | None, About("When the broker last received a report from it.")]
    jobs: Annotated[list[RunningRow], About("Its running jobs.")]


class WorkerUsageRow(WorkerRow):
    """One worker, with its memory and its processor time."""

    memory: Annotated[int | None, About("Bytes of RAM of its processes.")]
    cpu: Annotated[float | None, About("Seconds of processor time that they have used.")]


class LimitRow(TypedDict):
    """One key of jobs that have a limit or a rate."""

    key: Annotated[str, About("The job's wire name, followed by a colon and its key if it has several.")]
    limit: Annotated[int | None, About("Number of jobs that may run at a time.")]
    rate: Annotated[str | None, About("How often jobs may start, such as 50/s.")]
    running: int
    waiting: Annotated[int, About("Number of deferred jobs.")]


class KeyRow(TypedDict):
    """One key of a unique, throttled or debounced job."""

    key: str
    id: Annotated[str | None, About("The job that has it or last had it.")]
    job: Annotated[str | None, About("The job's wire name.")]
    queue: str | None
    unique: Annotated[Literal["until_start", "until_done", "seconds"] | None, About("How long the job keeps the key.")]
    state: Annotated[
        Literal["waiting", "running", "closed", "kept"],
        About("State of its job. closed: no job can get the key now. kept: the job is held back until its time."),
    ]
    worker: Annotated[str | None, About("The worker that runs the job.")]
    since: Instant | None
    until: Annotated[Instant | None, About("When the key expires.")]
    run_at: Instant | None
    next: Annotated[str | None, About("The id of the job that runs after it.")]


class RecurringRow(TypedDict):
    """One recurring job."""

    name: str
    job: Annotated[str, About("Its wire name.")]
    queue: str
    cron: str | None
    every: Annotated[float | None, About("Seconds between two runs.")]
    tz: str
    words: Annotated[str, About("Its schedule as text.")]
    missed: Annotated[Literal["skip", "once", "all"], About("What happens to missed runs: skip, once or all.")]
    enabled: bool
    last_run: Instant | None
    next_run: Annotated[Instant | None, About("None while it is disabled.")]
    origin: Annotated[str, About("Where it is declared: code:<module>, config or runtime.")]
    args: list[Any] | None
    kwargs: dict[str, Any] | None


#: The outcome for a scheduled job.
Altered = Literal["cancelled", "enqueued", "moved", "failed", "not_found"]


class AlteredRow(TypedDict):
    """The outcome of a command for one scheduled job."""

    id: str
    state: Annotated[Altered, About("not_found if no such job is scheduled, or it has just become due.")]
    job: str | None
    queue: str | None
    run_at: Annotated[Instant | None, About("When it was due; for a moved job, its new time.")]


RunErrorRow = TypedDict("RunErrorRow", {"class": Annotated[str, About("The exception's dotted name.")], "message": str})
RunErrorRow.__doc__ = "Why a run failed. A long message is cut; the failed job has all of it."


class FinishedRow(TypedDict):
    """A run that ended. Its job ended with it, except in the state retrying."""

    id: str
    job: Annotated[str | None, About("Its wire name.")]
    queue: str
    state: Annotated[str | None, About("done, failed, discarded, cancelled or retrying.")]
    finished_at: Instant | None
    wait: Annotated[float | None, About("Seconds from when it was enqueued, or due, to its start.")]
    took: Annotated[float | None, About("Seconds that it ran.")]
    attempt: Annotated[int | None, About("Number of the run, from 1.")]
    worker: str | None
    error: RunErrorRow | None
    reason: Annotated[str | None, About("Why it was discarded, or the user who cancelled it.")]


class ActionRow(TypedDict):
    """An action of an operator or a program."""

    at: Instant | None
    by: Annotated[str | None, About("Name of the user.")]
    source: Annotated[str | None, About("Where the action was taken: web, cli or a program.")]
    action: str
    outcome: Annotated[str | None, About("done, refused or failed.")]
    queue: str | None
    count: Annotated[int | None, About("Number of jobs.")]
    what: Annotated[str | None, About("Details of the action.")]
    ids: Annotated[list[str], About("The jobs, at most 1,000.")]


class TopicRow(TypedDict):
    """A group that subscribes to events."""

    group: str
    topics: Annotated[list[str], About("Patterns: * is one word, # any number of words.")]
    queue: Annotated[str, About("The queue in which its events wait.")]
    function: Annotated[str, About("The code that handles them; empty if that isn't known.")]
    since: Annotated[Instant | None, About("When it first subscribed.")]
    pending: int
    in_progress: int
    workers: int
    paused: bool


class FindingRow(TypedDict):
    """One finding of `palermo doctor`."""

    check: Annotated[str, About("What was examined.")]
    level: Annotated[str, About("ok, warning or problem.")]
    text: str
    advice: Annotated[str | None, About("What to do about it.")]
    names: Annotated[list[str], About("All queues or jobs that it is about, the worst first.")]


class TimesRow(TypedDict):
    """Durations in seconds. Percentiles are exact to 19 percent, the other values are exact."""

    count: int
    min: float
    mean: float
    p50: float
    p90: float
    p95: float
    p99: float
    max: float


class CountsRow(TypedDict):
    """The counts of a period."""

    enqueued: int
    processed: Annotated[int, About("Finished runs, successful or not.")]
    failed: Annotated[int, About("Runs that failed, including those that are retried.")]
    succeeded: int
    retried: Annotated[int, About("Failed runs that are retried.")]
    snoozed: int
    released: Annotated[int, About("Runs whose jobs were released because their worker ended.")]
    discarded: int
    cancelled: int
    wait: Annotated[TimesRow | None, About("Time that ready jobs waited to start.")]
    run: Annotated[TimesRow | None, About("Time from the start of a run to its end.")]


class QueueCountsRow(CountsRow):
    """A queue and its counts."""

    name: Annotated[str | None, About("None for queues that were counted together.")]
    pending: int
    in_progress: int
    workers: int
    paused: bool


class JobCountsRow(CountsRow):
    """A job and its counts."""

    name: str | None


class WorkerCountsRow(CountsRow):
    """A worker and its counts."""

    id: str | None
    state: Annotated[str | None, About("None for a worker that has ended.")]
    started_at: Instant | None
    slots: int | None


class PartRow(CountsRow):
    """The counts of one part of the period."""

    at: Annotated[Instant, About("When it begins.")]
    seconds: Annotated[float, About("How long it is.")]


class DeployRow(TypedDict):
    """A deploy: the first worker of another release started."""

    at: Instant
    release: str


class StatisticsRow(CountsRow):
    """The statistics of a period."""

    since: Instant
    until: Instant
    known_since: Annotated[Instant | None, About("When the journal's oldest record of that time was written.")]
    rate: Annotated[float | None, About("Jobs processed a second.")]
    lost: Annotated[int, About("Records lost while the journal was unavailable.")]
    queues: Annotated[list[QueueCountsRow], About("The busiest first; empty if one queue, job or worker was named.")]
    jobs: list[JobCountsRow]
    workers: list[WorkerCountsRow]
    deploys: list[DeployRow]
    series: Annotated[list[PartRow], About("The intervals, oldest first.")]
