"""The tasks in which a worker's slots take jobs, and whether they may.

A worker takes jobs unless an operator has paused or quieted it, a burst is checking for the last jobs, or it is
stopping. A pause is ended by a signal or an order, `quiet` only by an order.
"""

import asyncio
import logging
from collections.abc import Callable, Sequence
from contextlib import suppress

from palermo.contract.broker import Broker, QueueInfo
from palermo.contract.tasks import spawn
from palermo.core.queue_selection import QueueSelection
from palermo.errors import PalermoError
from palermo.worker.parent.broker_session import BrokerSession
from palermo.worker.parent.slot_task import SlotTask
from palermo.worker.parent.worker_state import WorkerState

log = logging.getLogger("palermo.worker")


async def served_queues(broker: Broker, selection: QueueSelection) -> list[QueueInfo]:
    found = {queue.name: queue for queue in await broker.queues()}
    return [found[name] for name in selection.select(found) if name in found]


class Serving:
    """The slots of a worker, and whether they take jobs."""

    def __init__(self, slots: Sequence[SlotTask], worker: WorkerState, *, slot_lost: Callable[[], object]) -> None:
        """`slot_lost` is called if a bug ends a slot's task."""
        self.paused = self.quiet = False
        self._slots = slots
        self._worker = worker
        self._slot_lost = slot_lost
        self._stopping_deliveries: set[asyncio.Task[None]] = set()

    @property
    def allowed(self) -> bool:
        """Whether the worker may take jobs."""
        return not self.paused and not self.quiet and not self._worker.stopping.is_set()

    def start(self) -> None:
        """Start each slot task that has ended."""
        self._worker.taking = True
        for slot in self._slots:
            if slot.task is None or slot.task.done():
                slot.task = asyncio.ensure_future(slot.serve())
                slot.task.add_done_callback(self._ended)
        self._worker.on_change()
        self._worker.may_be_empty.set()

    def stop(self) -> None:
        """Stop taking jobs. Slot tasks that wait for a job end now, the others once their job is settled."""
        self._worker.taking = False
        for slot in self._slots:
            if slot.waiting and slot.task is not None:
                slot.task.cancel()
        session = self._worker.sessions.current
        if session is not None:
            spawn(self._stopping_deliveries, self.stop_deliveries(session))
        self._worker.on_change()

    async def stop_deliveries(self, session: BrokerSession) -> None:
        """Stop the broker's deliveries to the slots."""
        with suppress(PalermoError):
            for slot in self._slots:
                if self._worker.taking:
                    return  # resumed in the meantime, so the slots listen again
                await session.consumer.pause_slot(slot.number)

    async def wait(self, timeout: float | None = None) -> None:
        """Wait until all slot tasks have ended, at most `timeout` seconds."""
        if tasks := self._tasks:
            await asyncio.wait(tasks, timeout=timeout)

    def idle(self) -> BrokerSession | None:
        """The session on which a slot is waiting for a job, or None. A slot that waits because of the pace doesn't
        count.
        """
        waiting = self._worker.taking and any(slot.waiting and slot.rest <= 0 for slot in self._slots)
        return self._worker.sessions.current if waiting else None

    async def close(self) -> None:
        """End all tasks."""
        self._worker.taking = False
        tasks = [*self._tasks, *self._stopping_deliveries]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    @property
    def _tasks(self) -> list[asyncio.Task[None]]:
        """The slot tasks that have not ended."""
        return [slot.task for slot in self._slots if slot.task is not None and not slot.task.done()]

    def _ended(self, task: "asyncio.Task[None]") -> None:
        if not task.cancelled() and (error := task.exception()) is not None:
            # A bug. The slot would stay idle forever, so the worker ends and can be restarted.
            log.critical("slot lost, ending", exc_info=error)
            self._slot_lost()
        elif self._worker.taking:
            self.start()  # resumed before the pause had ended the task
