"""Takes the jobs of a time slot that comes near out of its delay queue.

The jobs of a near time slot are held until they are due; those of a far one are spread over shorter ones.
"""

import asyncio
import logging
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Awaitable, Callable

from palermo.brokers.rabbitmq.amqp.connection import Channel, Connection, quietly
from palermo.brokers.rabbitmq.amqp.messages import Got, to_message
from palermo.brokers.rabbitmq.amqp.publisher import GONE, Publisher
from palermo.brokers.rabbitmq.amqp.taking import waits
from palermo.brokers.rabbitmq.browsing.sweep import give_back
from palermo.brokers.rabbitmq.publishing.delay_queues import DelayQueues, queue_of
from palermo.brokers.rabbitmq.scheduling.due_jobs import DueJobs
from palermo.core.time_slots import TimeSlot
from palermo.errors import PalermoError

log = logging.getLogger("palermo.rabbitmq")

#: Deliveries held on one channel. Few, since an acknowledgement searches all deliveries of its channel.
_PREFETCH = 1_000

#: Another channel is opened when fewer deliveries than this are left until the prefetch is used up.
_ROOM = 200

#: Channels for one time slot, so at most this many thousand of its jobs are held.
_CHANNELS = 100

#: Hundredths of a second to wait until RabbitMQ has delivered all jobs of a delay queue.
_PATIENCE = 1_000

#: Jobs of a far time slot that are moved at a time; jobs that are due are published in between.
_BATCH = 100


class DelayReader(ABC):
    """Takes the jobs of one time slot."""

    def __init__(self, exchange: str, connection: Connection, time_slot: TimeSlot) -> None:
        self.time_slot = time_slot
        #: How many of its jobs are held.
        self.held = 0
        self._connection = connection
        self._name = queue_of(exchange, time_slot)
        self._channels: list[Channel] = []
        #: Whether it takes no more jobs: its queue was deleted, or RabbitMQ or we closed a channel.
        self.closed = False

    async def open(self) -> None:
        """Begin to take its jobs, or take more at a time. A queue that does not exist counts as empty."""
        channel = await self._connection.channel()
        channel.on_close(self._on_end)
        channel.on_cancel(self._on_end)
        self._channels.append(channel)

        def on_message(got: Got) -> None:
            self.held += 1
            self.taken(got, channel)

        try:
            await channel.prefetch(_PREFETCH)
            await channel.consume(self._name, on_message)
        except PalermoError:
            if not channel.missing:
                raise
            self.closed = True

    async def leave(self) -> None:
        """Take no more jobs and give back those that are held; returns when they are back in their queue."""
        self.closed = True
        if self.held:
            await give_back(self._connection, self._name, self._channels)
            return
        for channel in self._channels:
            await channel.close()

    async def caught_up(self) -> None:
        """Wait until all jobs that lay in the queue when this was called have been delivered."""
        for channel in list(self._channels):
            for _ in range(_PATIENCE):
                if not channel.is_open or not await waits(channel, self._name):
                    break
                await asyncio.sleep(0.01)

    @abstractmethod
    def taken(self, got: Got, channel: Channel) -> None:
        """Take note of a job that was delivered."""

    def settled(self) -> None:
        """Count one held job less."""
        self.held -= 1

    def _on_end(self) -> None:
        self.closed = True


class NearReader(DelayReader):
    """Holds each job of a near time slot until it is due."""

    def __init__(self, exchange: str, connection: Connection, time_slot: TimeSlot, due: DueJobs) -> None:
        super().__init__(exchange, connection, time_slot)
        self._due = due
        self._widening: asyncio.Task[None] | None = None

    def taken(self, got: Got, channel: Channel) -> None:
        message = to_message(got.properties, got.body, taken_from=None)
        self._due.add(message, channel, got.tag, self.settled)
        full = self.held > _PREFETCH * len(self._channels) - _ROOM
        if full and len(self._channels) < _CHANNELS and (self._widening is None or self._widening.done()):
            self._widening = asyncio.ensure_future(self._widen())

    async def _widen(self) -> None:
        try:
            await self.open()
        except PalermoError:
            self.closed = True


class FarReader(DelayReader):
    """Moves each job of a far time slot to the delay queue of a shorter time slot within it."""

    def __init__(
        self,
        exchange: str,
        connection: Connection,
        time_slot: TimeSlot,
        delay_queues: DelayQueues,
        publisher: Callable[[], Awaitable[Publisher]],
    ) -> None:
        super().__init__(exchange, connection, time_slot)
        self._exchange = exchange
        self._delay_queues = delay_queues
        self._publisher = publisher
        self._waiting: deque[tuple[Got, Channel]] = deque()
        self._working: asyncio.Task[None] | None = None

    def taken(self, got: Got, channel: Channel) -> None:
        self._waiting.append((got, channel))
        if self._working is None or self._working.done():
            self._working = asyncio.ensure_future(self._work())

    async def leave(self) -> None:
        """Take no more jobs; returns when none is on its way to another delay queue."""
        self.closed = True
        if self._working is not None:
            await asyncio.wait({self._working})
        await super().leave()

    async def _work(self) -> None:
        try:
            while self._waiting and not self.closed:
                batch = [self._waiting.popleft() for _ in range(min(_BATCH, len(self._waiting)))]
                stored, refused = await self._moved(batch)
                for got, channel in stored:
                    if channel.is_open:
                        channel.ack(got.tag)
                    self.settled()
                if refused is not None:
                    raise refused
        except PalermoError as error:
            if self._connection.error is None:
                log.warning("cannot spread delayed jobs stretch=%s error=%r", self.time_slot, str(error))
            self.closed = True
            await quietly(super().leave())

    async def _moved(self, batch: list[tuple[Got, Channel]]) -> tuple[list[tuple[Got, Channel]], BaseException | None]:
        """Publish these to the shorter time slots; return those that are stored, and why others are not."""
        sent: list[tuple[asyncio.Future[None], TimeSlot, tuple[Got, Channel]]] = []
        refused: BaseException | None = None
        for got, channel in batch:
            inner = self.time_slot.inner_slot(self._instant(got))
            try:
                if not self._delay_queues.has(inner):
                    await self._delay_queues.ensure(inner)
                publisher = await self._publisher()
            except PalermoError as not_made:
                # The jobs sent before this one are stored all the same, and must not be sent again.
                refused = not_made
                break
            future = publisher.send("", queue_of(self._exchange, inner), got.properties, got.body)
            sent.append((future, inner, (got, channel)))
        if sent:
            await asyncio.wait([future for future, _, _ in sent])
        stored: list[tuple[Got, Channel]] = []
        for future, inner, one in sent:
            error = future.exception()
            if error is None:
                stored.append(one)
            elif isinstance(error, GONE):
                self._delay_queues.forget(inner)
                self._waiting.append(one)
            else:
                refused = error
        return stored, refused

    def _instant(self, got: Got) -> float:
        due = to_message(got.properties, b"", taken_from=None).run_at or 0.0
        return min(max(due, self.time_slot.begins), self.time_slot.ends - 0.001)
