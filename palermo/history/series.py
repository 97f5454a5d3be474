"""Sums of the journal's `counts` records over time, for example by queue, in bounded memory.

A tally counts jobs by outcome, and how long they waited and ran. A window of time consists of cells. Each cell starts
at a multiple of its length since 1970, so all processes have the same cells, and each cell of the fine grid is within
one cell of the coarse grid.
"""

from collections.abc import Iterator, Mapping
from enum import StrEnum
from typing import Any

from msgspec import Struct, field

from palermo.contract.rows import Row
from palermo.core.durations import Durations
from palermo.core.journal_records import RUN_ENDS, RecordKind

#: The outcomes counted in a `counts` record.
OUTCOMES = (RecordKind.ENQUEUED.value, *(str(kind) for kind in RUN_ENDS))

#: The runs that a worker counts as `processed`: all that ended by themselves.
PROCESSED = (
    RecordKind.SUCCEEDED,
    RecordKind.EXPANDED,
    RecordKind.FAILED,
    RecordKind.RETRIED,
    RecordKind.SNOOZED,
    RecordKind.DISCARDED,
)

#: The runs that a worker counts as `failed`, whether retried or not.
FAILED = (RecordKind.FAILED, RecordKind.RETRIED)

#: The displayed percentiles, by field name.
PERCENTILES = {"p50": 0.5, "p90": 0.9, "p95": 0.95, "p99": 0.99}


class Tally(Struct):
    """Sums over a period and some jobs."""

    numbers: dict[str, int] = field(default_factory=dict)
    #: Seconds from when the job could have started until its start, and from its start to its end.
    wait: Durations = field(default_factory=Durations)
    run: Durations = field(default_factory=Durations)

    def read(self, record: Mapping[str, Any]) -> None:
        """Add a `counts` record. Values that aren't numbers are ignored."""
        numbers = self.numbers
        for name in OUTCOMES:
            if name in record:
                count = record[name]
                if isinstance(count, int) and count > 0:
                    numbers[name] = numbers.get(name, 0) + count
        self.wait.read(record, "wait")
        self.run.read(record, "run")

    def merge(self, other: "Tally") -> None:
        numbers = self.numbers
        for name, count in other.numbers.items():
            numbers[name] = numbers.get(name, 0) + count
        if other.wait.count:
            self.wait.merge(other.wait)
        if other.run.count:
            self.run.merge(other.run)

    def number(self, kind: str) -> int:
        """Return the number of jobs with this outcome, or enqueued."""
        return self.numbers.get(kind, 0)

    @property
    def has_runs(self) -> bool:
        """Whether it contains an outcome other than enqueued, so that a worker counted it."""
        return any(name != RecordKind.ENQUEUED for name in self.numbers)

    @property
    def processed(self) -> int:
        """Number of runs that ended by themselves, whether successful or not."""
        return sum(self.numbers.get(kind, 0) for kind in PROCESSED)

    @property
    def failed(self) -> int:
        """Number of runs that failed, whether retried or not."""
        return sum(self.numbers.get(kind, 0) for kind in FAILED)

    def row(self) -> Row:
        """Return the tally as a row of the public contract. Times without measurements are None."""
        return {
            "enqueued": self.number(RecordKind.ENQUEUED),
            "processed": self.processed,
            "failed": self.failed,
            **{name: self.number(name) for name in OUTCOMES[1:] if name != RecordKind.FAILED},
            "wait": times(self.wait),
            "run": times(self.run),
        }


def times(durations: Durations) -> Row | None:
    """Return the count, extremes, mean and percentiles in seconds, or None without durations."""
    if not durations.count:
        return None
    values = {
        "min": durations.least,
        "mean": durations.mean,
        **{name: durations.quantile(part) for name, part in PERCENTILES.items()},
        "max": durations.most,
    }
    return {"count": durations.count, **{name: round(value or 0.0, 6) for name, value in values.items()}}


# -- over time

#: Maximum number of cells in all series of a dimension. A cell takes half a kilobyte to two.
MOST_CELLS = 25_000


class Window(StrEnum):
    """A period up to now."""

    HOUR = "hour"
    DAY = "day"
    WEEK = "week"
    MONTH = "month"  #: 30 days


