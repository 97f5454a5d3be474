"""Totals of jobs since this process began to count, by queue and job: they only grow, in bounded memory."""

import threading
from collections.abc import Callable

from palermo.client.journal_reading import BatchFilter
from palermo.core.failure import printable
from palermo.core.journal_records import Record, RecordBatch, RecordKind
from palermo.history.series import Tally

#: The name that all names share which come after there are enough of them.
OTHER = "(other)"

#: The most pairs of a queue and a job that are kept apart, since every publisher can make new names.
MOST_PAIRS = 200

#: The most characters of a name.
_MAX_NAME = 200


class Totals:
    """Tallies by queue and job. Safe to share between threads."""

    def __init__(self, most: int = MOST_PAIRS) -> None:
        """Keeps `most` pairs apart, the first that come."""
        self._most = most
        self._lock = threading.Lock()
        self._tallies: dict[tuple[str, str], Tally] = {}

    def count(self, outcome: str, queue: str, job: str, wait: float | None, took: float | None) -> None:
        """Count one run with this outcome; `wait` and `took` are the seconds that it waited and ran."""
        with self._lock:
            tally = self._of(queue, job)
            tally.numbers[outcome] = tally.numbers.get(outcome, 0) + 1
            if wait is not None:
                tally.wait.add(wait)
            if took is not None:
                tally.run.add(took)

    def read(self, record: Record, *, known: bool = False) -> None:
        """Add a `counts` record; with `known` add only its queue and job, so that they are reported as zero."""
        queue, job = record.get("queue"), record.get("job")
        if isinstance(queue, str) and isinstance(job, str):
            with self._lock:
                tally = self._of(queue, job)
                if not known:
                    tally.read(record)

    def copy(self) -> dict[tuple[str, str], Tally]:
        """A copy of the tallies by queue and job, which does not change while it is read."""
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
    """The totals of a journal, from the moment on at which all that it held before has been read.

    So they are counters as Prometheus wants them: they begin at zero with the process, and never fall. Records from
    before give the names only. A JournalView of palermo.history.journal_reader.
    """

    def __init__(self, is_ready: Callable[[], bool]) -> None:
        """`is_ready` says whether all records from before have been read."""
        self._totals = Totals()
        #: Records that their writers had to leave out.
        self.lost = 0
        self._is_ready = is_ready
        self._counting = False
        self._once = BatchFilter()

    def take(self, batch: RecordBatch) -> None:
        """Add the counts of a batch, unless it was taken before: a journal that is read again repeats its batches."""
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
        """A copy of the totals: see Totals.copy."""
        return self._totals.copy()

    def reset(self) -> None:
        """Forget nothing: the journal is read again, but its counts have happened, and known batches are recognized."""


class Names:
    """Label values in a limited number: the first names have their own, all others share one."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._known: set[str] = set()

    def of(self, name: str) -> str:
        """The label's value for this name."""
        if name not in self._known:
            if len(self._known) >= self._most:
                return OTHER
            self._known.add(name)
        return label(name)


def label(name: str) -> str:
    """A name as a label's value: of bounded length, and of characters that can be written."""
    return printable(name)[:_MAX_NAME]
