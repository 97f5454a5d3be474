"""Notices that a worker's queues have become empty, which ends a burst and calls the hook queue_empty."""

import asyncio
from collections.abc import Awaitable, Callable, Collection

from palermo.contract.broker import Broker
from palermo.core.queue_selection import QueueSelection
from palermo.errors import PalermoError

#: Seconds that the slots must be idle before the broker is asked, and the longest pause between two questions.
_FIRST, _MAX = 0.02, 1.0


class IdleWatch:
    """Asks the broker whether jobs wait, while the slots are idle. Calls `on_empty` once when none do."""

    def __init__(
        self,
        *,
        idle: Callable[[], bool],
        count_pending: Callable[[], Awaitable[int]],
        on_empty: Callable[[], Awaitable[None]],
    ) -> None:
        self._idle = idle
        self._count_pending = count_pending
        self._on_empty = on_empty
        self._timer: asyncio.TimerHandle | None = None
        self._task: asyncio.Task[None] | None = None
        self._reported = False
        self._pause = _FIRST

    def check_soon(self) -> None:
        """Ask the broker soon: a job has ended, or the worker has begun. Cheap, as it is called after every job."""
        self._reported = False
        if self._timer is None and self._task is None:
            self._pause = _FIRST
            self._wait()

    def close(self) -> None:
        """Stop asking."""
        if self._timer is not None:
            self._timer.cancel()
        if self._task is not None:
            self._task.cancel()

    def _wait(self) -> None:
        self._timer = asyncio.get_running_loop().call_later(self._pause, self._tick)
        self._pause = min(self._pause * 2, _MAX)

    def _tick(self) -> None:
        self._timer = None
        # If a job runs, check_soon() is called when it ends.
        if self._idle() and not self._reported:
            self._task = asyncio.ensure_future(self._check())

    async def _check(self) -> None:
        try:
            empty = not await self._count_pending()
        except PalermoError:
            empty = False  # if the session is lost, the slots notice that themselves
        if empty and self._idle():
            self._reported = True
            await self._on_empty()
        self._task = None
        if not self._reported and self._idle():
            self._wait()


async def count_pending(broker: Broker, selection: QueueSelection, put_aside: Collection[str]) -> int:
    """The number of jobs that wait in these queues, and of those put aside for one of these limited keys."""
    # Jobs in a paused queue do not count: a burst must not wait for them for ever.
    known = {queue.name: 0 if queue.paused else queue.pending for queue in await broker.queues()}
    aside = await broker.limits() if put_aside else ()
    waiting = sum(info.waiting for info in aside if info.key in put_aside)
    return waiting + sum(known.get(name, 0) for name in selection.select(known))
