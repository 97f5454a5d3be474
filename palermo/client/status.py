"""The status of a job: its state in one word, and what else is known of it."""

from collections.abc import Mapping
from dataclasses import dataclass, fields
from enum import StrEnum
from typing import Any

from palermo.client.locate import JobLocation
from palermo.contract.rows import CANCELLED, SCHEDULED, Row, as_json, iso_instant, running_row
from palermo.contract.serialization import Serializers
from palermo.core.journal_records import Record, RecordKind
from palermo.core.lifecycle import JobState, result_of_record

#: The state of a job about which nothing is known; `reason` says why.
UNKNOWN = "unknown"


class State(StrEnum):
    """The states of a status: those of a job's life (docs/reference/lifecycle.md), and three that only a look has."""

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
    #: Nothing tells where it is, or was.
    UNKNOWN = UNKNOWN


#: The state of a job by the kind of the record that ends it.
_ENDED: Mapping[str, State] = {
    RecordKind.SUCCEEDED: State.DONE,
    RecordKind.FAILED: State.FAILED,
    RecordKind.DISCARDED: State.DISCARDED,
    RecordKind.CANCELLED: State.CANCELLED,
}


#: How it is known that a job runs whose worker says nothing.
_SILENT = "its worker does not answer; it held the job when it was heard of last"

#: Why a job that does not keep its result is taken to be done.
_UNWRITTEN = "nobody wrote down how it ended; it is gone, and has not failed"


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
        return found | {name: iso_instant(getattr(self, name)) for name in ("started_at", "run_at", "ended_at")}


def status_at_location(id: str, place: JobLocation, serializers: Serializers) -> JobStatus:
    """The status of a job that was found."""
    state = State(place.state)
    if place.running is not None:
        running = place.running
        shown = running_row(running, serializers)
        return JobStatus(
            **{name: shown[name] for name in ("args", "kwargs", "preview")},
            state=state,
            id=id,
            job=running.job,
            queue=running.queue,
            worker=place.worker,
            started_at=running.started_at,
            progress=running.progress,
            text=running.text,
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
    )


def status_at_end(record: Record) -> JobStatus:
    """The status of a job, from the record of its end."""
    state = _ENDED[record["kind"]]
    slot, writer = record.get("slot"), record.get("writer")
    return JobStatus(
        state=state,
        id=record["id"],
        job=_text(record, "job"),
        queue=_text(record, "queue"),
        attempt=record.get("attempt"),
        worker=f"{writer}/worker-{slot}" if writer and slot else None,
        ended_at=record["at"],
        took=record.get("took"),
        error=_text(record, "error"),
        message=_text(record, "message") or _text(record, "reason"),
        result_kept=result_of_record(record) is not None if state is State.DONE else None,
        reason=_UNWRITTEN if record.get("unwritten") else "",
    )


def _text(record: Record, name: str) -> str:
    found = record.get(name)
    return found if isinstance(found, str) else ""
