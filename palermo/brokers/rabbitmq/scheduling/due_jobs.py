"""The jobs of time slots that come near: the leader takes them, and holds those that are due within seconds.

A job is held unacknowledged until it is published. The jobs of a far time slot are spread over shorter ones.

The leader publishes a job at its instant, by this machine's wall clock, and acknowledges it once the publish is
confirmed. If the queue refuses a job, the leader goes on holding it, and the jobs that come due after it for the same
queue wait behind it. From its instant on nobody can cancel a job any more: a caller who tries is told so.

A job that can never be published goes to `failed` at once: its queue's name is invalid, or its headers do not fit a
frame of the leader's connection.
"""

import asyncio
import heapq
import logging
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from itertools import count

from msgspec.structs import replace

from palermo.brokers.rabbitmq.amqp.connection import Channel, Connection, quietly
from palermo.brokers.rabbitmq.amqp.messages import Got, to_message
from palermo.brokers.rabbitmq.amqp.publisher import GONE, Publisher, PublishFuture, Unfit
from palermo.brokers.rabbitmq.browsing.sweep import give_back, waits
from palermo.brokers.rabbitmq.publishing.handover import Refusals, outcomes, unpublishable
from palermo.brokers.rabbitmq.publishing.job_destinations import (
    DelayQueues,
    JobDestinations,
    TenantQueue,
    delay_queue_name,
)
from palermo.contract.clock import seconds_until
from palermo.core.message import Message
from palermo.core.time_slots import TimeSlot
from palermo.core.topology import FAILED_QUEUE, check_job_queue, is_failed
from palermo.errors import BrokerUnavailable, PalermoError, QueueNameInvalid

#: The wall clock may jump: the leader looks at it this often, in seconds, however far away the next job is.
_LOOK_EVERY = 0.5

#: Jobs published at once, before the event loop runs other tasks.
_AT_ONCE = 200


@dataclass(order=True, slots=True)
class HeldJob:
    """One job that the leader holds, and what it needs to settle it."""

    due: float
    number: int
    message: Message = field(compare=False)
    channel: Channel = field(compare=False)
    tag: int = field(compare=False)
    settled: Callable[[], None] = field(compare=False)
    #: Where it is published: its job queue, its tenant's queue or `failed`.
    place: str | TenantQueue = field(compare=False)
    #: Whether it was published or taken out: it stays in the heap until its turn comes.
    gone: bool = field(default=False, compare=False)

    def ack(self) -> None:
        """Settle the job: acknowledge it, unless its channel is closed and RabbitMQ has taken it back."""
        if self.channel.is_open:
            self.channel.ack(self.tag)
        self.settled()


