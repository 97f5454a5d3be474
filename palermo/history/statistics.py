"""Statistics of the last hour, day, week and month, from the journal's `counts` records.

A reader such as palermo.history.journal_follower feeds them with batches; any thread may ask. Memory is bounded by
the number of cells, and not by how much the journal holds. `now` is an argument wherever it matters, in Unix seconds.
"""

import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from palermo.core.journal_records import RecordBatch, RecordKind
from palermo.history.deploys import Deploy, Deploys
from palermo.history.series import MOST_CELLS, Cell, Dimension, Series
from palermo.history.tally import Tally
from palermo.history.windows import FINE, Window, begin

#: The dimensions in which each name has a series of its own.
DIMENSIONS = ("queue", "job", "worker")

#: The most sums that may wait for their cells. The counts of one writer are first added up within the shortest cell
#: that they fall in; a request for a report puts all sums in their cells.
_STAGED = 2_000

#: Seconds between two times of forgetting what is too old.
_PRUNE = 60.0

#: The beginning of a cell, a queue, a job, a worker.
_Key = tuple[float, str, str, str]


@dataclass(frozen=True, slots=True)
class Named:
    """The tally of one queue, job or worker; name None for those that were put together."""

    name: str | None
    tally: Tally


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """The statistics of some time up to now, of everything or of one queue, job or worker."""

    #: Unix seconds at which it begins, and ends; and from which on something is known in it.
    since: float
    until: float
    known: float
    total: Tally
    #: The cells of a window, oldest first; empty for a time that is no window.
    cells: list[Cell]
    deploys: list[Deploy]
    #: The tallies of each dimension, the busiest first; only where the report is of everything.
    parts: Mapping[str, list[Named]]
    #: Records that were not written down while the journal was away, as far as their writers said so.
    lost: int


class Statistics:
    """The statistics of one exchange's journal. Safe to share between threads."""

    def __init__(self, *, clock: Callable[[], float] = time.time, most_cells: int = MOST_CELLS) -> None:
        self._clock = clock
        self._most = most_cells
        self._lock = threading.Lock()
        self._clear()

    def take(self, batch: RecordBatch) -> None:
        """Add the counts of a batch."""
        with self._lock:
            now = self._clock()
            for record in batch.records:
                at = record["at"]
                if isinstance(at, int | float):
                    # A record from a clock that is ahead counts as of now.
                    self._read(batch.writer, record, min(float(at), now), now)
            if len(self._staged) > _STAGED:
                self._settle(now)

    def reset(self) -> None:
        """Forget everything."""
        with self._lock:
            self._clear()

    def report(
        self, window: Window, *, queue: str | None = None, job: str | None = None, worker: str | None = None
    ) -> Report | None:
        """The report of a window up to now; of one queue, job or worker if one is named, None if that is not known."""
        with self._lock:
            now = self._clock()
            self._settle(now)
            named = {"queue": queue, "job": job, "worker": worker}
            chosen = next(((by, name) for by, name in named.items() if name is not None), None)
            series: Series | None = self._all if chosen is None else self._by[chosen[0]].get(chosen[1])
            if series is None:
                return None
            since = begin(window, now)
            return Report(
                since=since,
                until=now,
                known=now if self._begins is None else max(since, self._begins),
                total=series.total(window, now),
                cells=series.cells(window, now),
                deploys=self._deploys.since(since),
                parts={} if chosen else {by: self._ranked(by, window, now) for by in DIMENSIONS},
                lost=sum(count for at, count in self._lost.items() if at >= since),
            )

    @property
    def begins(self) -> float | None:
        """The instant of the oldest record that was read; None where none was."""
        with self._lock:
            return self._begins

    # -- internals, called with the lock held

    def _clear(self) -> None:
        self._staged: dict[_Key, Tally] = {}
        self._all = Series(FINE)
        self._by = {by: Dimension(self._most) for by in DIMENSIONS}
        self._deploys = Deploys()
        self._lost: dict[float, int] = {}
        self._begins: float | None = None
        self._pruned = 0.0

    def _read(self, writer: str, record: Mapping[str, Any], at: float, now: float) -> None:
        if self._begins is None or at < self._begins:
            self._begins = at
        match record["kind"]:
            case RecordKind.COUNTS:
                key = (_step(at, now), _name(record, "queue"), _name(record, "job"), writer)
                tally = self._staged.get(key)
                if tally is None:
                    tally = self._staged[key] = Tally()
                tally.read(record)
            case RecordKind.WORKER_UP:
                release = record.get("release")
                if isinstance(release, str):
                    self._deploys.up(at, release)
            case RecordKind.LOST:
                count = record.get("count")
                if isinstance(count, int):
                    step = _step(at, now)
                    self._lost[step] = self._lost.get(step, 0) + count

    def _settle(self, now: float) -> None:
        """Put the waiting sums in their cells, and forget what is too old."""
        for (at, queue, job, worker), tally in self._staged.items():
            if not tally.numbers:
                continue
            self._all.add(at, tally, now)
            for by, name in (("queue", queue), ("job", job), ("worker", worker if tally.has_runs else "")):
                if name:
                    self._by[by].add(name, at, tally, now)
        self._staged.clear()
        if not 0 <= now - self._pruned < _PRUNE:
            self._pruned = now
            self._all.prune(now)
            for dimension in self._by.values():
                dimension.prune(now)
            oldest = begin(Window.MONTH, now)
            self._lost = {at: count for at, count in self._lost.items() if at >= oldest}

    def _ranked(self, by: str, window: Window, now: float) -> list[Named]:
        found = [Named(name, tally) for name, tally in self._by[by].totals(window, now)]
        return sorted(found, key=rank)


def rank(each: Named) -> tuple[bool, int, int, str]:
    """The key that sorts the busiest to the front, and those that were put together to the end."""
    tally = each.tally
    return each.name is None, -tally.processed, -tally.number(RecordKind.ENQUEUED), each.name or ""


def _step(at: float, now: float) -> float:
    """The beginning of the shortest cell that an instant falls in."""
    cell = next((grid.cell for window, grid in FINE.items() if at >= begin(window, now)), FINE[Window.MONTH].cell)
    return at // cell * cell


def _name(record: Mapping[str, Any], field: str) -> str:
    value = record.get(field)
    return value if isinstance(value, str) else ""
