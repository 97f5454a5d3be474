"""The windows of time that statistics are shown for, and the cells that each window is cut into.

A cell begins at a multiple of its length since 1970. So all processes have the same cells, and each cell of the fine
grid lies in one cell of the coarse grid.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum


class Window(StrEnum):
    """A window of time up to now."""

    HOUR = "hour"
    DAY = "day"
    WEEK = "week"
    MONTH = "month"  #: 30 days


@dataclass(frozen=True, slots=True)
class Grid:
    """A window cut into cells."""

    #: The length of the window and of each cell, in seconds; the first is a multiple of the second.
    span: float
    cell: float

    def number(self, at: float) -> int:
        """The number of the cell that an instant (Unix seconds) is in."""
        return int(at // self.cell)


#: The grids for everything together: about a hundred cells in a window.
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
    """The beginning of a window in Unix seconds, never too early.

    A cell of both grids begins there, so that all sums of the window agree.
    """
    grid = COARSE[window]
    return (grid.number(now) - round(grid.span / grid.cell) + 1) * grid.cell
