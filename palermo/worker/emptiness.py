"""Noticing that a worker's queues have become empty: what ends a burst, and calls the hook queue_empty."""

import asyncio
from collections.abc import Awaitable, Callable, Collection

from palermo.broker import Broker
from palermo.core.patterns import QueueSelection
from palermo.errors import BrokerError

#: Seconds that the slots must be idle before the broker is asked, and the most between two questions.
_FIRST, _MAX = 0.02, 1.0


class EmptyWatch:
    """Asks the broker, once the slots are idle, whether anything waits; tells once each time nothing does."""

    def __init__(
        self,
        *,
        idle: Callable[[], bool],
        pending: Callable[[], Awaitable[int]],
        on_empty: Callable[[], Awaitable[None]],
    ) -> None:
        self._idle = idle
        self._pending = pending
        self._on_empty = on_empty
        self._timer: asyncio.TimerHandle | None = None
        self._task: asyncio.Task[None] | None = None
        self._told = False
        self._pause = _FIRST

    def look(self) -> None:
        """A job has ended, or the worker has begun: look soon. Cheap, since it is called after every job."""
        self._told = False
        if self._timer is None and self._task is None:
            self._pause = _FIRST
            self._wait()

    def close(self) -> None:
        """Look no more."""
        if self._timer is not None:
            self._timer.cancel()
        if self._task is not None:
            self._task.cancel()

    def _wait(self) -> None:
        self._timer = asyncio.get_running_loop().call_later(self._pause, self._tick)
        self._pause = min(self._pause * 2, _MAX)

    def _tick(self) -> None:
        self._timer = None
        # Not idle: the job that runs will call look() when it ends.
        if self._idle() and not self._told:
            self._task = asyncio.ensure_future(self._check())

    async def _check(self) -> None:
        try:
            empty = not await self._pending()
        except BrokerError:
            empty = False  # the slots will notice that the session is lost, if it is
        if empty and self._idle():
            self._told = True
            await self._on_empty()
        self._task = None
        if not self._told and self._idle():
            self._wait()


async def pending(broker: Broker, selection: QueueSelection, put_aside: Collection[str]) -> int:
    """How many jobs wait in these queues; and how many are put aside that have one of these limited keys."""
    # What waits in a paused queue is not to be done now, and a burst must not wait for ever.
    known = {queue.name: 0 if queue.paused else queue.pending for queue in await broker.queues()}
    aside = await broker.limits() if put_aside else ()
    waiting = sum(info.waiting for info in aside if info.key in put_aside)
    return waiting + sum(known.get(name, 0) for name in selection.select(known))
