"""Applies pauses and cancels to one worker: it takes nothing from paused queues and runs no cancelled jobs."""

import asyncio
import logging
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from typing import Any, Generic

from msgspec.structs import replace

from palermo.brokers.rabbitmq.amqp.connection import Connection
from palermo.brokers.rabbitmq.amqp.stream import Record, Stream
from palermo.brokers.rabbitmq.cluster.pauses_and_cancels import Cancels, Mark, Pauses, PausesAndCancels, S
from palermo.contract.broker import Delivery
from palermo.contract.worker_info import OnCommand, WorkerCommand
from palermo.core.queue_selection import PausedQueues
from palermo.errors import PalermoError

log = logging.getLogger("palermo.rabbitmq")

#: Seconds between attempts to read a stream that is down.
_AGAIN = 2.0

#: Seconds that a worker takes no jobs while it cannot read which queues are paused and which jobs cancelled.
_UNKNOWING = 30.0

#: Seconds that a cancel outlives its job: a RabbitMQ that is killed may redeliver what was just acknowledged.
_LINGER = 30.0

#: The same when the worker stops: it may be a short-lived one that never comes back.
_LINGER_AT_END = 3.0

_LAST_WORDS = 2.0


class Watch(Generic[S]):
    """Follows one stream as long as the connection lasts, whatever becomes of the stream.

    While the stream is down, the last known state holds. If no state is known yet, `ready` is delayed, but not for
    ever: RabbitMQ may lose a stream that it made just before it was killed, and jobs must go on.
    """

    def __init__(
        self, stream: Stream, connection: Connection, fresh: Callable[[], S], changed: Callable[[S, Record], None]
    ) -> None:
        """`changed` is called with the state once it is read, and then after every record."""
        self._stream = stream
        self._connection = connection
        self._fresh = fresh
        self._changed = changed
        self.state = fresh()
        self._told = asyncio.Event()
        #: Set once the stream has been read, or is known not to exist, or could not be read for `_UNKNOWING` seconds.
        self.ready = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    def begin(self) -> None:
        self._task = asyncio.ensure_future(self._run())

    def look(self) -> None:
        """Look for the stream again if there was none."""
        self._told.set()

    async def known(self) -> None:
        """Wait until it is ready. Raises the connection's error if the connection is lost first."""
        await _either(self.ready, self._connection.lost)
        if self._connection.error is not None:
            raise self._connection.error

    async def close(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait({self._task})

    async def _run(self) -> None:
        loop = asyncio.get_running_loop()
        begun = loop.time()
        while self._connection.error is None:
            self._told.clear()
            state = self._fresh()

            def apply(record: Record, state: S = state) -> None:
                state.apply(record)
                if self.state is state:
                    self._changed(state, record)

            try:
                follower = await self._stream.follow(self._connection, apply)
            except PalermoError as error:
                if self._connection.error is not None:
                    return
                if self.ready.is_set() or loop.time() - begun > _UNKNOWING:
                    log.error("going on without knowing %s error=%r", self._stream.holds, str(error))
                    self.ready.set()
                else:
                    log.warning("taking no jobs before it is known %s error=%r", self._stream.holds, str(error))
                await asyncio.sleep(_AGAIN)
                continue
            self.state = state
            self._changed(state, {})
            self.ready.set()
            if follower is None:
                await _either(self._told, self._connection.lost)
                continue
            ended = asyncio.Event()
            if follower.is_open:
                follower.on_close(ended.set)
                try:
                    await ended.wait()
                except asyncio.CancelledError:
                    if self._connection.error is None:
                        await follower.close()
                    raise


class Steering:
    """Applies pauses and cancels, for one worker's consumer."""

    def __init__(
        self,
        marks: PausesAndCancels,
        connection: Connection,
        *,
        on_command: OnCommand,
        pause: Callable[[PausedQueues], None],
        held: Callable[[], Iterable[Delivery]],
    ) -> None:
        """`pause` is called with the queues that are paused; `held` returns the unsettled deliveries."""
        self._pauses_and_cancels = marks
        self._on_command = on_command
        self._pause = pause
        self._held = held
        self._pauses = Watch(marks.pauses, connection, Pauses, self._paused)
        self._cancels = Watch(marks.cancels, connection, Cancels, self._cancelled)
        #: Whether any job is cancelled; if not, `checked` and `gone` do nothing.
        self.has_cancels = False
        #: By job id: cancels whose jobs have left their queues, and since when.
        self._done: dict[str, tuple[Mark, float]] = {}
        self._news = asyncio.Event()
        self._loop = asyncio.get_running_loop()
        self._timer: asyncio.TimerHandle | None = None
        self._tasks: set[asyncio.Task[object]] = set()

    async def begin(self) -> None:
        """Follow pauses and cancels; returns once they are known, or a stream has been down for too long.

        Raises the connection's error if the connection is lost meanwhile.
        """
        self._pauses.begin()
        self._cancels.begin()
        await self._pauses.known()
        await self._cancels.known()

    async def look(self, news: Mapping[str, Any]) -> None:
        """Follow up news of a pause or cancel, perhaps the first; returns once the queue's pause is known here."""
        self._pauses.look()
        self._cancels.look()
        with suppress(TimeoutError):
            async with asyncio.timeout(_LAST_WORDS):
                queue = news.get("queue")
                while isinstance(queue, str) and (queue in self._pauses.state.queues) != news.get("paused"):
                    self._news.clear()
                    await self._news.wait()

    def checked(self, delivery: Delivery) -> Delivery:
        """The delivery, marked as cancelled if it is."""
        mark = self._cancels.state.find(delivery.message)
        return delivery if mark is None else replace(delivery, cancelled=True, cancelled_by=mark.by)

    def gone(self, delivery: Delivery) -> None:
        """Note that its job has left the queue for good."""
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
            async with asyncio.timeout(_LAST_WORDS):
                await self._forget(_LINGER_AT_END)
        for task in list(self._tasks):
            task.cancel()
        await self._pauses.close()
        await self._cancels.close()

    def _paused(self, state: Pauses, record: Record) -> None:
        self._pause(state.paused)
        self._news.set()

    def _cancelled(self, state: Cancels, record: Record) -> None:
        """Order the end of jobs that were taken before their cancel was known here; they may run by now."""
        self.has_cancels = bool(state.marks)
        ids = record.get("cancel")
        for delivery in list(self._held()):
            id = delivery.message.id
            if (ids is None and not record) or (isinstance(ids, list) and id in ids):
                mark = state.find(delivery.message)
                if mark is not None and not delivery.cancelled:
                    self._spawn(WorkerCommand(action="cancel", id=id, by=mark.by))

    def _spawn(self, order: WorkerCommand) -> None:
        task: asyncio.Task[object] = asyncio.ensure_future(self._on_command(order))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def _forget_soon(self) -> None:
        self._timer = None
        task: asyncio.Task[object] = asyncio.ensure_future(self._forget(_LINGER))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _forget(self, linger: float) -> None:
        now = self._loop.time()
        due = {id: mark for id, (mark, since) in self._done.items() if now - since >= linger}
        for id in due:
            del self._done[id]
        if self._done:
            self._timer = self._loop.call_later(_LINGER, self._forget_soon)
        with suppress(PalermoError):  # then the stream drops the cancels when it has grown enough
            await self._pauses_and_cancels.forget(due)


async def _either(one: asyncio.Event, other: asyncio.Event) -> None:
    waiting = [asyncio.ensure_future(event.wait()) for event in (one, other)]
    try:
        await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in waiting:
            task.cancel()