class DueJobs:
    """The held jobs in the order of their instants; publishes each when it is due."""

    def __init__(
        self,
        connection: Connection,
        publisher: Callable[[], Awaitable[Publisher]],
        destinations: JobDestinations,
        *,
        now: Callable[[], float],
    ) -> None:
        self._connection = connection
        self._open = publisher
        self._publisher: Publisher | None = None
        self._destinations = destinations
        self._now = now
        self._heap: list[HeldJob] = []
        self._by_id: dict[str, HeldJob] = {}
        self._numbers = count()
        self._timer: asyncio.TimerHandle | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._loop = asyncio.get_running_loop()
        #: Publishes that are not confirmed yet.
        self._flying: set[asyncio.Future[None]] = set()
        #: Due jobs that were refused, by the place that refused them.
        self._refused: dict[str | TenantQueue, list[HeldJob]] = {}
        self._closed = False

    def add(self, message: Message, channel: Channel, tag: int, settled: Callable[[], None]) -> None:
        """Hold a job until its instant; publish it at once if that has passed."""
        try:
            check_job_queue(message.queue)
        except QueueNameInvalid as error:
            self.fail(message, error, channel, tag, settled)
            return
        place = TenantQueue.of(message) or message.queue
        self._add(HeldJob(message.run_at or 0.0, next(self._numbers), message, channel, tag, settled, place))

    def fail(
        self, message: Message, error: PalermoError, channel: Channel, tag: int, settled: Callable[[], None]
    ) -> None:
        """Hold a job that can never be published, until it is stored among the failed jobs with this error."""
        failed = unpublishable(message, error, now=self._now())
        # No queue of failed jobs is made for a queue whose name is invalid.
        invalid = isinstance(error, QueueNameInvalid)
        place = FAILED_QUEUE if invalid else self._destinations.failed_place(message.queue)
        self._add(HeldJob(0.0, next(self._numbers), failed, channel, tag, settled, place))

    def has(self, id: str) -> bool:
        """Whether the job with this id is held, and not on its way to `failed`."""
        held = self._by_id.get(id)
        return held is not None and self._is_there(held) and not _is_for_failed(held.place)

    def call(self, id: str) -> None:
        """Publish this held job now: there is a permit for it, and it has had its tenant's turn."""
        held, now = self._by_id[id], self._now()
        held.gone = True
        message = replace(held.message, run_at=now)
        number = next(self._numbers)
        # Straight into its job queue, past the jobs that wait for their tenants' turns.
        self._add(HeldJob(now, number, message, held.channel, held.tag, held.settled, message.queue))

    def _add(self, held: HeldJob) -> None:
        heapq.heappush(self._heap, held)
        self._by_id[held.message.id] = held
        if self._heap[0] is held:
            self._set_timer()

    def take(self, means: Callable[[Message], bool]) -> list[HeldJob]:
        """Take out the jobs that `means` selects, so that they are not published; the caller settles them."""
        self._ring()
        taken = [held for held in self._heap if self._is_there(held) and means(held.message)]
        for held in taken:
            held.gone = True
        return sorted(taken)

    def put_back(self, held: HeldJob) -> None:
        """Hold this job again, as if it had not been taken out."""
        number, message = next(self._numbers), held.message
        self._add(HeldJob(held.due, number, message, held.channel, held.tag, held.settled, held.place))

    def jobs(self) -> list[Message]:
        """The held jobs, in the order of their instants."""
        return [held.message for held in sorted(held for held in self._heap if self._is_there(held))]

    async def close(self) -> None:
        """Publish no more, and wait for what is under way.

        Without its confirm a job would be published twice, and without its entry in the log a failed job is not shown.
        """
        self._closed = True
        try:
            while self._flying:
                await asyncio.wait(set(self._flying))
        finally:
            if self._timer is not None:
                self._timer.cancel()
            for task in self._tasks:
                task.cancel()

    @staticmethod
    def _is_there(held: HeldJob) -> bool:
        # RabbitMQ has taken back the jobs of a closed channel, and delivers them again.
        return not held.gone and held.channel.is_open

    def _set_timer(self, wait: float | None = None) -> None:
        if self._timer is not None:
            self._timer.cancel()
        if wait is None:
            wait = min(_LOOK_EVERY, seconds_until(self._heap[0].due, self._now))
        self._timer = self._loop.call_later(wait, self._ring)

    def _ring(self) -> None:
        if self._closed:
            return
        connection, heap = self._connection, self._heap
        now, published = self._now(), 0
        while heap and (heap[0].gone or heap[0].due <= now):
            if published >= _AT_ONCE or not connection.raw.writable.is_set():
                break
            held = heapq.heappop(heap)
            if self._by_id.get(held.message.id) is held:
                del self._by_id[held.message.id]
            if held.gone:
                continue
            if self._is_there(held):
                self._publish(held)
                published += 1
            else:
                held.settled()
        if published:
            connection.raw.flush()
        if heap:
            self._set_timer(None if connection.raw.writable.is_set() else 0.005)

    def _publish(self, held: HeldJob) -> None:
        held.gone = True
        place, publisher = held.place, self._publisher
        if place in self._refused:
            heapq.heappush(self._refused[place], held)
        elif publisher is None or not publisher.is_open or not self._destinations.has(place):
            self._later(self._see_to(held))
        else:
            self._send(publisher, held).add_done_callback(lambda done: self._published(held, done))

    def _send(self, publisher: Publisher, held: HeldJob) -> "asyncio.Future[None]":
        """Publish a job. It is settled as soon as the confirm comes, also if nobody waits for that."""
        future = publisher.send_job(*self._destinations.route(held.place), held.message)
        self._flying.add(future)
        future.add_done_callback(lambda done: self._answered(held, done))
        return future

    def _answered(self, held: HeldJob, done: "asyncio.Future[None]") -> None:
        self._flying.discard(done)
        if not done.cancelled() and done.exception() is None:
            held.ack()
            if _is_for_failed(held.place):
                noting = asyncio.ensure_future(self._destinations.note_failed(held.place, [held.message]))
                self._flying.add(noting)
                noting.add_done_callback(self._flying.discard)

    def _published(self, held: HeldJob, done: "asyncio.Future[None]") -> None:
        error = None if done.cancelled() else done.exception()
        if isinstance(error, GONE):
            self._destinations.forget(held.place)
            self._later(self._see_to(held))
        elif isinstance(error, PalermoError):
            self._keep(held, error)

    async def _see_to(self, held: HeldJob) -> None:
        """Publish a job for which a queue or a channel has to be made first."""
        try:
            await self._store(held)
        except PalermoError as error:
            self._keep(held, error)

    async def _store(self, held: HeldJob) -> None:
        """Publish a job and wait until it is stored. Raises the error if it is not.

        Raises BrokerUnavailable after `close` began: nobody would settle the job, and the next leader publishes it.
        """

        async def send() -> None:
            self._publisher = await self._open()
            if self._closed:
                raise BrokerUnavailable("this session leads no more.")
            await self._send(self._publisher, held)

        await self._destinations.at(held.place, held.message.priority).publish(send)

    def _keep(self, held: HeldJob, error: PalermoError) -> None:
        """Keep a refused job and try again later. If the connection is lost, the next leader gets the job."""
        if self._connection.error is not None or self._closed:
            return
        if _is_hopeless(held, error):
            self.fail(held.message, error, held.channel, held.tag, held.settled)
            return
        if held.place not in self._refused:
            self._refused[held.place] = []
            self._later(self._try_again(held.place, error))
        heapq.heappush(self._refused[held.place], held)

    async def _try_again(self, place: str | TenantQueue, error: PalermoError | None) -> None:
        """Publish the jobs that this place has refused: one at first, then more as long as the place takes them."""
        refusals = Refusals(f"delayed jobs for queue {_queue(place)!r}")
        waiting, most = self._refused[place], 1
        try:
            while waiting:
                if error is not None:
                    await asyncio.sleep(refusals.refused(error, some=most > 1))
                batch = [heapq.heappop(waiting) for _ in range(min(most, len(waiting)))]
                there = [held for held in batch if held.channel.is_open]
                for held in batch:
                    if not held.channel.is_open:
                        held.settled()  # RabbitMQ has it back, and delivers it again
                error = None
                for held, found in zip(
                    there, await outcomes(self._connection, [self._store(held) for held in there]), strict=True
                ):
                    if found is not None:
                        self._keep(held, found)
                        error = error if _is_hopeless(held, found) else found
                most = min(2 * most, _AT_ONCE) if error is None else 1
        except PalermoError:
            return  # the connection is lost
        finally:
            del self._refused[place]

    def _later(self, work: Awaitable[None]) -> None:
        task = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)


