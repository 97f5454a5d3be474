"""The deliveries that a slot holds beside its running job, where a worker prefetches more than one."""

import asyncio
from collections import deque
from collections.abc import Callable

from palermo.contract.broker import Delivery
from palermo.core.prefetch import MAX_WAIT_BEHIND, AdaptivePrefetch, Prefetch

#: A timer that is later than this, in seconds, shows that the process stood still.
_LATE = 0.01


class PrefetchBuffer:
    """The deliveries that wait behind a slot's running job, oldest first. See palermo.core.prefetch.

    With a prefetch of one the buffer is nearly always empty, and no durations are measured.
    """

    def __init__(self, prefetch: Prefetch, *, slow: Callable[[], None], resize: Callable[[], None]) -> None:
        """`slow` is called when the running job keeps others waiting too long, `resize` when `wanted` has changed."""
        self.waiting: deque[Delivery] = deque()
        #: Whether the durations of jobs are measured.
        self.measures = prefetch.most > 1
        #: How much to prefetch, by the durations of jobs; None if they are not measured.
        self._adaptive = AdaptivePrefetch(prefetch) if self.measures else None
        self._slow = slow
        self._resize = resize
        #: When the running job began, by the loop's clock; 0 while none runs.
        self._began = 0.0
        self._excused = False
        #: The timer of the next check, and when it is due.
        self._timer: asyncio.Handle | None = None
        self._due = 0.0

    @property
    def wanted(self) -> int:
        """How many deliveries the slot may hold now, the running one included."""
        return 1 if self._adaptive is None else self._adaptive.allowed

    def add(self, delivery: Delivery) -> None:
        """Add a delivery that has come."""
        self.waiting.append(delivery)
        self._watch()

    def put_back(self, delivery: Delivery) -> None:
        """Put a delivery that was taken back in front of all others."""
        self.waiting.appendleft(delivery)

    def take(self) -> Delivery:
        """Remove and return the oldest delivery."""
        return self.waiting.popleft()

    def clear(self) -> list[Delivery]:
        """Remove and return all deliveries, which the caller gives back to the broker."""
        found, self.waiting = [*self.waiting], deque()
        return found

    def began(self) -> None:
        """Note that the slot starts a job."""
        if self._adaptive is not None:
            self._excused = False
            self._began = asyncio.get_running_loop().time()
            self._watch()

    def ended(self) -> None:
        """Note that the job has ended; its duration may change `wanted`."""
        if self._adaptive is None or not self._began:
            return
        before, now = self._adaptive.allowed, asyncio.get_running_loop().time()
        if not self._stood_still(now):
            self._adaptive.ended(now - self._began)
        self._began = 0.0
        if self._adaptive.allowed != before:
            self._resize()

    def left(self) -> None:
        """Note that the slot goes on without its job, whose duration does not count."""
        self._began = 0.0

    def _watch(self) -> None:
        if self._timer is None and self.waiting and self._began:
            self._due = self._began + MAX_WAIT_BEHIND
            self._timer = asyncio.get_running_loop().call_at(self._due, self._look)

    def _stood_still(self, now: float) -> bool:
        """Whether this process was stopped, or had no CPU, for so long that nothing is known of the job's duration."""
        return self._timer is not None and now - self._due > _LATE

    def _look(self) -> None:
        now = asyncio.get_running_loop().time()
        stood_still, self._timer = self._stood_still(now), None
        if not self.waiting or not self._began or self._adaptive is None:
            return
        if stood_still and not self._excused:
            # Only once: where there is never enough CPU, the jobs go back for others to take.
            self._began, self._excused = now, True
        if now - self._began < MAX_WAIT_BEHIND:
            self._watch()
            return
        self._adaptive.slow()
        self._slow()