class Grid(Struct, frozen=True):
    """A window divided into cells."""

    #: The length of the window, a multiple of that of its cells, in seconds.
    span: float
    cell: float

    def number(self, at: float) -> int:
        """Return the number of the cell that contains an instant (Unix seconds)."""
        return int(at // self.cell)


#: The grids for totals, with about a hundred cells per window.
FINE: Mapping[Window, Grid] = {
    Window.HOUR: Grid(3_600, 30),
    Window.DAY: Grid(86_400, 900),
    Window.WEEK: Grid(7 * 86_400, 7_200),
    Window.MONTH: Grid(30 * 86_400, 21_600),
}

#: The grids for each queue, job and worker, with about thirty cells because there may be many of them.
COARSE: Mapping[Window, Grid] = {
    Window.HOUR: Grid(3_600, 120),
    Window.DAY: Grid(86_400, 3_600),
    Window.WEEK: Grid(7 * 86_400, 21_600),
    Window.MONTH: Grid(30 * 86_400, 86_400),
}


def begin(window: Window, now: float) -> float:
    """Return the start of a window in Unix seconds.

    It is the start of a cell in both grids, so that all sums agree. The window may therefore be slightly shorter.
    """
    grid = COARSE[window]
    return (grid.number(now) - round(grid.span / grid.cell) + 1) * grid.cell


class Cell(Struct, frozen=True):
    #: Its start in Unix seconds and its length in seconds.
    start: float
    seconds: float
    tally: Tally


class Series:
    """The tallies in the cells of every window. Empty cells take no memory."""

    __slots__ = ("_cells", "_grids", "latest")

    def __init__(self, grids: Mapping[Window, Grid]) -> None:
        self._grids = grids
        self._cells: dict[Window, dict[int, Tally]] = {window: {} for window in grids}
        #: The time of the newest tally in Unix seconds.
        self.latest = 0.0

    def add(self, at: float, tally: Tally, now: float) -> int:
        """Add a tally to each window that contains this instant. Returns the number of new cells."""
        self.latest = max(self.latest, at)
        made = 0
        for window, grid in self._grids.items():
            if at < begin(window, now):
                continue
            number, cells = grid.number(at), self._cells[window]
            cell = cells.get(number)
            if cell is None:
                cell = cells[number] = Tally()
                made += 1
            cell.merge(tally)
        return made

    def merge(self, other: "Series") -> None:
        """Add another series with the same grids."""
        self.latest = max(self.latest, other.latest)
        for window, cells in other._cells.items():
            mine = self._cells[window]
            for number, tally in cells.items():
                mine.setdefault(number, Tally()).merge(tally)

    def prune(self, now: float) -> int:
        """Drop cells outside of every window, and return the number of remaining cells."""
        left = 0
        for window, cells in self._cells.items():
            first = self._grids[window].number(begin(window, now))
            for number in [number for number in cells if number < first]:
                del cells[number]
            left += len(cells)
        return left

    def total(self, window: Window, now: float, since: float | None = None) -> Tally:
        """Sum up a window, or only its cells since an instant."""
        first = self._grids[window].number(begin(window, now) if since is None else since)
        found = Tally()
        for number, tally in self._cells[window].items():
            if number >= first:
                found.merge(tally)
        return found

    def counts(self, window: Window, now: float) -> list[tuple[int, int]]:
        """Return the number of successful and failed runs in each cell of a window, oldest first."""
        return [(tally.processed - tally.failed, tally.failed) for _, tally in self._each(window, now)]

    def cells(self, window: Window, now: float) -> list[Cell]:
        """Return all cells of a window, including empty ones, oldest first."""
        cell = self._grids[window].cell
        return [Cell(number * cell, cell, _copy(tally)) for number, tally in self._each(window, now)]

    def _each(self, window: Window, now: float) -> Iterator[tuple[int, Tally]]:
        """Yield the number and tally of each cell of a window, oldest first. Don't change the tallies."""
        grid, known, nothing = self._grids[window], self._cells[window], Tally()
        for number in range(grid.number(begin(window, now)), grid.number(now) + 1):
            yield number, known.get(number, nothing)


class Dimension:
    """A series per name. If there are too many cells, the series that have been idle longest are combined."""

    def __init__(self, most_cells: int = MOST_CELLS) -> None:
        self._most = most_cells
        self._count = 0
        self._series: dict[str, Series] = {}
        #: The series of the combined names, if any.
        self.others: Series | None = None

    def add(self, name: str, at: float, tally: Tally, now: float) -> None:
        series = self._series.get(name)
        if series is None:
            series = self._series[name] = Series(COARSE)
        self._count += series.add(at, tally, now)
        if self._count > self._most:
            self.prune(now)
            self._combine(now)

    def prune(self, now: float) -> None:
        """Drop cells and names outside of every window."""
        self._count = 0
        for name, series in list(self._series.items()):
            left = series.prune(now)
            self._count += left
            if not left:
                del self._series[name]
        if self.others is not None and not self.others.prune(now):
            self.others = None

    def get(self, name: str) -> Series | None:
        """Return the series of a name, or None."""
        return self._series.get(name)

    def totals(self, window: Window, now: float, since: float | None = None) -> Iterator[tuple[str | None, Tally]]:
        """Yield the sum over a window for each active name; None stands for the combined ones.

        `since` is as in Series.total.
        """
        for name, series in (*self._series.items(), (None, self.others)):
            if series is not None:
                tally = series.total(window, now, since)
                if tally.numbers:
                    yield name, tally

    def _combine(self, now: float) -> None:
        """Combine series to make room, for an eighth more than necessary so that this is rarely needed."""
        # The newest keeps its own series, even if that alone exceeds the limit.
        for name in sorted(self._series, key=lambda name: self._series[name].latest)[:-1]:
            if self._count <= self._most - self._most // 8:
                return
            series = self._series.pop(name)
            self._count -= series.prune(now)
            if self.others is None:
                self.others = Series(COARSE)
            self.others.merge(series)


def _copy(tally: Tally) -> Tally:
    found = Tally()
    found.merge(tally)
    return found
