"""The stretches of time that statistics are shown for, and the cells that each is cut into.

A cell begins at a multiple of its length since 1970, so that those of all processes are the same, and cells of
the fine grid lie in one of the coarse each.
"""

from collections.abc import Mapping
from enum import StrEnum

from palermo.core.values import dataclass


class Window(StrEnum):
    """How far back, up to now."""

    HOUR = "hour"
    DAY = "day"
    WEEK = "week"
    MONTH = "month"  #: 30 days


@dataclass(frozen=True, slots=True)
class Grid:
    """A window in cells."""

    #: Seconds that the window is long, and each of its cells; the one is a multiple of the other.
    span: float
    cell: float

    def number(self, at: float) -> int:
        """The number of the cell that an instant (Unix seconds) is in."""
        return int(at // self.cell)


#: For everything together: about a hundred cells in a window.
FINE: Mapping[Window, Grid] = {
    Window.HOUR: Grid(3_600, 30),
    Window.DAY: Grid(86_400, 900),
    Window.WEEK: Grid(7 * 86_400, 7_200),
    Window.MONTH: Grid(30 * 86_400, 21_600),
}

#: For each queue, job and worker: about thirty, since there may be many of them.
COARSE: Mapping[Window, Grid] = {
    Window.HOUR: Grid(3_600, 120),
    Window.DAY: Grid(86_400, 3_600),
    Window.WEEK: Grid(7 * 86_400, 21_600),
    Window.MONTH: Grid(30 * 86_400, 86_400),
}


def begin(window: Window, now: float) -> float:
    """Where a window begins, Unix seconds: at a cell of both grids, so that all its sums agree; never too early."""
    grid = COARSE[window]
    return (grid.number(now) - round(grid.span / grid.cell) + 1) * grid.cell
