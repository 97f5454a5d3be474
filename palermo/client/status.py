"""The status of a job: its state in one word, and what else is known about it."""

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from enum import StrEnum
from typing import Any

from palermo.contract import clock
from palermo.contract.broker import Broker
from palermo.contract.finding import CANCELLED, SCHEDULED, JobLocation
from palermo.contract.rows import Row, as_json, iso_instant, running_row
from palermo.contract.serialization import Serializers
from palermo.core.journal_records import Record, RecordKind
from palermo.core.lifecycle import JobState, result_of_record
from palermo.core.message import parent_in
from palermo.core.unique_keys import Key, key_in


async def locate(broker: Broker, id: str, queue: str = "", *, failed: bool = True) -> JobLocation:
    """Find the job with this id; `queue` is the one where it would wait, "" if that is not known.

    Without `failed`, a failed job is `gone`. A job that is not found is searched again, in case it moved during the
    search. After a kill -9 of a worker its job may be nowhere for a moment: a caller that acts on `gone` locates it
    again a second later. Raises BrokerUnavailable, BrokerRefused.
    """
    for _ in range(2):
        found = await broker.find((id,), queue=queue, failed=failed)
        if found.jobs:
            return found.jobs[0]
    return JobLocation(unseen=found.unseen)


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
