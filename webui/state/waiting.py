"""The number of waiting jobs in each queue in the last hour and day, as sampled by this web process.

The journal counts enqueued and ended jobs, but not waiting ones. So this starts with the process, in its memory.
"""

from collections.abc import Iterable

from msgspec import Struct

from palermo.contract.rows import Row
from palermo.core.topology import is_failed
from palermo.history.series import FINE, Grid, Window, begin
from palermo.webui import tuning

#: The windows that are kept, and the most queues.
WINDOWS = (Window.HOUR, Window.DAY)

#: Stands for all queues together, whose name is never empty.
_ALL = ""


class WaitingJobs(Struct, frozen=True):
    """The most jobs that waited at a time, in each part of a window."""

    #: Unix seconds at which the window begins, and the seconds of each part.
    start: float
    step: float
    #: None for parts without a sample.
    most: list[int | None]


class WaitingHistory:
    """The most jobs that waited in each queue, by time. Not safe to share: the sampler's lock protects it."""

    def __init__(self) -> None:
        self._cells: dict[Window, dict[str, dict[int, int]]] = {window: {} for window in WINDOWS}

    def add(self, queues: Iterable[Row], at: float) -> None:
        """Add what waits in these queues at an instant, in Unix seconds. Queues of failed jobs are left out."""
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
        """What waited in a queue, or in all, in the window up to now. None if the window or the queue is not known."""
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
