"""The status of a job: its state in one word, what else is known of it, and the place where it is (`locate`).

Law of `locate`: it takes nothing and changes nothing, and it remembers nothing between two calls.

Promise:

* A job that stays in a place that is looked at is found. So is a job that moves meanwhile: the looks go in the
  direction in which jobs move (scheduled, waiting, running, failed), and once more in case it moved the other way.
* `JobLocation.gone` says that every place was looked at; else `unseen` names the places that were not.
* A queue that cannot be looked into, a leader or a worker that is slow to answer, and whatever this user may not look
  at are named in `unseen`. An error of the session is raised.
* After a kill -9 of a worker its job may be nowhere for a moment, until the broker has taken it back. So a caller that
  acts on `gone` looks again a second later.

Cost of a look: one request to the leader, one count for each queue, at most 2 * DEPTH jobs of one queue (of QUEUES
queues, if none is named), one request to all workers, and at most FAILED failed jobs. A caller that learns of failures
otherwise leaves the failed jobs out. Of a longer body only what is shown is kept, MAX_SHOWN bytes.
"""

import asyncio
from collections.abc import AsyncIterator, Collection, Mapping
from contextlib import suppress
from dataclasses import dataclass, fields, replace
from enum import StrEnum
from typing import Any

from msgspec import Struct

from palermo.client.failed_queues import read_failed
from palermo.contract import clock
from palermo.contract.broker import Broker, Page
from palermo.contract.rows import CANCELLED, MAX_SHOWN, SCHEDULED, Row, as_json, iso_instant, running_row
from palermo.contract.scheduled import ScheduledFilter
from palermo.contract.serialization import Serializers
from palermo.contract.sweep import Keep, Stop, SweepDecision
from palermo.contract.trouble import unless_blocked
from palermo.contract.worker_info import UNASKED, RunningJob
from palermo.core.journal_records import Record, RecordKind
from palermo.core.lifecycle import JobState, result_of_record
from palermo.core.message import Message, parent_in
from palermo.core.text import count
from palermo.core.topology import is_failed
from palermo.core.unique_keys import Key, key_in
from palermo.errors import BrokerBlocked, BrokerError, BrokerRefused, BrokerUnavailable, NotBrowsable, NotFound

#: How many jobs of a queue are looked at from its front and from its end; how many queues, if none is named; and how
#: many failed jobs.
DEPTH, QUEUES, FAILED = 100, 20, 10_000

#: The end of a queue with more jobs than this is looked at for so many seconds at most: RabbitMQ must read all jobs
#: before it, and workers get none of them meanwhile.
_LONG, _LOOK_WITHIN = 10_000, 1.0


class JobLocation(Struct, frozen=True, kw_only=True):
    """The place where a job is: scheduled, waiting, with a worker, or among the failed jobs."""

    #: A JobState, "scheduled" or "cancelled"; "" if it was not found.
    state: str = ""
    #: The job's message, unless a worker has the job. The body of a waiting one is cut behind MAX_SHOWN bytes.
    message: Message | None = None
    #: What the worker that runs the job reports of it; and the worker's id.
    running: RunningJob | None = None
    worker: str | None = None
    #: Whether that worker does not answer: then it held the job when it was heard of last.
    silent: bool = False
    #: The places that could not be looked at, for people: the job may be there. Empty if every place was looked at.
    unseen: tuple[str, ...] = ()

    @property
    def gone(self) -> bool:
        """Whether the job was not found although every place was looked at."""
        return not self.state and not self.unseen

    @property
    def alive(self) -> bool:
        """Whether the job runs, or will run."""
        return bool(self.state) and self.state != JobState.FAILED


async def locate(broker: Broker, id: str, queue: str = "", *, failed: bool = True) -> JobLocation:
    """Find the job with this id; `queue` is the one that it would wait in, "" if that is not known.

    Without `failed` it does not look at failed jobs, and a failed job is `gone`.
    Raises BrokerUnavailable, BrokerRefused.
    """
    place = await _look(broker, id, queue, failed=failed)
    return place if place.state else await _look(broker, id, queue, failed=failed)


async def locate_waiting(broker: Broker, id: str, queue: str = "") -> JobLocation | None:
    """Find the job with this id among those that wait in queues; if `queue` exists, only there. None if it is not seen.

    Raises BrokerUnavailable, BrokerRefused.
    """
    return await _waiting(broker, id, queue, [], only=True)


