"""Journal records about jobs, read defensively, since they may contain anything."""

import math
from collections.abc import Mapping
from typing import Any

from msgspec import Struct

from palermo.client.recorded_jobs import FIELDS
from palermo.contract.row_types import FinishedRow
from palermo.contract.rows import Row, as_json, iso_instant
from palermo.core.failure import printable
from palermo.core.journal_records import RUN_ENDS, Record, RecordKind

#: The kinds of records about one job.
OF_JOBS = frozenset(RecordKind) - {
    *(RecordKind.PUBLISHED, RecordKind.COUNTS, RecordKind.WORKER_UP, RecordKind.WORKER_DOWN, RecordKind.ACTION),
    RecordKind.LOST,
}

#: The states of ended runs, as listings name them, each with the kind of its record. The first four are final.
STATES: Mapping[str, RecordKind] = {
    "done": RecordKind.SUCCEEDED,
    "failed": RecordKind.FAILED,
    "discarded": RecordKind.DISCARDED,
    "cancelled": RecordKind.CANCELLED,
    "retrying": RecordKind.RETRIED,
}

#: The states that are listed by default: runs that ended their job.
FINAL = ("done", "failed", "discarded", "cancelled")

#: The state of an ended run, by the kind of its record.
STATE_OF: Mapping[str, str] = {kind: state for state, kind in STATES.items()}

#: Maximum number of characters of an id (no job has a longer one), and of a message, a reason or a line.
MAX_ID, MAX_TEXT = 1_000, 2_000

#: The record fields that are attributes of Entry.
_KNOWN = frozenset(
    {
        *("kind", "at", "id", "job", "queue", "attempt", "slot", "worker", "wait", "took"),
        *("error", "message", "text", "reason"),
    }
)


class Entry(Struct, frozen=True, kw_only=True):
    """One record about a job."""

    kind: RecordKind
    id: str
    #: Unix seconds.
    at: float
    job: str
    queue: str
    #: The worker slot that ran the job; None for a client.
    worker: str | None
    attempt: int | None
    #: Seconds that it waited before its start, and that it ran.
    wait: float | None
    took: float | None
    error: str
    #: The error's message, the reason why the job was discarded, or its log line.
    text: str | None
    #: The record's other fields.
    more: Mapping[str, Any]

    @property
    def state(self) -> str | None:
        """The state of its ended run; None if the record ends no run, or the job simply waits again after it."""
        return STATE_OF.get(self.kind)

    def row(self) -> FinishedRow:
        """The finished run as a row of a listing."""
        failed = self.kind in (RecordKind.FAILED, RecordKind.RETRIED)
        by = self.more.get("by")
        return {
            "id": self.id,
            "job": self.job or None,
            "queue": self.queue,
            "state": self.state,
            "finished_at": iso_instant(self.at),
            "wait": self.wait,
            "took": self.took,
            "attempt": self.attempt,
            "worker": self.worker,
            "error": {"class": self.error, "message": self.text or ""} if failed else None,
            "reason": None if failed else self.text or (f"by {by}" if isinstance(by, str) and by else None),
        }

    def step(self) -> Row:
        """The record as a row of a job's timeline."""
        return {
            **{name: value for name, value in self.more.items() if name not in FIELDS},
            **({"result": True} if "result" in self.more else {}),
            "kind": self.kind.value,
            "at": iso_instant(self.at),
            "job": self.job or None,
            "queue": self.queue,
            "worker": self.worker,
            "attempt": self.attempt,
            "wait": self.wait,
            "took": self.took if self.kind in RUN_ENDS else None,
            "error": {"class": self.error, "message": self.text or ""} if self.error else None,
            "text": None if self.error else self.text,
        }


def entry(record: Record, writer: str) -> Entry:
    """The entry of a record whose kind is in OF_JOBS, and whose id is text."""
    get = record.get
    slot, attempt = get("slot"), get("attempt")
    return Entry(
        kind=RecordKind(record["kind"]),
        id=printable(record["id"]),
        at=number(get("at")) or 0.0,
        job=text(get("job")) or "",
        queue=text(get("queue")) or "",
        worker=text(get("worker"))
        or (f"{writer}/worker-{slot}" if writer and isinstance(slot, int) else writer or None),
        attempt=attempt if isinstance(attempt, int) and 0 <= attempt < 2**31 else None,
        wait=number(get("wait")),
        took=number(get("took")),
        error=text(get("error")) or "",
        text=said(record),
        more=as_json({name: value for name, value in record.items() if name not in _KNOWN}),
    )


def said(record: Record) -> str | None:
    """The text of a record: its message, its text or its reason."""
    get = record.get
    return text(get("message")) or text(get("text")) or text(get("reason"))


def text(value: Any) -> str | None:
    """The value as displayable text; None if it is not text."""
    return printable(value[:MAX_TEXT]) if value.__class__ is str else None


def number(value: Any) -> float | None:
    """The value as a number of seconds; None if it is not a number."""
    if value.__class__ is float:
        return value if math.isfinite(value) else None
    return float(value) if value.__class__ is int and -(2**53) < value < 2**53 else None
