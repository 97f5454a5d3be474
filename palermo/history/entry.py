"""A record of the journal as the index keeps it: in columns, whatever is in it."""

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from palermo.core.failure import printable
from palermo.core.journal import ENDS, Kind, Record
from palermo.history.filters import STATES
from palermo.rows import Row, instant, plain

#: The kinds that are about a job, with the numbers that stand for them in the index.
NUMBERS: Mapping[str, int] = {
    kind: number
    for number, kind in enumerate(
        (
            *(Kind.ENQUEUED, Kind.STARTED, Kind.PROGRESS, Kind.LOG, Kind.SUCCEEDED, Kind.FAILED, Kind.RETRIED),
            *(Kind.SNOOZED, Kind.RELEASED, Kind.DISCARDED, Kind.CANCELLED, Kind.FIRED),
        ),
        start=1,
    )
}
KINDS: Mapping[int, Kind] = {number: Kind(kind) for kind, number in NUMBERS.items()}
_STATES = {kind: state for state, kind in STATES.items()}

#: Characters kept of a message, a reason or a line.
MAX_TEXT = 2_000

#: Characters of what else a record holds; beyond them it is left out.
_MAX_MORE = 4_000

#: What has a column of its own, and what is too large for an index.
_COLUMNS = frozenset(
    {"kind", "at", "id", "job", "queue", "attempt", "slot", "wait", "took", "error", "message", "text", "reason"}
)
_LEFT_OUT = frozenset({"result"})

#: How many fields a record of a kind has that has nothing but columns.
_BARE = {Kind.ENQUEUED: 5, Kind.STARTED: 8, Kind.SUCCEEDED: 9, Kind.RELEASED: 9}


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """One record about a job."""

    kind: Kind
    id: str
    #: Unix seconds.
    at: float
    job: str
    queue: str
    #: The worker that wrote it, "" for a client.
    writer: str
    slot: int | None
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
        return _STATES.get(self.kind)

    @property
    def worker(self) -> str | None:
        """The slot that wrote it."""
        return f"{self.writer}/worker-{self.slot}" if self.writer and self.slot else self.writer or None

    def row(self) -> Row:
        """The finished run as listings have it."""
        failed = self.kind in (Kind.FAILED, Kind.RETRIED)
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
            "reason": None if failed else self.text or self.more.get("by"),
        }

    def step(self) -> Row:
        """The record as a timeline has it."""
        ended = self.kind in ENDS
        return {
            "kind": self.kind.value,
            "at": instant(self.at),
            "queue": self.queue,
            "worker": self.worker,
            "attempt": self.attempt,
            "wait": self.wait,
            "took": self.took if ended else None,
            "error": {"class": self.error, "message": self.text or ""} if self.error else None,
            "text": None if self.error else self.text,
            **{name: value for name, value in self.more.items() if name not in _COLUMNS},
        }


def values(record: Record) -> tuple[Any, ...] | None:
    """What the index stores of a record, but for its place and writer; None for one that is about no job.

    Kind, hash of the id, at, slot, attempt, wait, took, id, text, more; then the texts that it shares with
    others: queue, job, error.
    """
    number = NUMBERS.get(record["kind"]) if record["kind"].__class__ is str else None
    id = record.get("id")
    if number is None or id.__class__ is not str:
        return None
    get = record.get
    error = text = more = None
    if len(record) != _BARE.get(record["kind"]):
        error = _text(get("error"))
        text = _text(get("message") or get("text") or get("reason"))
        rest = {name: value for name, value in record.items() if name not in _COLUMNS and name not in _LEFT_OUT}
        more = json.dumps(rest) if rest else None
        if more is not None and len(more) > _MAX_MORE:
            more = None
    return (
        *(number, hash(id), _number(get("at")) or 0.0, _whole(get("slot")), _whole(get("attempt"))),
        *(_number(get("wait")), _number(get("took")), printable(id), text, more),
        *(_text(get("queue")) or "", _text(get("job")) or "", error or ""),
    )


def restored(row: Sequence[Any]) -> Entry:
    """The entry of a stored row: kind, at, slot, attempt, wait, took, id, text, more, queue, job, error, writer."""
    kind, at, slot, attempt, wait, took, id, text, more, queue, job, error, writer = row
    return Entry(
        kind=KINDS[kind],
        id=id,
        at=at,
        job=job,
        queue=queue,
        writer=writer,
        slot=slot,
        attempt=attempt,
        wait=wait,
        took=took,
        error=error,
        text=text,
        more=plain(json.loads(more)) if more else {},
    )


def _text(value: Any) -> str | None:
    return printable(value[:MAX_TEXT]) if value.__class__ is str else None


def _number(value: Any) -> float | None:
    if value.__class__ is float:
        return value if math.isfinite(value) else None
    return float(value) if value.__class__ is int and -(2**53) < value < 2**53 else None


def _whole(value: Any) -> int | None:
    return value if value.__class__ is int and 0 <= value < 2**31 else None
