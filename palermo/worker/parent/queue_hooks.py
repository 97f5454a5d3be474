"""Watches a worker's queues for the hooks queue_size and queue_empty, and for the end of a burst."""

import asyncio
import time
from collections.abc import Collection
from contextlib import suppress

from palermo.contract.broker import Broker
from palermo.core.queue_selection import QueueSelection
from palermo.errors import BrokerError, PalermoError
from palermo.worker.parent.serving import Serving, served_queues
from palermo.worker.parent.shutdown import Shutdown
from palermo.worker.parent.worker_state import WorkerState

#: Seconds that the end of a burst waits for other consumers of its queues, and between checks for them.
_OTHERS, _LOOK_EVERY = 5.0, 0.05

#: Seconds that the slots must be idle before the broker is asked, and the longest pause between requests.
_FIRST, _MAX = 0.02, 1.0

#: Minimum seconds between reports of the queue sizes.
_PACE_EVERY = 1.0

#: The pause after a report is at least this multiple of the broker's response time, so that reports stay cheap with
#: many queues.
_PAUSE_FACTOR = 20.0


async def keep_pace(worker: WorkerState) -> None:
    """Report the queue sizes to the hook, which returns the pace, until cancelled."""
    while True:
        began = time.monotonic()
        try:
            session = worker.sessions.current
            queues = None if session is None else await served_queues(session.broker, worker.selection)
        except PalermoError:
            queues, began = None, time.monotonic()  # if the session is lost, the slots will notice
        took = time.monotonic() - began
        if queues is not None:
            worker.pace = await worker.pool.hook("queue_size", {queue.name: queue.pending for queue in queues})
        await asyncio.sleep(max(_PACE_EVERY, _PAUSE_FACTOR * took))


async def is_drained(broker: Broker, selection: QueueSelection, deferred_keys: Collection[str]) -> bool:
    """Whether no job waits in these queues. The worker must have stopped its deliveries.

    While another session reads one of RabbitMQ's queues, it holds the jobs, so none seem to wait. Therefore this waits
    for other consumers, but at most _OTHERS seconds, since they may be other workers.
    """
    # The leader publishes all steps that have become ready on RabbitMQ.
    await broker.workflows.next_due()
    deadline = time.monotonic() + _OTHERS
    while not await count_pending(broker, selection, deferred_keys):
        others = any(queue.consumers for queue in await served_queues(broker, selection) if not queue.paused)
        if not others or time.monotonic() > deadline:
            return not await count_pending(broker, selection, deferred_keys)
        await asyncio.sleep(_LOOK_EVERY)
    return False


async def count_pending(broker: Broker, selection: QueueSelection, deferred_keys: Collection[str]) -> int:
    """Return the number of jobs that wait in these queues, or were deferred for one of these limit keys."""
    limits = await broker.limits() if deferred_keys else ()
    waiting = sum(info.waiting for info in limits if info.key in deferred_keys)
    # Jobs in paused queues don't count, because a burst must not wait for them forever.
    return waiting + sum(queue.pending for queue in await served_queues(broker, selection) if not queue.paused)


class EmptyQueues:
    """Detects that a worker's queues are empty, by asking the broker while all slots are idle."""

    def __init__(self, worker: WorkerState, serving: Serving, shutdown: Shutdown) -> None:
        self._serving = serving
        self._worker = worker
        self._shutdown = shutdown

    async def run(self) -> None:
        """Ask whenever the queues may be empty, until cancelled."""
        wanted = self._worker.may_be_empty
        while True:
            await wanted.wait()
            pause = _FIRST
            while wanted.is_set():
                await asyncio.sleep(pause)
                pause = min(pause * 2, _MAX)
                if not self._idle():
                    wanted.clear()  # set again when the worker is idle
                elif await self._are_empty() and self._idle():
                    wanted.clear()
                    await self._emptied()

    def _idle(self) -> bool:
        return self._worker.taking and not self._worker.busy and self._worker.sessions.current is not None

    async def _are_empty(self) -> bool:
        session = self._worker.sessions.current
        with suppress(PalermoError):  # if the session is lost, the slots will notice
            return session is not None and not await count_pending(
                session.broker, self._worker.selection, self._awaited
            )
        return False

    @property
    def _awaited(self) -> Collection[str]:
        return self._worker.deferred_keys if self._worker.options.burst_waits_for_limits else ()

    async def _emptied(self) -> None:
        if self._worker.processed:
            await self._worker.hook("queue_empty")
        serving = self._serving
        if not self._worker.options.burst or not self._worker.taking:
            return
        # Jobs on their way to a slot are requeued before the last check, so that it counts them.
        serving.stop()
        await serving.wait()
        session = self._worker.sessions.current
        if session is not None:
            await serving.stop_deliveries(session)
            with suppress(BrokerError):
                drained = await is_drained(session.broker, self._worker.selection, self._awaited)
                if drained and not self._shutdown.begun.is_set():
                    self._shutdown.stop(None)
                    return
        if serving.allowed:
            serving.start()