async def waiting_uncancelled(broker: Broker, ids: Collection[str]) -> list[Message]:
    """Those of these jobs that are seen to wait, and that a worker would not drop as cancelled when it takes them.

    Raises BrokerUnavailable, BrokerRefused.
    """
    left = set(ids)
    found: list[Message] = []

    def note(messages: Collection[Message], cancelled: Collection[str]) -> None:
        seen = [message for message in messages if message.id in left]
        left.difference_update(message.id for message in seen)
        found.extend(message for message in seen if message.id not in cancelled)

    with suppress(BrokerUnavailable):  # so many jobs are scheduled that looking takes long
        scheduled = await broker.scheduled(ScheduledFilter(ids=frozenset(left)), limit=len(left))
        note(scheduled.messages, scheduled.cancelled)
    if left:
        async for page in _pages(broker, "", []):
            note(page.messages, page.cancelled)
            if not left:
                break
    return found


async def browsed_pages(broker: Broker) -> AsyncIterator[Page]:
    """The first and the last jobs of the shortest queues, as far as looking leaves them as they were."""
    async for page in _pages(broker, "", []):
        yield page


async def _look(broker: Broker, id: str, queue: str, *, failed: bool) -> JobLocation:
    unseen: list[str] = []
    place = await _scheduled(broker, id, unseen) or await _waiting(broker, id, queue, unseen)
    place = place or await _running(broker, id, unseen)
    if place is None and failed:
        place = await _failed(broker, id, unseen)
    return place or JobLocation(unseen=tuple(unseen))


async def _scheduled(broker: Broker, id: str, unseen: list[str]) -> JobLocation | None:
    try:
        look = broker.scheduled(ScheduledFilter(ids=frozenset({id})), limit=1)
        found = await unless_blocked(broker, look, grace=_LEADER_GRACE)
    # So many jobs are scheduled that looking takes long; or an alarm; or this user may not ask the leader.
    except (BrokerUnavailable, BrokerRefused) as error:
        unseen.append(f"scheduled jobs ({_why(error)})")
        return None
    for message in found.messages:
        state = JobState.RETRYING if message.failure is not None else SCHEDULED
        return JobLocation(state=CANCELLED if message.id in found.cancelled else state, message=message)
    return None


async def _waiting(broker: Broker, id: str, queue: str, unseen: list[str], *, only: bool = False) -> JobLocation | None:
    async for page in _pages(broker, queue, unseen, only=only):
        for message in page.messages:
            if message.id == id:
                state = JobState.RETRYING if message.failure is not None else JobState.PENDING
                return JobLocation(state=CANCELLED if id in page.cancelled else state, message=message)
    return None


async def _pages(broker: Broker, queue: str, unseen: list[str], *, only: bool = False) -> AsyncIterator[Page]:
    """The first and the last jobs of this queue; of the shortest queues if it does not exist.

    A job may have been requeued into another queue: so the shortest are read also if this queue is empty, unless `only`
    this one is wanted.
    """
    sizes = {info.name: info.pending for info in await broker.queues() if not is_failed(info.name)}
    alone = queue in sizes and (only or sizes[queue] > 0)
    names = [queue] if alone else sorted((name for name in sizes if sizes[name]), key=lambda name: sizes[name])
    if len(names) > QUEUES:
        unseen.append(f"the {len(names) - QUEUES} longest queues")
    for name in names[:QUEUES]:
        for newest in (False, True) if sizes[name] > DEPTH else (False,):
            try:
                async with asyncio.timeout(_LOOK_WITHIN if newest and sizes[name] > _LONG else None):
                    page = await broker.browse(name, limit=DEPTH, newest=newest, max_body=MAX_SHOWN)
            except NotBrowsable:
                unseen.append(f"queue {name!r}, of which only the count can be seen")
                break
            except NotFound:
                break
            except TimeoutError:
                unseen.append(f"queue {name!r} behind its first {DEPTH} jobs, where {sizes[name] - DEPTH:,} wait")
                break
            yield page
        else:
            if (middle := sizes[name] - 2 * DEPTH) > 0:
                wait = "waits" if middle == 1 else "wait"
                unseen.append(f"the middle of queue {name!r}, where {count(middle, 'job')} {wait}")


async def _running(broker: Broker, id: str, unseen: list[str]) -> JobLocation | None:
    workers = await broker.workers()
    for worker in workers:
        for job in worker.jobs:
            if job.id == id:
                return JobLocation(state=JobState.WORKING, running=job, worker=worker.id, silent=worker.is_silent)
    if not workers.complete:
        unasked = any(worker.state == UNASKED for worker in workers)
        unseen.append("workers that this user may not ask" if unasked else "a worker that does not answer")
    return None


