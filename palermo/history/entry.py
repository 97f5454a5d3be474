"""A record of the journal about a job, read with care: anything may be in it."""

import math
from collections.abc import Mapping
from typing import Any

from palermo.core.failure import printable
from palermo.core.journal import ENDS, Kind, Record
from palermo.core.values import dataclass
from palermo.history.filters import STATES
from palermo.rows import Row, instant, plain

#: The kinds that are about one job.
OF_JOBS = frozenset(
    {
        *(Kind.ENQUEUED, Kind.STARTED, Kind.PROGRESS, Kind.LOG, Kind.SUCCEEDED, Kind.FAILED, Kind.RETRIED),
        *(Kind.SNOOZED, Kind.RELEASED, Kind.DISCARDED, Kind.CANCELLED, Kind.FIRED, Kind.LIMITED),
    }
)

#: How a run ended, by the kind of its record.
STATE_OF: Mapping[str, str] = {kind: state for state, kind in STATES.items()}

#: Characters of an id, since a longer one is no job's, and of a message, a reason or a line.
MAX_ID, MAX_TEXT = 1_000, 2_000

#: What is told of a record by fields of its own.
_KNOWN = frozenset(
    {"kind", "at", "id", "job", "queue", "attempt", "slot", "wait", "took", "error", "message", "text", "reason"}
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """One record about a job."""

    kind: Kind
    id: str
    #: Unix seconds.
    at: float
    job: str
    queue: str
    #: The slot of the worker that wrote it; None for a client.
    worker: str | None
    attempt: int | None
    #: Seconds that it waited before it was started, and ran.
    wait: float | None
    took: float | None
    error: str
    #: Of the error, or why it was discarded, or what it wrote.
    text: str | None
    #: What else the record holds.
    more: Mapping[str, Any]

    @property
    def state(self) -> str | None:
        """How its run ended; None for a record that ends none, or after which the job simply waits again."""
        return STATE_OF.get(self.kind)

    def row(self) -> Row:
        """The finished run as listings have it."""
        failed = self.kind in (Kind.FAILED, Kind.RETRIED)
        by = self.more.get("by")
        return {
            "id": self.id,
            "job": self.job or None,
            "queue": self.queue,
            "state": self.state,
            "finished_at": instant(self.at),
            "wait": self.wait,
            "took": self.took,
            "attempt": self.attempt,
            "worker": self.worker,
            "error": {"class": self.error, "message": self.text or ""} if failed else None,
            "reason": None if failed else self.text or (f"by {by}" if isinstance(by, str) and by else None),
        }

    def step(self) -> Row:
        """The record as the life of a job has it."""
        return {
            **self.more,
            "kind": self.kind.value,
            "at": instant(self.at),
            "job": self.job or None,
            "queue": self.queue,
            "worker": self.worker,
            "attempt": self.attempt,
            "wait": self.wait,
            "took": self.took if self.kind in ENDS else None,
            "error": {"class": self.error, "message": self.text or ""} if self.error else None,
            "text": None if self.error else self.text,
        }


def entry(record: Record, writer: str) -> Entry:
    """The entry of a record whose kind is one of OF_JOBS, and whose id is text."""
    get = record.get
    slot, attempt = get("slot"), get("attempt")
    return Entry(
        kind=Kind(record["kind"]),
        id=printable(record["id"]),
        at=number(get("at")) or 0.0,
        job=text(get("job")) or "",
        queue=text(get("queue")) or "",
        worker=f"{writer}/worker-{slot}" if writer and isinstance(slot, int) else writer or None,
        attempt=attempt if isinstance(attempt, int) and 0 <= attempt < 2**31 else None,
        wait=number(get("wait")),
        took=number(get("took")),
        error=text(get("error")) or "",
        text=said(record),
        more=plain({name: value for name, value in record.items() if name not in _KNOWN}),
    )


def said(record: Record) -> str | None:
    """What a record says in words."""
    get = record.get
    return text(get("message")) or text(get("text")) or text(get("reason"))


def text(value: Any) -> str | None:
    """A text that can be shown; None for what is none."""
    return printable(value[:MAX_TEXT]) if value.__class__ is str else None


def number(value: Any) -> float | None:
    """A number that counts seconds; None for what does not."""
    if value.__class__ is float:
        return value if math.isfinite(value) else None
    return float(value) if value.__class__ is int and -(2**53) < value < 2**53 else None