def _is_hopeless(held: HeldJob, error: PalermoError) -> bool:
    """Whether the job can never be published where it belongs."""
    return isinstance(error, Unfit) and not _is_for_failed(held.place)


def _is_for_failed(place: str | TenantQueue) -> bool:
    return isinstance(place, str) and is_failed(place)


def _queue(place: str | TenantQueue) -> str:
    return place if isinstance(place, str) else place.queue


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

    #: Deliveries held on one channel.
    prefetch = _PREFETCH

    def __init__(self, exchange: str, connection: Connection, time_slot: TimeSlot) -> None:
        self.time_slot = time_slot
        #: How many of its jobs are held.
        self.held = 0
        self._connection = connection
        self._name = delay_queue_name(exchange, time_slot)
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
            await channel.prefetch(self.prefetch)
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

    prefetch = 3 * _BATCH

    def __init__(
        self,
        exchange: str,
        connection: Connection,
        time_slot: TimeSlot,
        publisher: Callable[[], Awaitable[Publisher]],
        delay_queues: DelayQueues,
        names: set[str],
        due: DueJobs,
    ) -> None:
        """`names` are those of all time slots that have a queue; a time slot that is made here is added."""
        super().__init__(exchange, connection, time_slot)
        self._exchange = exchange
        self._delay_queues = delay_queues
        self._names = names
        self._due = due
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
                refused = await self._move(batch)
                if refused is not None:
                    raise refused
        except PalermoError as error:
            if self._connection.error is None:
                log.warning(
                    "cannot move delayed jobs to shorter time slots slot=%s error=%r", self.time_slot, str(error)
                )
            self.closed = True
            await quietly(super().leave())

    async def _move(self, batch: list[tuple[Got, Channel]]) -> BaseException | None:
        """Move these to the shorter time slots: publish, then acknowledge. Returns why some are not stored."""
        sent: list[tuple[asyncio.Future[None], TimeSlot, tuple[Got, Channel]]] = []
        refused: BaseException | None = None
        for got, channel in batch:
            inner = self.time_slot.inner_slot(self._instant(got))
            try:
                if not self._delay_queues.has(inner):
                    await self._delay_queues.ensure(inner)
                    self._names.add(str(inner))
                publisher = await self._publisher()
            except PalermoError as not_made:
                # The jobs sent before this one are stored all the same, and must not be sent again.
                refused = not_made
                break
            ended = PublishFuture()
            publisher.forward("", delay_queue_name(self._exchange, inner), got, ended)
            sent.append((ended.future, inner, (got, channel)))
        if sent:
            await asyncio.wait([future for future, _, _ in sent])
        for future, inner, one in sent:
            error = future.exception()
            if error is None:
                got, channel = one
                if channel.is_open:
                    channel.ack(got.tag)
                self.settled()
            elif isinstance(error, GONE):
                self._delay_queues.forget(inner)
                self._waiting.append(one)
            elif isinstance(error, Unfit):
                got, channel = one
                message = to_message(got.properties, got.body, taken_from=None)
                self._due.fail(message, error, channel, got.tag, self.settled)
            else:
                refused = error
        return refused

    def _instant(self, got: Got) -> float:
        due = to_message(got.properties, b"", taken_from=None).run_at or 0.0
        return min(max(due, self.time_slot.begins), self.time_slot.ends - 0.001)
