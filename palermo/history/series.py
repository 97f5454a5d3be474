"""Tallies along time: of one queue, say, and of all queues together, in bounded memory."""

from collections.abc import Iterator, Mapping

from palermo.core.values import dataclass
from palermo.history.tally import Tally
from palermo.history.windows import COARSE, Grid, Window, begin

#: Cells of all the series of a dimension at most; half a kilobyte to two each.
MOST_CELLS = 25_000


@dataclass(frozen=True, slots=True)
class Cell:
    """What happened in a part of a window."""

    #: Unix seconds where it begins, and how long it is.
    start: float
    seconds: float
    tally: Tally


class Series:
    """What happened in each cell of every window; cells in which nothing did take no room."""

    __slots__ = ("_cells", "_grids", "latest")

    def __init__(self, grids: Mapping[Window, Grid]) -> None:
        self._grids = grids
        self._cells: dict[Window, dict[int, Tally]] = {window: {} for window in grids}
        #: Unix seconds of the newest that was added.
        self.latest = 0.0

    def add(self, at: float, tally: Tally, now: float) -> int:
        """Add what happened at an instant; what is older than a window is not in it. Returns how many cells are new."""
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
        """Forget what no window reaches any more. Returns how many cells are left."""
        left = 0
        for window, cells in self._cells.items():
            first = self._grids[window].number(begin(window, now))
            for number in [number for number in cells if number < first]:
                del cells[number]
            left += len(cells)
        return left

    def total(self, window: Window, now: float) -> Tally:
        """All that happened in a window."""
        first = self._grids[window].number(begin(window, now))
        found = Tally()
        for number, tally in self._cells[window].items():
            if number >= first:
                found.merge(tally)
        return found

    def cells(self, window: Window, now: float) -> list[Cell]:
        """A window's cells, all of them, oldest first."""
        grid, known = self._grids[window], self._cells[window]
        numbers = range(grid.number(begin(window, now)), grid.number(now) + 1)
        return [Cell(number * grid.cell, grid.cell, _copy(known.get(number))) for number in numbers]


class Dimension:
    """A series for each name; those that did nothing for longest are put together when there are too many."""

    def __init__(self, most_cells: int = MOST_CELLS) -> None:
        self._most = most_cells
        self._count = 0
        self._series: dict[str, Series] = {}
        #: What was put together; None until then.
        self.others: Series | None = None

    def add(self, name: str, at: float, tally: Tally, now: float) -> None:
        """Add what happened to one of them."""
        series = self._series.get(name)
        if series is None:
            series = self._series[name] = Series(COARSE)
        self._count += series.add(at, tally, now)
        if self._count > self._most:
            self.prune(now)
            self._put_together(now)

    def prune(self, now: float) -> None:
        """Forget what no window reaches any more."""
        self._count = 0
        for name, series in list(self._series.items()):
            left = series.prune(now)
            self._count += left
            if not left:
                del self._series[name]
        if self.others is not None and not self.others.prune(now):
            self.others = None

    def get(self, name: str) -> Series | None:
        """The series of one of them."""
        return self._series.get(name)

    def totals(self, window: Window, now: float) -> Iterator[tuple[str | None, Tally]]:
        """What each of them did in a window, those that did nothing left out; None is the name of the others."""
        for name, series in (*self._series.items(), (None, self.others)):
            if series is not None:
                tally = series.total(window, now)
                if tally.numbers:
                    yield name, tally

    def _put_together(self, now: float) -> None:
        """Make room, an eighth more than is needed, so that it lasts."""
        # The newest keeps its own, even if it alone is above what there is room for.
        for name in sorted(self._series, key=lambda name: self._series[name].latest)[:-1]:
            if self._count <= self._most - self._most // 8:
                return
            series = self._series.pop(name)
            self._count -= series.prune(now)
            if self.others is None:
                self.others = Series(COARSE)
            self.others.merge(series)


def _copy(tally: Tally | None) -> Tally:
    found = Tally()
    if tally is not None:
        found.merge(tally)
    return found
