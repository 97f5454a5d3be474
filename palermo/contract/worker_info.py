"""A worker's report about itself, the commands that it gets, and its replies."""

from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import Any

from msgspec import Struct, ValidationError, convert, field
from msgspec.structs import asdict

from palermo.contract.stored_records import read_record
from palermo.core.election import Duty
from palermo.core.message import JSON, NO_HEADERS, TOPIC, Message
from palermo.core.plain import Plain

#: Maximum size of a running job's body, in bytes, in a worker's report. For a larger body only the preview is reported.
MAX_REPORTED_BODY = 512


class ReportedArguments(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The arguments of a running job in a worker's report: the parts of the message that are needed to show them."""

    preview: str | None = None
    #: The body, or None if it is longer than MAX_REPORTED_BODY, and how to decode it.
    body: bytes | None = None
    content_type: str = JSON
    content_encoding: str = ""
    arguments: str = ""
    topic: str = ""

    @classmethod
    def of(cls, message: Message) -> "ReportedArguments":
        return cls(
            preview=message.preview,
            body=message.body if len(message.body) <= MAX_REPORTED_BODY else None,
            content_type=message.content_type,
            content_encoding=message.content_encoding,
            arguments=message.arguments,
            topic=message.topic,
        )


#: No arguments are reported.
NOT_REPORTED = ReportedArguments()


class RunningJob(Struct, frozen=True, kw_only=True):
    """A job that a worker runs now."""

    id: str
    job: str
    queue: str
    slot: int
    #: Unix seconds.
    started_at: float
    #: The progress that the job reported, a fraction from 0 to 1 and a text; None and "" without one.
    progress: float | None = None
    text: str = ""
    #: Its latest log line, cut to 200 characters; "" for none.
    line: str = ""
    #: The unique key that it was enqueued with; "" for none.
    key: str = ""
    #: The id of the job that enqueued it; "" for none.
    parent: str = ""
    arguments: ReportedArguments = NOT_REPORTED

    def message(self) -> Message:
        """The reported part of the message."""
        reported = self.arguments
        return Message(
            id=self.id,
            job=self.job,
            queue=self.queue,
            body=reported.body or b"",
            content_type=reported.content_type,
            content_encoding=reported.content_encoding,
            arguments=reported.arguments,
            extra={TOPIC: reported.topic} if reported.topic else NO_HEADERS,
            preview=reported.preview,
        )


#: The states of a worker.
STATES = ("starting", "idle", "working", "paused", "quiet", "stopping")


class WorkerInfo(Plain, frozen=True, kw_only=True):
    """A worker's description of itself."""

    #: `pid:<pid>@<host>`.
    id: str
    host: str
    pid: int
    queues: tuple[str, ...]
    slots: int
    #: One of STATES.
    state: str
    #: Unix seconds.
    started_at: float
    processed: int = 0
    failed: int = 0
    jobs: tuple[RunningJob, ...] = ()
    #: The ids of prefetched jobs. Set by the broker.
    waiting: tuple[str, ...] = ()
    #: The ids of jobs that it has taken and is about to start. Set by the broker.
    taken: tuple[str, ...] = ()
    #: The ids of jobs that ended here after the broker had requeued them, so that only this worker knows their outcome.
    outcomes: tuple[str, ...] = ()
    #: Limited jobs, as pairs of key and job id: running ones, and those that wait for permission.
    permits: tuple[tuple[str, str], ...] = ()
    asks: tuple[tuple[str, str], ...] = ()
    #: The duties in which it is the leader, such as "main": see palermo.contract.scheduled.ScheduledJobs.duties.
    duties: tuple[str, ...] = ()
    #: The version of Palermo, and the deployed release from the worker's settings; "" if unknown.
    version: str = ""
    release: str = ""
    #: When it last answered, in Unix seconds. Set by the broker.
    seen_at: float | None = None
    #: Whether it answers. If not, its other values are from its last answer, or stored. Either it is stopped or swapped
    #: out while its session still exists, or this session may not ask it (state UNASKED). Set by the broker.
    answers: bool = True
    #: Whether its slots, counters and duties are known. If not, they are 0 or empty here, and None in rows.
    counted: bool = True

    def __eq__(self, other: object) -> bool:
        """Whether both have the same values, apart from the time of the answer."""
        if not isinstance(other, WorkerInfo):
            return NotImplemented
        names = (name for name in self.__struct_fields__ if name != "seen_at")
        return all(getattr(self, name) == getattr(other, name) for name in names)

    def __hash__(self) -> int:
        return hash(self.id)

    @property
    def is_silent(self) -> bool:
        """Whether it was asked and does not answer."""
        return not self.answers and self.state != UNASKED

    @property
    def clock(self) -> bool:
        """Whether it is the leader that publishes due jobs."""
        return Duty.MAIN in self.duties

    def has(self, id: str) -> bool:
        """Whether it runs this job, holds it, waits for permission to run it, or knows its outcome."""
        return id in (
            *(job.id for job in self.jobs),
            *self.outcomes,
            *self.waiting,
            *(job for _, job in self.permits + self.asks),
        )

    def counters(self) -> dict[str, Any]:
        """Its counters, version and release, as JSON values; `counters_of` reads them."""
        return {name: value for name, value in self.to_plain().items() if name in Counters.__struct_fields__}


class Counters(Struct, frozen=True, kw_only=True):
    """The part of a WorkerInfo that a worker stores with each run, so that it is known if the worker doesn't answer."""

    slots: int
    processed: int
    failed: int
    duties: tuple[str, ...]
    version: str
    release: str


def stored_worker(id: str | bytes, report: Any) -> WorkerInfo | None:
    """The worker in a stored report; None, with a warning, if it cannot be read."""
    remedy = "restart that worker"
    return read_record(WorkerInfo.from_plain, report, what="the report of a worker", name=id, remedy=remedy)


def stored_patterns(id: str | bytes, selection: Any) -> tuple[str, ...]:
    """The queue patterns that a worker has stored; empty, with a warning, if they cannot be read."""
    found = read_record(
        lambda plain: convert(plain, tuple[str, ...]),
        selection,
        what="the queues of a worker",
        name=id,
        remedy="restart that worker",
    )
    return found or ()


#: The states, in listings, of a worker that doesn't answer, and of one that this session may not ask.
SILENT, UNASKED = "silent", "unasked"


def unidentified_worker(number: int) -> WorkerInfo:
    """A worker that doesn't answer, and of which nothing but its existence is known."""
    return WorkerInfo(
        id=f"?{number}", host="?", pid=0, queues=(), slots=0, state=SILENT, started_at=0.0, answers=False, counted=False
    )


def counters_of(plain: object) -> dict[str, Any]:
    """The counters from the value of `counters`. For any other value, `counted` is False."""
    try:
        return asdict(convert(plain, Counters))
    except ValidationError:
        return {"slots": 0, "counted": False}


class WorkerList(list[WorkerInfo]):
    """The living workers by id, including those that don't answer."""

    def __init__(self, workers: Iterable[WorkerInfo] = (), *, complete: bool = True) -> None:
        super().__init__(sorted(workers, key=lambda worker: worker.id))
        #: Whether all of them have answered. One that hasn't may run any job.
        self.complete = complete


class WorkerCommand(Plain, frozen=True, kw_only=True, omit_defaults=True, rename={"action": "ask"}):
    """A command to workers. palermo/worker/parent/orders.py lists the actions and the replies."""

    action: str
    #: The id of the job that the command is about, if any.
    id: str = ""
    #: The ids of the jobs that it is about, if there are several.
    ids: tuple[str, ...] = ()
    #: The ids of the workers that must execute the command; empty for all.
    workers: tuple[str, ...] = ()
    #: The sender of the command, for the workers' logs.
    by: str = ""

    def is_for(self, worker: str) -> bool:
        """Whether this worker must execute the command."""
        return not self.workers or worker in self.workers


class CommandReply(Struct, frozen=True, kw_only=True):
    """One worker's reply to a command."""

    #: The worker's id.
    worker: str
    #: JSON values.
    values: Mapping[str, Any] = field(default_factory=dict)


#: Executes a command: returns the values of the reply, or None if the command isn't for this worker.
OnCommand = Callable[[WorkerCommand], Awaitable[Mapping[str, Any] | None]]


async def ignore_command(command: WorkerCommand) -> None:
    """Ignore the command."""