async def _failed(broker: Broker, id: str, unseen: list[str]) -> JobLocation | None:
    found: list[Message] = []

    def judge(message: Message) -> SweepDecision:
        if message.id == id:
            found.append(message)
        return Stop() if found else Keep()

    try:
        swept = await unless_blocked(broker, read_failed(broker, judge, ids=(id,), most=FAILED), grace=_LEADER_GRACE)
    except (BrokerBlocked, BrokerRefused) as error:
        unseen.append(f"failed jobs ({_why(error)})")
        return None
    if found:
        return JobLocation(state=JobState.FAILED, message=found[0], worker=found[0].worker)
    if swept.total > swept.seen:
        unseen.append(f"{swept.total - swept.seen:,} failed jobs")
    return None


def _why(error: BrokerError) -> str:
    """Why a place cannot be looked at, in a few words if the error says much more."""
    return "this user may not look" if isinstance(error, BrokerRefused) else str(error)


#: Seconds that a leader may take to answer under an alarm: then it answers at once or when the alarm is over.
_LEADER_GRACE = 1.0

#: The state of a job about which nothing is known; `reason` says why.
UNKNOWN = "unknown"


class State(StrEnum):
    """The states of a status: those of a job's life (docs/reference/lifecycle.md), and four that only a look has."""

    PENDING = JobState.PENDING
    #: Pending, and due later: to wait for an instant is not to wait for a free worker.
    SCHEDULED = SCHEDULED
    WORKING = JobState.WORKING
    RETRYING = JobState.RETRYING
    FAILED = JobState.FAILED
    DONE = JobState.DONE
    DISCARDED = JobState.DISCARDED
    #: Someone cancelled it: it was discarded, or lies in its queue until a worker drops it. It will not run.
    CANCELLED = CANCELLED
    #: It is a row of an outbox in the program's database, and not yet with the broker (palermo.contrib.outbox).
    OUTBOX = "outbox"
    #: Nothing tells where it is, or was.
    UNKNOWN = UNKNOWN


#: The state of a job by the kind of the record that ends it.
_ENDED: Mapping[str, State] = {
    RecordKind.SUCCEEDED: State.DONE,
    RecordKind.FAILED: State.FAILED,
    RecordKind.DISCARDED: State.DISCARDED,
    RecordKind.CANCELLED: State.CANCELLED,
}


#: The kinds of the records after which a job waits.
WAITING = (
    *(RecordKind.ENQUEUED, RecordKind.FIRED, RecordKind.LIMITED),
    *(RecordKind.RETRIED, RecordKind.SNOOZED, RecordKind.RELEASED),
)

#: How it is known that a job runs whose worker says nothing.
_SILENT = "its worker does not answer; it held the job when it was heard of last"

#: Why a job that does not keep its result is taken to be done.
_UNWRITTEN = "nobody wrote down how it ended; it is gone, and has not failed"


#: The fields of a status that are Unix seconds.
_INSTANTS = ("started_at", "run_at", "ended_at", "closed_until")


@dataclass(frozen=True, kw_only=True, eq=False)
class JobStatus(str):
    """The status of a job: as text it is the state in one word, and its attributes have what else is known.

    `if job.status() == "done"`, and `job.status().progress`.
    """

    state: State
    id: str
    #: Its wire name, and its queue; "" where they are not known.
    job: str = ""
    queue: str = ""
    #: Which run this is or was, from 1.
    attempt: int | None = None
    #: The worker that runs it, or the slot in which it failed.
    worker: str | None = None
    #: Unix seconds: when it began to run, when it is due, and when it ended.
    started_at: float | None = None
    run_at: float | None = None
    ended_at: float | None = None
    #: Seconds that its last run took.
    took: float | None = None
    #: How far the job says it is: a fraction from 0 to 1, and in words.
    progress: float | None = None
    text: str = ""
    #: Its arguments, None where they are not known or cannot be shown; and the same for people, cut.
    args: list[Any] | None = None
    kwargs: dict[str, Any] | None = None
    preview: str | None = None
    #: Why it failed: the exception's class and text; or why it was discarded.
    error: str = ""
    message: str = ""
    #: Whether what it returned is kept; None before it is done, and where that is not known.
    result_kept: bool | None = None
    #: The key that it was enqueued with, as a unique, throttled or debounced job; "" for none, or where not known.
    key: str = ""
    #: The job that has this key now, or gets it next: the one that runs after this one; "" for none.
    next_id: str = ""
    #: Unix seconds until which its key is closed, so that a second enqueue is refused or put off.
    closed_until: float | None = None
    #: The id of the job that enqueued it while it ran; "" for none, or where not known.
    parent: str = ""
    #: Why nothing is known of it, or how what is known came to be known.
    reason: str = ""

    def __new__(cls, *, state: State, **_: Any) -> "JobStatus":
        return super().__new__(cls, state.value)

    def __getnewargs_ex__(self) -> tuple[tuple[()], dict[str, Any]]:
        return (), {each.name: getattr(self, each.name) for each in fields(self)}

    @property
    def over(self) -> bool:
        """Whether the job has ended, so that nothing more happens to it unless someone requeues it."""
        return self.state in _ENDED.values()

    def row(self) -> Row:
        """The row for listings and `--json`."""
        found = {each.name: as_json(getattr(self, each.name)) for each in fields(self)}
        return found | {name: iso_instant(getattr(self, name)) for name in _INSTANTS}


