"""What jobs did since this process began to count, by queue and job: numbers that only grow, of bounded memory."""

import threading
from collections.abc import Callable

from palermo.core.failure import printable
from palermo.core.journal import Batch, Kind, Record
from palermo.history.reading import Once
from palermo.history.tally import Tally

#: What all names together are called that come when there are enough of them.
OTHER = "(other)"

#: Pairs of a queue and a job that are told apart: anybody who may publish makes names.
MOST_PAIRS = 200

#: Characters of a name.
_MAX_NAME = 200


class Totals:
    """Tallies by queue and job. Safe to share between threads."""

    def __init__(self, most: int = MOST_PAIRS) -> None:
        """Tells so many pairs apart, the first that come."""
        self._most = most
        self._lock = threading.Lock()
        self._tallies: dict[tuple[str, str], Tally] = {}

    def count(self, outcome: str, queue: str, job: str, wait: float | None, took: float | None) -> None:
        """One more run that ended so; its wait and its run lasted so many seconds."""
        with self._lock:
            tally = self._of(queue, job)
            tally.numbers[outcome] = tally.numbers.get(outcome, 0) + 1
            if wait is not None:
                tally.wait.add(wait)
            if took is not None:
                tally.run.add(took)

    def read(self, record: Record, *, known: bool = False) -> None:
        """Add a `counts` record; or with `known` only that there are such a queue and job, from which zero is told."""
        queue, job = record.get("queue"), record.get("job")
        if isinstance(queue, str) and isinstance(job, str):
            with self._lock:
                tally = self._of(queue, job)
                if not known:
                    tally.read(record)

    def copy(self) -> dict[tuple[str, str], Tally]:
        """As they are now, by queue and job, for somebody who takes their time."""
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

    So they are a counter as Prometheus wants one: they begin at zero with the process, and never fall. What was
    before gives the names only. A Taker of palermo.history.following.
    """

    def __init__(self, is_ready: Callable[[], bool]) -> None:
        """`is_ready` says whether all that was before has been read."""
        self._totals = Totals()
        #: Records that their writers had to leave out.
        self.lost = 0
        self._is_ready = is_ready
        self._counting = False
        self._once = Once()

    def take(self, batch: Batch) -> None:
        """Add what the batch says, unless it was taken before: a journal that is read anew tells all of it again."""
        self._counting = self._counting or self._is_ready()
        if not self._once.is_new(batch):
            return
        for record in batch.records:
            match record["kind"]:
                case Kind.COUNTS:
                    self._totals.read(record, known=not self._counting)
                case Kind.LOST if self._counting and isinstance(count := record.get("count"), int):
                    self.lost += max(0, count)

    def copy(self) -> dict[tuple[str, str], Tally]:
        """As they are now: see Totals.copy."""
        return self._totals.copy()

    def reset(self) -> None:
        """The journal is read anew; what was counted has happened all the same, and is known when it comes again."""


class Names:
    """Label values of which there are at most so many: those that come first have their own, all others one."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._known: set[str] = set()

    def of(self, name: str) -> str:
        """How this name is told."""
        if name not in self._known:
            if len(self._known) >= self._most:
                return OTHER
            self._known.add(name)
        return label(name)


def label(name: str) -> str:
    """A name as a label's value: of bounded length, and of characters that can be written."""
    return printable(name)[:_MAX_NAME]
