"""Sums of the journal's `counts` records: jobs by outcome, how long they waited and how long they ran."""

from collections.abc import Mapping
from typing import Any

from msgspec import Struct, field

from palermo.contract.rows import Row
from palermo.core.durations import Durations
from palermo.core.journal_records import RUN_ENDS, RecordKind

#: The outcomes of which a `counts` record may give a number.
OUTCOMES = (RecordKind.ENQUEUED.value, *(str(kind) for kind in RUN_ENDS))

#: The runs that a worker's own counter `processed` counts: all that ended by themselves.
PROCESSED = (RecordKind.SUCCEEDED, RecordKind.FAILED, RecordKind.RETRIED, RecordKind.SNOOZED, RecordKind.DISCARDED)

#: The runs that its counter `failed` counts, tried again or not.
FAILED = (RecordKind.FAILED, RecordKind.RETRIED)

#: The percentiles that people are shown, by the name of their field.
PERCENTILES = {"p50": 0.5, "p90": 0.9, "p95": 0.95, "p99": 0.99}


class Tally(Struct):
    """Sums over some time and some jobs."""

    numbers: dict[str, int] = field(default_factory=dict)
    #: Seconds from the instant at which a job could have been started to its start, and from its start to its end.
    wait: Durations = field(default_factory=Durations)
    run: Durations = field(default_factory=Durations)

    def read(self, record: Mapping[str, Any]) -> None:
        """Add a `counts` record; values that are no number are left out."""
        numbers = self.numbers
        for name in OUTCOMES:
            if name in record:
                count = record[name]
                if isinstance(count, int) and count > 0:
                    numbers[name] = numbers.get(name, 0) + count
        self.wait.read(record, "wait")
        self.run.read(record, "run")

    def merge(self, other: "Tally") -> None:
        """Add another tally."""
        numbers = self.numbers
        for name, count in other.numbers.items():
            numbers[name] = numbers.get(name, 0) + count
        if other.wait.count:
            self.wait.merge(other.wait)
        if other.run.count:
            self.run.merge(other.run)

    def number(self, kind: str) -> int:
        """The number of jobs that had this outcome, or were enqueued."""
        return self.numbers.get(kind, 0)

    @property
    def has_runs(self) -> bool:
        """Whether it has an outcome other than enqueued: then a worker counted it."""
        return any(name != RecordKind.ENQUEUED for name in self.numbers)

    @property
    def processed(self) -> int:
        """Runs that ended by themselves, well or not: as workers count them."""
        return sum(self.numbers.get(kind, 0) for kind in PROCESSED)

    @property
    def failed(self) -> int:
        """Runs that failed, tried again or not: as workers count them."""
        return sum(self.numbers.get(kind, 0) for kind in FAILED)

    def row(self) -> Row:
        """The tally as fields of a contract; the times are None where nothing was measured."""
        return {
            "enqueued": self.number(RecordKind.ENQUEUED),
            "processed": self.processed,
            "failed": self.failed,
            **{name: self.number(name) for name in OUTCOMES[1:] if name != RecordKind.FAILED},
            "wait": times(self.wait),
            "run": times(self.run),
        }


def times(durations: Durations) -> Row | None:
    """Count, extremes, mean and percentiles, in seconds; None without durations."""
    if not durations.count:
        return None
    values = {
        "min": durations.least,
        "mean": durations.mean,
        **{name: durations.quantile(part) for name, part in PERCENTILES.items()},
        "max": durations.most,
    }
    return {"count": durations.count, **{name: round(value or 0.0, 6) for name, value in values.items()}}