def status_at_location(id: str, place: JobLocation, serializers: Serializers) -> JobStatus:
    """The status of a job that was found."""
    state = State(place.state)
    if place.running is not None:
        running = place.running
        shown = running_row(running, serializers)
        return JobStatus(
            args=shown["args"],
            kwargs=shown["kwargs"],
            preview=shown["preview"],
            state=state,
            id=id,
            job=running.job,
            queue=running.queue,
            worker=place.worker,
            started_at=running.started_at,
            progress=running.progress,
            text=running.text,
            key=running.key,
            parent=running.parent,
            reason=_SILENT if place.silent else "",
        )
    message = place.message
    assert message is not None
    failure = message.failure
    return JobStatus(
        state=state,
        id=id,
        job=message.job,
        queue=message.queue,
        attempt=message.attempt,
        worker=place.worker,
        run_at=message.run_at if state in (State.SCHEDULED, State.RETRYING) else None,
        ended_at=float(failure.failed_at) if failure is not None and state is State.FAILED else None,
        error="" if failure is None else failure.exception_class,
        message="" if failure is None else failure.message,
        key=key_in(message.extra),
        parent=message.parent,
    )


def status_at_end(record: Record) -> JobStatus:
    """The status of a job, from the record of its end."""
    state = _ENDED[record["kind"]]
    slot, writer, headers = record.get("slot"), record.get("writer"), record.get("headers")
    headers = headers if isinstance(headers, dict) else {}
    return JobStatus(
        state=state,
        id=record["id"],
        job=_text(record, "job"),
        queue=_text(record, "queue"),
        attempt=record.get("attempt"),
        worker=_text(record, "worker") or (f"{writer}/worker-{slot}" if writer and slot else None),
        ended_at=record["at"],
        took=record.get("took"),
        error=_text(record, "error"),
        message=_text(record, "message") or _text(record, "reason"),
        result_kept=result_of_record(record) is not None if state is State.DONE else None,
        key=key_in(headers),
        parent=parent_in(headers),
        reason=_UNWRITTEN if record.get("unwritten") else "",
    )


def status_at_step(record: Record, place: JobLocation) -> JobStatus | None:
    """The status of a job that was not found, by the last record of its life; None if that does not say that it waits.

    `place` says where it was not looked for: it may have been purged there.
    """
    run_at, again = record.get("run_at"), record["kind"] == RecordKind.RETRIED
    if record["kind"] not in WAITING:
        return None
    due = isinstance(run_at, int | float) and run_at > clock.now()
    return JobStatus(
        state=State.RETRYING if again else State.SCHEDULED if due else State.PENDING,
        id=record["id"],
        job=_text(record, "job"),
        queue=_text(record, "queue"),
        attempt=record.get("attempt"),
        run_at=float(run_at) if due and run_at is not None else None,
        error=_text(record, "error"),
        message=_text(record, "message"),
        parent=_text(record, "parent"),
        reason=f"so the journal tells; not looked at: {'; '.join(place.unseen)}",
    )


def status_with_key(status: JobStatus, key: Key | None) -> JobStatus:
    """The status with what its key tells; `key` is None if nothing is known of it."""
    if key is None:
        return status
    return replace(status, key=key.name, next_id=key.job_after(status.id), closed_until=key.closed_until)


def status_kept_with_key(id: str, key: Key) -> JobStatus | None:
    """The status of a job that is kept with its key until its time, or until another job has ended; else None."""
    message = None if key.next is None else key.next.message
    if message is None or message.id != id:
        return None
    due = key.due if key.holder is None else None
    waits = f"until job {key.holder.id} has ended" if key.holder is not None else "until then"
    return JobStatus(
        state=State.PENDING if due is None else State.SCHEDULED,
        id=id,
        job=message.job,
        queue=message.queue,
        attempt=message.attempt,
        run_at=due,
        key=key.name,
        parent=message.parent,
        reason=f"it is kept with its key {waits}",
    )


def _text(record: Record, name: str) -> str:
    found = record.get(name)
    return found if isinstance(found, str) else ""
