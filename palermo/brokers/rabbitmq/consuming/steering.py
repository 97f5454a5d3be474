"""Applies pauses and cancels to one worker."""

import asyncio
from collections.abc import Callable, Iterable
from contextlib import suppress

from msgspec.structs import replace

from palermo.brokers.rabbitmq.amqp.connection import Connection
from palermo.brokers.rabbitmq.amqp.stream import Record
from palermo.brokers.rabbitmq.cluster.cancels import CancelMarks, Cancels, Mark
from palermo.brokers.rabbitmq.cluster.facts import PAUSE, Facts, FactState
from palermo.brokers.rabbitmq.seconds import STORED_WITHIN
from palermo.contract.broker import Delivery
from palermo.contract.tasks import spawn, together
from palermo.contract.worker_info import OnCommand, WorkerCommand
from palermo.core.queue_selection import PausedQueues
from palermo.errors import PalermoError

#: Seconds that a cancel mark outlives its job: a killed RabbitMQ may redeliver a job that was just acknowledged.
_LINGER = 30.0

#: The same while the worker stops, since it may never start again.
_LINGER_AT_END = 3.0


class Steering:
    """Applies pauses and cancels, for one worker's consumer."""

    def __init__(
        self,
        facts: Facts,
        cancels: CancelMarks,
        connection: Connection,
        *,
        on_command: OnCommand,
        pause: Callable[[PausedQueues], None],
        held: Callable[[], Iterable[Delivery]],
    ) -> None:
        """`pause` is called with the paused queues; `held` returns the unsettled deliveries."""
        self._facts = facts
        self._cancels = cancels
        self._connection = connection
        self._on_command = on_command
        self._pause = pause
        self._held = held
        #: Whether any job is cancelled. If not, `checked` and `left_queue` do nothing.
        self.has_cancels = False
        #: By job id: marks whose jobs have left their queues, and when they did.
        self._done: dict[str, tuple[Mark, float]] = {}
        self._loop = asyncio.get_running_loop()
        self._timer: asyncio.TimerHandle | None = None
        self._tasks: set[asyncio.Task[object]] = set()

    async def begin(self) -> None:
        """Follow pauses and cancels; returns once they are known, or if a stream is down for too long.

        Raises the connection's error if the connection is lost in the meantime.
        """
        await together(
            self._facts.watch(self._connection, self._paused), self._cancels.watch(self._connection, self._cancelled)
        )
        self._paused(self._facts.state, {})
        self._cancelled(self._cancels.state, {})

    async def look(self) -> None:
        """Read all pauses and cancels up to now."""
        with suppress(PalermoError, TimeoutError):
            async with asyncio.timeout(STORED_WITHIN):
                await together(self._facts.read(self._connection), self._cancels.read(self._connection))

    def checked(self, delivery: Delivery) -> Delivery:
        """The delivery, marked as cancelled if its job is."""
        mark = self._cancels.state.find(delivery.message)
        return delivery if mark is None else replace(delivery, cancelled=True, cancelled_by=mark.by)

    def left_queue(self, delivery: Delivery) -> None:
        """Record that its job has left the queue permanently."""
        mark = self._cancels.state.find(delivery.message)
        if mark is None:
            return
        self._done[delivery.message.id] = (mark, self._loop.time())
        if self._timer is None:
            self._timer = self._loop.call_later(_LINGER, self._forget_soon)

    async def close(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        with suppress(PalermoError, TimeoutError):
            async with asyncio.timeout(STORED_WITHIN):
                await self._forget(_LINGER_AT_END)
        for task in list(self._tasks):
            task.cancel()
        self._facts.ignore(self._paused)
        self._cancels.ignore(self._cancelled)

    def _paused(self, state: FactState, record: Record) -> None:
        if record.get("kind", PAUSE) == PAUSE:
            self._pause(state.paused)

    def _cancelled(self, state: Cancels, record: Record) -> None:
        """Stop jobs that were taken before their cancel was known here. They may be running."""
        self.has_cancels = bool(state.marks)
        ids = record.get("cancel")
        for delivery in list(self._held()):
            id = delivery.message.id
            if (ids is None and not record) or (isinstance(ids, list) and id in ids):
                mark = state.find(delivery.message)
                if mark is not None and not delivery.cancelled:
                    spawn(self._tasks, self._on_command(WorkerCommand(action="cancel", id=id, by=mark.by)))

    def _forget_soon(self) -> None:
        self._timer = None
        spawn(self._tasks, self._forget(_LINGER))

    async def _forget(self, linger: float) -> None:
        now = self._loop.time()
        due = {id: mark for id, (mark, since) in self._done.items() if now - since >= linger}
        for id in due:
            del self._done[id]
        if self._done:
            self._timer = self._loop.call_later(_LINGER, self._forget_soon)
        with suppress(PalermoError):  # the stream drops old marks when it has grown enough
            await self._cancels.forget(due)
