"""The end of the jobs in a worker's queues: the hook queue_empty is called, and a burst ends."""

import asyncio
import time
from collections.abc import Awaitable, Callable, Collection
from contextlib import suppress

from palermo.contract.broker import Broker
from palermo.core.queue_selection import QueueSelection
from palermo.errors import BrokerError, PalermoError
from palermo.worker.options import WorkerOptions
from palermo.worker.parent.serving import Serving
from palermo.worker.parent.shutdown import Shutdown
from palermo.worker.parent.worker_state import WorkerState

#: Seconds that the end of a burst waits for other consumers of its queues, and between two looks at them.
_OTHERS, _LOOK_EVERY = 5.0, 0.05

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


async def is_drained(broker: Broker, selection: QueueSelection, put_aside: Collection[str]) -> bool:
    """Whether no job waits in these queues, for a worker that does not subscribe to them any more.

    A session that looks into a queue of RabbitMQ holds its jobs meanwhile, and nothing waits. So if another session
    consumes, this waits for it. It may be another worker, so not for longer than _OTHERS.
    """
    deadline = time.monotonic() + _OTHERS
    while not await count_pending(broker, selection, put_aside):
        known = {queue.name: 0 if queue.paused else queue.consumers for queue in await broker.queues()}
        if not any(known.get(name) for name in selection.select(known)) or time.monotonic() > deadline:
            return not await count_pending(broker, selection, put_aside)
        await asyncio.sleep(_LOOK_EVERY)
    return False


async def count_pending(broker: Broker, selection: QueueSelection, put_aside: Collection[str]) -> int:
    """The number of jobs that wait in these queues, and of those put aside for one of these limited keys."""
    # Jobs in a paused queue do not count: a burst must not wait for them for ever.
    known = {queue.name: 0 if queue.paused else queue.pending for queue in await broker.queues()}
    aside = await broker.limits() if put_aside else ()
    waiting = sum(info.waiting for info in aside if info.key in put_aside)
    return waiting + sum(known.get(name, 0) for name in selection.select(known))


class EmptyQueues:
    """Notices that no job waits any more in the queues of one worker."""

    def __init__(
        self,
        options: WorkerOptions,
        selection: QueueSelection,
        worker: WorkerState,
        serving: Serving,
        shutdown: Shutdown,
        *,
        on_empty: Callable[[], Awaitable[None]],
    ) -> None:
        """`on_empty` calls the hook."""
        self._options = options
        self._selection = selection
        self._serving = serving
        self._worker = worker
        self._shutdown = shutdown
        self._on_empty = on_empty
        self.watch = IdleWatch(idle=self._idle, count_pending=self._count, on_empty=self._emptied)

    def _idle(self) -> bool:
        return self._worker.taking and not self._worker.busy and self._worker.sessions.current is not None

    async def _count(self) -> int:
        session = self._worker.sessions.current
        return -1 if session is None else await count_pending(session.broker, self._selection, self._awaited)

    @property
    def _awaited(self) -> Collection[str]:
        return self._worker.put_aside if self._options.burst_waits_for_limits else ()

    async def _emptied(self) -> None:
        await self._on_empty()
        serving = self._serving
        if not self._options.burst or not self._worker.taking:
            return
        # Jobs on their way to a slot go back before the last check, so that they are counted.
        serving.stop()
        await serving.wait()
        session = self._worker.sessions.current
        if session is not None:
            await serving.stop_deliveries(session)
            with suppress(BrokerError):
                drained = await is_drained(session.broker, self._selection, self._awaited)
                if drained and not self._shutdown.begun.is_set():
                    self._shutdown.stop(None)
                    return
        if serving.allowed:
            serving.start()
            self.watch.check_soon()
