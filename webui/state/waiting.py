"""The number of waiting jobs in each queue over the last hour and day, as sampled by this web process.

The journal doesn't contain it, because it counts only enqueued and finished jobs. The history is in memory and starts
with the process.
"""

from collections.abc import Iterable

from msgspec import Struct

from palermo.contract.rows import Row
from palermo.core.topology import is_failed
from palermo.history.series import FINE, Grid, Window, begin
from palermo.webui import tuning

#: The windows, and the maximum number of queues.
WINDOWS = (Window.HOUR, Window.DAY)

#: Stands for all queues together; no queue has an empty name.
_ALL = ""


class WaitingJobs(Struct, frozen=True):
    """The maximum number of waiting jobs in each part of a window."""

    #: The window's start in Unix seconds, and the seconds per part.
    start: float
    step: float
    #: None for parts without a sample.
    most: list[int | None]


class WaitingHistory:
    """The maximum number of waiting jobs per queue over time. Not thread-safe: protected by the sampler's lock."""

    def __init__(self) -> None:
        self._cells: dict[Window, dict[str, dict[int, int]]] = {window: {} for window in WINDOWS}

    def add(self, queues: Iterable[Row], at: float) -> None:
        """Add each queue's number of waiting jobs at an instant in Unix seconds. Ignores queues of failed jobs."""
        waiting = {row["name"]: row["pending"] for row in queues if not is_failed(row["name"])}
        waiting[_ALL] = sum(waiting.values())
        for window, names in self._cells.items():
            number = FINE[window].number(at)
            for name, count in waiting.items():
                cells = names.get(name)
                if cells is None:
                    if len(names) > tuning.LIMIT and name != _ALL:
                        continue
                    cells = names[name] = {}
                if number not in cells:
                    _prune(cells, FINE[window], begin(window, at))
                cells[number] = max(count, cells.get(number, 0))
            for name in names.keys() - waiting.keys():
                _prune(names[name], FINE[window], begin(window, at))
                if not names[name]:
                    del names[name]

    def of(self, window: Window, now: float, queue: str | None = None) -> WaitingJobs | None:
        """Return the waiting jobs of a queue, or of all, over a window up to now; None if the window or queue is
        unknown.
        """
        cells = self._cells.get(window, {}).get(_ALL if queue is None else queue)
        if not cells:
            return None
        grid = FINE[window]
        first = grid.number(begin(window, now))
        numbers = range(first, grid.number(now) + 1)
        return WaitingJobs(first * grid.cell, grid.cell, [cells.get(number) for number in numbers])


def _prune(cells: dict[int, int], grid: Grid, since: float) -> None:
    for number in [number for number in cells if number < grid.number(since)]:
        del cells[number]
