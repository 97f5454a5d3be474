"""Journal records about jobs, read defensively because they may contain anything."""

import math
from collections.abc import Mapping
from typing import Any

from msgspec import Struct

from palermo.client.recorded_jobs import FIELDS
from palermo.contract.row_types import FinishedRow
from palermo.contract.rows import Row, as_json, iso_instant
from palermo.core.failure import printable
from palermo.core.journal_records import RUN_ENDS, Record, RecordKind

#: The kinds of records about a single job.
OF_JOBS = frozenset(RecordKind) - {
    *(RecordKind.PUBLISHED, RecordKind.COUNTS, RecordKind.WORKER_UP, RecordKind.WORKER_DOWN, RecordKind.ACTION),
    RecordKind.LOST,
}

#: The states of ended runs in listings, with the kinds of their records. The first four are final.
STATES: Mapping[str, RecordKind] = {
    "done": RecordKind.SUCCEEDED,
    "failed": RecordKind.FAILED,
    "discarded": RecordKind.DISCARDED,
    "cancelled": RecordKind.CANCELLED,
    "retrying": RecordKind.RETRIED,
}

#: The states listed by default, in which a job has ended.
FINAL = ("done", "failed", "discarded", "cancelled")

#: The state for each kind of record that ends a run.
STATE_OF: Mapping[str, str] = {kind: state for state, kind in STATES.items()}

#: Maximum number of characters of an id (the limit for jobs), and of a message, reason or log line.
MAX_ID, MAX_TEXT = 1_000, 2_000

#: The record fields that are attributes of Entry.
_KNOWN = frozenset(
    {
        *("kind", "at", "id", "job", "queue", "attempt", "slot", "worker", "wait", "took"),
        *("error", "message", "text", "reason"),
    }
)


class Entry(Struct, frozen=True, kw_only=True):
    """A record about a job."""

    kind: RecordKind
    id: str
    #: Unix seconds.
    at: float
    job: str
    queue: str
    #: The slot that ran the job; None for a client's record.
    worker: str | None
    attempt: int | None
    #: Seconds for which the job waited and ran.
    wait: float | None
    took: float | None
    error: str
    #: The error's message, the reason for discarding the job, or a log line.
    text: str | None
    #: The record's other fields.
    more: Mapping[str, Any]

    @property
    def state(self) -> str | None:
        """The state of the ended run; None if no run ended, or the job is just waiting again."""
        return STATE_OF.get(self.kind)

    def row(self) -> FinishedRow:
        """Return the ended run as a row of a listing."""
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
        """Return the record as a row of a job's timeline."""
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
    """Return the entry of a record whose kind is in OF_JOBS and whose id is text."""
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
        text=text_of(record),
        more=as_json({name: value for name, value in record.items() if name not in _KNOWN}),
    )


def text_of(record: Record) -> str | None:
    """Return a record's message, text or reason."""
    get = record.get
    return text(get("message")) or text(get("text")) or text(get("reason"))


def text(value: Any) -> str | None:
    """Return the value as displayable text, or None if it isn't text."""
    return printable(value[:MAX_TEXT]) if value.__class__ is str else None


def number(value: Any) -> float | None:
    """Return the value as a number of seconds, or None if it isn't a number."""
    if value.__class__ is float:
        return value if math.isfinite(value) else None
    return float(value) if value.__class__ is int and -(2**53) < value < 2**53 else None
