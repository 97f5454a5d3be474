"""Worker info: what a worker tells others about itself, the commands that others send to it, and its replies."""

from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import Any

from msgspec import Struct, ValidationError, convert, field
from msgspec.structs import asdict

from palermo.contract.stored_records import read_record
from palermo.core.election import Duty
from palermo.core.message import JSON, NO_HEADERS, TOPIC, Message
from palermo.core.plain import Plain

#: A worker tells the body of a job that it runs up to so many bytes, and of a longer one only the preview.
MAX_TOLD_BODY = 512


class ToldArguments(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What a worker tells of the arguments of a job that it runs: of the message, what is needed to show them."""

    preview: str | None = None
    #: The body, None if it is longer than MAX_TOLD_BODY; and how it is to be read.
    body: bytes | None = None
    content_type: str = JSON
    content_encoding: str = ""
    arguments: str = ""
    topic: str = ""

    @classmethod
    def of(cls, message: Message) -> "ToldArguments":
        return cls(
            preview=message.preview,
            body=message.body if len(message.body) <= MAX_TOLD_BODY else None,
            content_type=message.content_type,
            content_encoding=message.content_encoding,
            arguments=message.arguments,
            topic=message.topic,
        )


#: Nothing is told of the arguments.
NOT_TOLD = ToldArguments()


class RunningJob(Struct, frozen=True, kw_only=True):
    """A job that a worker runs at this moment."""

    id: str
    job: str
    queue: str
    slot: int
    #: Unix seconds.
    started_at: float
    #: How far the job says it is: a fraction from 0 to 1, and in words; None and "" if it does not tell.
    progress: float | None = None
    text: str = ""
    #: The newest line that it logged about itself, at most 200 characters of it; "" if none.
    line: str = ""
    #: The key that it was enqueued with; "" for none.
    key: str = ""
    #: The id of the job that enqueued it; "" for none.
    parent: str = ""
    arguments: ToldArguments = NOT_TOLD

    def message(self) -> Message:
        """The message, as far as the worker tells it."""
        told = self.arguments
        return Message(
            id=self.id,
            job=self.job,
            queue=self.queue,
            body=told.body or b"",
            content_type=told.content_type,
            content_encoding=told.content_encoding,
            arguments=told.arguments,
            extra={TOPIC: told.topic} if told.topic else NO_HEADERS,
            preview=told.preview,
        )


#: The states of a worker.
STATES = ("starting", "idle", "working", "paused", "quiet", "stopping")


class WorkerInfo(Plain, frozen=True, kw_only=True):
    """One worker, as it describes itself."""

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
    #: The ids of jobs that the broker has sent ahead (prefetch) and that wait for a slot. The broker sets this.
    waiting: tuple[str, ...] = ()
    #: The ids of jobs that ended here after the broker had taken them back: this worker can say how.
    outcomes: tuple[str, ...] = ()
    #: Jobs with a limit or a rate, as pairs of key and job id: those it runs, and those it awaits permission for.
    permits: tuple[tuple[str, str], ...] = ()
    asks: tuple[tuple[str, str], ...] = ()
    #: The duties in which it is the leader, such as "main": see palermo.contract.scheduled.ScheduledJobs.duties.
    duties: tuple[str, ...] = ()
    #: The version of Palermo, and the deployed release as the worker's settings name it; "" if it does not tell.
    version: str = ""
    release: str = ""
    #: Unix seconds: when the broker heard of it last. The broker sets it, and the worker does not tell it.
    seen_at: float | None = None
    #: Whether it answers. One that does not is stopped or swapped out, and its session with the broker still exists:
    #: what is told of it here is its last answer, or what it wrote down. The same holds for one that this session may
    #: not ask, whose state is UNASKED. The broker sets this too.
    answers: bool = True
    #: Whether its slots, processed, failed and duties are known; if not, they are 0 or empty here, and None in rows.
    counted: bool = True

    def __eq__(self, other: object) -> bool:
        """Whether both tell the same, whenever each was heard of."""
        if not isinstance(other, WorkerInfo):
            return NotImplemented
        told = (name for name in self.__struct_fields__ if name != "seen_at")
        return all(getattr(self, name) == getattr(other, name) for name in told)

    def __hash__(self) -> int:
        return hash(self.id)

    @property
    def is_silent(self) -> bool:
        """Whether it was asked and does not answer."""
        return not self.answers and self.state != UNASKED

    @property
    def clock(self) -> bool:
        """Whether it brings delayed jobs to their queues when they are due."""
        return Duty.MAIN in self.duties

    def has(self, id: str) -> bool:
        """Whether it runs this job, has got it to run, waits for permission to run it, or can say how it ended."""
        return id in (
            *(job.id for job in self.jobs),
            *self.outcomes,
            *self.waiting,
            *(job for _, job in self.permits + self.asks),
        )

    def counters(self) -> dict[str, Any]:
        """What it counts, its version and release, as values that JSON has; `counters_of` reads them."""
        return {name: value for name, value in self.to_plain().items() if name in Counters.__struct_fields__}


class Counters(Struct, frozen=True, kw_only=True):
    """The part of a WorkerInfo that a worker writes down with each run, for the time when it does not answer."""

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
    """The patterns of queues that a worker has stored; none, with a warning, if they cannot be read."""
    found = read_record(
        lambda plain: convert(plain, tuple[str, ...]),
        selection,
        what="the queues of a worker",
        name=id,
        remedy="restart that worker",
    )
    return found or ()


#: The states of workers whose own word is missing, in listings: one that does not answer, and one that this session may
#: not ask.
SILENT, UNASKED = "silent", "unasked"


def unidentified_worker(number: int) -> WorkerInfo:
    """A worker of which nothing is known but that it is there and does not answer."""
    return WorkerInfo(
        id=f"?{number}", host="?", pid=0, queues=(), slots=0, state=SILENT, started_at=0.0, answers=False, counted=False
    )


def counters_of(plain: object) -> dict[str, Any]:
    """The fields of a WorkerInfo in what `counters` wrote; that it is not counted, if this is anything else."""
    try:
        return asdict(convert(plain, Counters))
    except ValidationError:
        return {"slots": 0, "counted": False}


class WorkerList(list[WorkerInfo]):
    """The workers that are there, in the order of their ids; those that do not answer are among them."""

    def __init__(self, workers: Iterable[WorkerInfo] = (), *, complete: bool = True) -> None:
        super().__init__(sorted(workers, key=lambda worker: worker.id))
        #: Whether all living workers have answered. One that has not may run any job.
        self.complete = complete


class WorkerCommand(Plain, frozen=True, kw_only=True, omit_defaults=True, rename={"action": "ask"}):
    """A command to workers: palermo/worker/parent/orders.py lists the actions and the replies."""

    action: str
    #: The job that the command is about, if there is one.
    id: str = ""
    #: The jobs that it is about, if they are several.
    ids: tuple[str, ...] = ()
    #: The ids of the workers that the command is for; empty for all.
    workers: tuple[str, ...] = ()
    #: Who gave the command, for the workers' logs.
    by: str = ""

    def is_for(self, worker: str) -> bool:
        """Whether this worker must carry out the command."""
        return not self.workers or worker in self.workers


class CommandReply(Struct, frozen=True, kw_only=True):
    """One worker's reply to a command."""

    #: The worker's id.
    worker: str
    #: JSON values.
    values: Mapping[str, Any] = field(default_factory=dict)


#: Carries out a command: returns the values of the reply, or None (no reply) if the command is not for this worker.
OnCommand = Callable[[WorkerCommand], Awaitable[Mapping[str, Any] | None]]


async def ignore_command(command: WorkerCommand) -> None:
    """Carry out no command."""
