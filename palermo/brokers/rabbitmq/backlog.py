"""What a slot holds beside the job that it runs, and for how long: see palermo.core.prefetch."""

import asyncio
from collections import deque
from collections.abc import Callable

from palermo.broker import Delivery
from palermo.core.prefetch import PATIENCE, Ahead, Prefetch

#: Seconds by which a timer is too late for one whose process runs.
_LATE = 0.01


class Backlog:
    """The deliveries of one slot that are not taken yet, oldest first.

    With a prefetch of one there is hardly ever one, and nothing is measured.
    """

    def __init__(self, prefetch: Prefetch, *, slow: Callable[[], None], resize: Callable[[], None]) -> None:
        """`slow` is called when the job that runs keeps others waiting too long, `resize` when `wanted` has changed."""
        self._waiting: deque[Delivery] = deque()
        self._ahead = Ahead(prefetch) if prefetch.most > 1 else None
        self._slow = slow
        self._resize = resize
        #: When the job began that runs, by the loop's clock; 0 while none does.
        self._began = 0.0
        self._excused = False
        #: What looks at it again, and when.
        self._timer: asyncio.Handle | None = None
        self._due = 0.0

    @property
    def wanted(self) -> int:
        """How many the slot may hold now, with the one that runs."""
        return 1 if self._ahead is None else self._ahead.allowed

    def __len__(self) -> int:
        return len(self._waiting)

    def add(self, delivery: Delivery) -> None:
        """It has come, and waits."""
        self._waiting.append(delivery)
        self._watch()

    def put_back(self, delivery: Delivery) -> None:
        """It was taken, and is to be taken again before all others."""
        self._waiting.appendleft(delivery)

    def take(self) -> Delivery:
        """The oldest, which is not held here any more."""
        return self._waiting.popleft()

    def clear(self) -> list[Delivery]:
        """All that wait: who takes them gives them back."""
        found, self._waiting = [*self._waiting], deque()
        return found

    def began(self) -> None:
        """The slot runs a job from now on."""
        if self._ahead is not None:
            self._excused = False
            self._began = asyncio.get_running_loop().time()
            self._watch()

    def ended(self) -> None:
        """It has ended."""
        if self._ahead is None or not self._began:
            return
        before, now = self._ahead.allowed, asyncio.get_running_loop().time()
        if not self._stood_still(now):
            self._ahead.ended(now - self._began)
        self._began = 0.0
        if self._ahead.allowed != before:
            self._resize()

    def left(self) -> None:
        """The slot goes on without the job that it had, however long that took."""
        self._began = 0.0

    def _watch(self) -> None:
        if self._timer is None and self._waiting and self._began:
            self._due = self._began + PATIENCE
            self._timer = asyncio.get_running_loop().call_at(self._due, self._look)

    def _stood_still(self, now: float) -> bool:
        """Whether this process was stopped, or had no CPU, for so long that nothing is known of the job's duration."""
        return self._timer is not None and now - self._due > _LATE

    def _look(self) -> None:
        now = asyncio.get_running_loop().time()
        stood_still, self._timer = self._stood_still(now), None
        if not self._waiting or not self._began or self._ahead is None:
            return
        if stood_still and not self._excused:
            # Only once: where there is never enough CPU, others are to have the jobs.
            self._began, self._excused = now, True
        if now - self._began < PATIENCE:
            self._watch()
            return
        self._ahead.slow()
        self._slow()
