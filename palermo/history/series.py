"""Sums of the journal's `counts` records over time, for one queue or all queues, for example, in bounded memory.

A tally contains the jobs by outcome, how long they waited and how long they ran. Time windows are divided into
cells. A cell starts at a multiple of its length since 1970. So all processes have the same cells, and each cell of
the fine grid is inside one cell of the coarse grid.
"""

from collections.abc import Iterator, Mapping
from enum import StrEnum
from typing import Any

from msgspec import Struct, field

from palermo.contract.rows import Row
from palermo.core.durations import Durations
from palermo.core.journal_records import RUN_ENDS, RecordKind

#: The outcomes for which a `counts` record may have a number.
OUTCOMES = (RecordKind.ENQUEUED.value, *(str(kind) for kind in RUN_ENDS))

#: The runs in a worker's own counter `processed`: all that ended by themselves.
PROCESSED = (
    RecordKind.SUCCEEDED,
    RecordKind.EXPANDED,
    RecordKind.FAILED,
    RecordKind.RETRIED,
    RecordKind.SNOOZED,
    RecordKind.DISCARDED,
)

#: The runs in its counter `failed`, retried or not.
FAILED = (RecordKind.FAILED, RecordKind.RETRIED)

#: The displayed percentiles, by field name.
PERCENTILES = {"p50": 0.5, "p90": 0.9, "p95": 0.95, "p99": 0.99}


class Tally(Struct):
    """Sums over some time and some jobs."""

    numbers: dict[str, int] = field(default_factory=dict)
    #: Seconds from the instant when a job could have started to its start, and from its start to its end.
    wait: Durations = field(default_factory=Durations)
    run: Durations = field(default_factory=Durations)

    def read(self, record: Mapping[str, Any]) -> None:
        """Add a `counts` record; values that are not numbers are skipped."""
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
        """The number of jobs with this outcome, or enqueued."""
        return self.numbers.get(kind, 0)

    @property
    def has_runs(self) -> bool:
        """Whether it has an outcome other than enqueued, so that a worker counted it."""
        return any(name != RecordKind.ENQUEUED for name in self.numbers)

    @property
    def processed(self) -> int:
        """Runs that ended by themselves, successful or not, as workers count them."""
        return sum(self.numbers.get(kind, 0) for kind in PROCESSED)

    @property
    def failed(self) -> int:
        """Runs that failed, retried or not, as workers count them."""
        return sum(self.numbers.get(kind, 0) for kind in FAILED)

    def row(self) -> Row:
        """The tally as fields of a contract; times without measurements are None."""
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


# -- over time

#: Maximum number of cells in all series of a dimension; a cell takes half a kilobyte to two.
MOST_CELLS = 25_000


class Window(StrEnum):
    """A window of time up to now."""

    HOUR = "hour"
    DAY = "day"
    WEEK = "week"
    MONTH = "month"  #: 30 days


