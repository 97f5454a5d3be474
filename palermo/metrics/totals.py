"""Totals of jobs by queue and job since this process started to count. They only grow, and use limited memory."""

import threading
from collections.abc import Callable

from palermo.client.journal_reading import BatchFilter
from palermo.core.failure import printable
from palermo.core.journal_records import Record, RecordBatch, RecordKind
from palermo.history.series import Tally

#: The name for all names above the limit.
OTHER = "(other)"

#: Maximum number of queue and job pairs that are counted separately, because any publisher can create new names.
MOST_PAIRS = 200

#: Maximum number of characters of a name.
_MAX_NAME = 200


class Totals:
    """Tallies by queue and job. Thread-safe."""

    def __init__(self, most: int = MOST_PAIRS) -> None:
        """Count the first `most` pairs separately, and all others together."""
        self._most = most
        self._lock = threading.Lock()
        self._tallies: dict[tuple[str, str], Tally] = {}

    def count(self, outcome: str, queue: str, job: str, wait: float | None, took: float | None) -> None:
        """Count one run. `wait` and `took` are in seconds."""
        with self._lock:
            tally = self._of(queue, job)
            tally.numbers[outcome] = tally.numbers.get(outcome, 0) + 1
            if wait is not None:
                tally.wait.add(wait)
            if took is not None:
                tally.run.add(took)

    def read(self, record: Record, *, known: bool = False) -> None:
        """Add a `counts` record. With `known`, add only its queue and job with a count of zero."""
        queue, job = record.get("queue"), record.get("job")
        if isinstance(queue, str) and isinstance(job, str):
            with self._lock:
                tally = self._of(queue, job)
                if not known:
                    tally.read(record)

    def copy(self) -> dict[tuple[str, str], Tally]:
        """Return a copy of the tallies by queue and job, safe to read while counting continues."""
        with self._lock:
            found = {pair: Tally() for pair in self._tallies}
            for pair, tally in self._tallies.items():
                found[pair].merge(tally)
            return found

    def _of(self, queue: str, job: str) -> Tally:
        pair = (queue, job)
        tally = self._tallies.get(pair)
        if tally is not None:
            return tally
        pair = (label(queue), label(job))
        if pair not in self._tallies and len(self._tallies) >= self._most:
            pair = (OTHER, OTHER)
        return self._tallies.setdefault(pair, Tally())


class JournalTotals:
    """The totals of jobs recorded in the journal after its earlier records have been read.

    Like all Prometheus counters, they start at zero with the process and never decrease. Earlier records only
    contribute names. A JournalView of palermo.history.journal_reader.
    """

    def __init__(self, is_ready: Callable[[], bool]) -> None:
        """`is_ready` returns whether all earlier records have been read."""
        self._totals = Totals()
        #: Number of records that their writers had to drop.
        self.lost = 0
        self._is_ready = is_ready
        self._counting = False
        self._once = BatchFilter()

    def take(self, batch: RecordBatch) -> None:
        """Add the counts of a batch, unless it was added before. Reading the journal again repeats batches."""
        self._counting = self._counting or self._is_ready()
        if not self._once.is_new(batch):
            return
        for record in batch.records:
            match record["kind"]:
                case RecordKind.COUNTS:
                    self._totals.read(record, known=not self._counting)
                case RecordKind.LOST if self._counting and isinstance(count := record.get("count"), int):
                    self.lost += max(0, count)

    def copy(self) -> dict[tuple[str, str], Tally]:
        """Return a copy of the totals. See Totals.copy."""
        return self._totals.copy()

    def reset(self) -> None:
        """Keep everything, since the counts remain valid. Batches that are read again are recognized."""


class Names:
    """A limited number of label values: the first names get their own, and all others share one."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._known: set[str] = set()

    def of(self, name: str) -> str:
        """Return the label value for this name."""
        if name not in self._known:
            if len(self._known) >= self._most:
                return OTHER
            self._known.add(name)
        return label(name)


def label(name: str) -> str:
    """Shorten a name to a label value, without characters that can't be encoded."""
    return printable(name)[:_MAX_NAME]
