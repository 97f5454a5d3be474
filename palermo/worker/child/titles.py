"""The titles of a worker's processes, as `ps` shows them. They cost so little that a no-op job does not notice."""

import time
from collections.abc import Callable
from time import monotonic

from palermo.worker.process import set_title

#: Titles of single jobs that a slot may show in one second.
_BURST = 20


class SlotTitle:
    """A slot's title: "idle", or the job it runs.

    A slot cannot look at the clock while its job runs, so it sets the title when a job begins. With very short jobs
    that would take most of the time. So after 20 titles in one second the title says only that there are many jobs,
    until the next second.
    """

    def __init__(self, slot: int, *, show: Callable[[str], None] = set_title) -> None:
        self._prefix = f"palermo slot {slot}: "
        self._show = show
        self._second = 0
        self._left = _BURST
        self._idle = False
        self._many = False

    @property
    def stale(self) -> bool:
        """Whether the title does not say idle, so that it is out of date once no job runs."""
        return not self._idle

    def working(self, job: str, id: str, now: float) -> None:
        """Show that a job begins."""
        second = int(now)
        if second != self._second:
            self._second, self._left, self._many = second, _BURST, False
        elif self._many:
            return
        if self._left:
            self._left -= 1
            since = time.strftime("%H:%M:%S", time.localtime(second))
            self._show(f"{self._prefix}{job or 'a job without a name'} {id} since {since}")
        else:
            self._many = True
            self._show(f"{self._prefix}many short jobs")
        self._idle = False

    def idle(self) -> None:
        """Show that there is no job."""
        self._idle = True
        self._many = False
        self._show(f"{self._prefix}idle")


class SharedTitle:
    """The title of a child that slots share: how many of them are busy. Any thread may show it."""

    def __init__(
        self, pool: str, slots: int, *, show: Callable[[str], None] = set_title, now: Callable[[], float] = monotonic
    ) -> None:
        self._prefix = f"palermo {pool} pool: "
        self._slots = slots
        self._show = show
        self._now = now
        self._shown = self._true = -1
        self._changed_at = -1.0

    @property
    def true_at_rest(self) -> bool:
        """Whether the title says idle and that is true, so that it is right until the next job."""
        return self._shown == self._true == 0

    def show(self, busy: int) -> None:
        """Show that so many slots are busy; not more often than 20 times a second."""
        self._true = busy
        if busy == self._shown:
            return
        now = self._now()
        if now - self._changed_at < 1 / _BURST:
            return
        self._shown, self._changed_at = busy, now
        self._show(f"{self._prefix}{f'{busy} of {self._slots} slots busy' if busy else 'idle'}")