class Grid(Struct, frozen=True):
    """A window divided into cells."""

    #: The length of the window and of each cell, in seconds; the first is a multiple of the second.
    span: float
    cell: float

    def number(self, at: float) -> int:
        """The number of the cell that contains an instant (Unix seconds)."""
        return int(at // self.cell)


#: The grids for the total: about a hundred cells in a window.
FINE: Mapping[Window, Grid] = {
    Window.HOUR: Grid(3_600, 30),
    Window.DAY: Grid(86_400, 900),
    Window.WEEK: Grid(7 * 86_400, 7_200),
    Window.MONTH: Grid(30 * 86_400, 21_600),
}

#: The grids for each queue, job and worker: about thirty cells, since there may be many of them.
COARSE: Mapping[Window, Grid] = {
    Window.HOUR: Grid(3_600, 120),
    Window.DAY: Grid(86_400, 3_600),
    Window.WEEK: Grid(7 * 86_400, 21_600),
    Window.MONTH: Grid(30 * 86_400, 86_400),
}


def begin(window: Window, now: float) -> float:
    """The start of a window in Unix seconds, never too early.

    A cell of both grids starts there, so that all sums of the window agree.
    """
    grid = COARSE[window]
    return (grid.number(now) - round(grid.span / grid.cell) + 1) * grid.cell


class Cell(Struct, frozen=True):
    """The tally of a part of a window."""

    #: Unix seconds of its start, and its length in seconds.
    start: float
    seconds: float
    tally: Tally


class Series:
    """The tallies in the cells of every window; empty cells take no memory."""

    __slots__ = ("_cells", "_grids", "latest")

    def __init__(self, grids: Mapping[Window, Grid]) -> None:
        self._grids = grids
        self._cells: dict[Window, dict[int, Tally]] = {window: {} for window in grids}
        #: Unix seconds of the newest tally that was added.
        self.latest = 0.0

    def add(self, at: float, tally: Tally, now: float) -> int:
        """Add a tally of an instant to each window that contains it. Returns the number of new cells."""
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
        """Drop cells outside every window. Returns the number of remaining cells."""
        left = 0
        for window, cells in self._cells.items():
            first = self._grids[window].number(begin(window, now))
            for number in [number for number in cells if number < first]:
                del cells[number]
            left += len(cells)
        return left

    def total(self, window: Window, now: float, since: float | None = None) -> Tally:
        """The sum of a window, or of its cells since an instant in it."""
        first = self._grids[window].number(begin(window, now) if since is None else since)
        found = Tally()
        for number, tally in self._cells[window].items():
            if number >= first:
                found.merge(tally)
        return found

    def counts(self, window: Window, now: float) -> list[tuple[int, int]]:
        """Numbers of successful and failed runs in each cell of a window, oldest first."""
        return [(tally.processed - tally.failed, tally.failed) for _, tally in self._each(window, now)]

    def cells(self, window: Window, now: float) -> list[Cell]:
        """All cells of a window, including empty ones, oldest first."""
        cell = self._grids[window].cell
        return [Cell(number * cell, cell, _copy(tally)) for number, tally in self._each(window, now)]

    def _each(self, window: Window, now: float) -> Iterator[tuple[int, Tally]]:
        """The number and tally of each cell of a window, oldest first; do not change the tallies."""
        grid, known, nothing = self._grids[window], self._cells[window], Tally()
        for number in range(grid.number(begin(window, now)), grid.number(now) + 1):
            yield number, known.get(number, nothing)


class Dimension:
    """A series for each name; if there are too many cells, the series that are idle longest are combined."""

    def __init__(self, most_cells: int = MOST_CELLS) -> None:
        self._most = most_cells
        self._count = 0
        self._series: dict[str, Series] = {}
        #: The series of the combined names; None if none were combined.
        self.others: Series | None = None

    def add(self, name: str, at: float, tally: Tally, now: float) -> None:
        """Add a tally of an instant to the series of one name."""
        series = self._series.get(name)
        if series is None:
            series = self._series[name] = Series(COARSE)
        self._count += series.add(at, tally, now)
        if self._count > self._most:
            self.prune(now)
            self._put_together(now)

    def prune(self, now: float) -> None:
        """Drop cells and names outside every window."""
        self._count = 0
        for name, series in list(self._series.items()):
            left = series.prune(now)
            self._count += left
            if not left:
                del self._series[name]
        if self.others is not None and not self.others.prune(now):
            self.others = None

    def get(self, name: str) -> Series | None:
        """The series of one name, or None."""
        return self._series.get(name)

    def totals(self, window: Window, now: float, since: float | None = None) -> Iterator[tuple[str | None, Tally]]:
        """The sum of a window for each active name; None is the name of the combined ones.

        `since` is the same as in Series.total.
        """
        for name, series in (*self._series.items(), (None, self.others)):
            if series is not None:
                tally = series.total(window, now, since)
                if tally.numbers:
                    yield name, tally

    def _put_together(self, now: float) -> None:
        """Combine series to make room, an eighth more than needed, so that it lasts."""
        # The newest keeps its own series, even if that alone is too large.
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
