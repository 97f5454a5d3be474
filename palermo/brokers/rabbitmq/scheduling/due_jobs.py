"""Holds the jobs that are due within minutes, for the leader, and publishes each when it is due.

The leader takes them from the intake SOON and holds them unacknowledged. At its due time, by this machine's wall clock,
it publishes a job, and acknowledges it after the confirm. If the queue refuses the job, the leader keeps it and
retries. A due job can't be cancelled any more.

A job that can never be published goes to `failed` immediately: its queue's name is invalid, or its headers don't fit a
frame of the leader's connection.

Cost: about 2 kB of memory plus the job itself, for at most _CHANNELS thousand jobs. Jobs behind them may be late.
"""

import asyncio
import heapq
from collections import Counter
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from functools import partial
from itertools import count

from msgspec.structs import replace

from palermo.brokers.rabbitmq.amqp.connection import Channel, Connection
from palermo.brokers.rabbitmq.amqp.messages import Got, to_message
from palermo.brokers.rabbitmq.amqp.publisher import Publisher
from palermo.brokers.rabbitmq.browsing.sweep import waits
from palermo.brokers.rabbitmq.publishing.handover import is_mark, unpublishable, write_acks
from palermo.brokers.rabbitmq.publishing.job_destinations import JobDestinations, TenantQueue
from palermo.brokers.rabbitmq.publishing.ledger import RefusedJobs
from palermo.brokers.rabbitmq.seconds import DELIVERED_WITHIN, LOOK_EVERY
from palermo.contract.clock import seconds_until
from palermo.contract.tasks import quietly, spawn
from palermo.core.due_times import Intake
from palermo.core.message import Message
from palermo.core.topology import FAILED_QUEUE, check_job_queue, is_failed
from palermo.errors import HeadersTooLarge, NotFound, PalermoError, QueueNameInvalid

#: Number of jobs published before the event loop runs other tasks.
_AT_ONCE = 200

#: Number of deliveries held on one channel. An acknowledgement searches all of its channel's deliveries, so it is
#: small.
_PREFETCH = 1_000

#: Another channel is opened when a channel's prefetch has room for fewer deliveries than this.
_ROOM = 200

#: Maximum number of channels, and so the maximum number of held jobs in thousands.
_CHANNELS = 200


@dataclass(order=True, slots=True)
class HeldJob:
    """A job that the leader holds, with the data for settling it."""

    due: float
    number: int
    message: Message = field(compare=False)
    channel: Channel = field(compare=False)
    tag: int = field(compare=False)
    #: Its destination: its job queue, its tenant's queue or `failed`.
    place: str | TenantQueue = field(compare=False)
    #: Whether it was published or removed. It stays in the heap until its due time.
    removed: bool = field(default=False, compare=False)


class DueJobs:
    """The held jobs by due time; publishes each when it is due."""

    def __init__(
        self,
        connection: Connection,
        publisher: Callable[[], Awaitable[Publisher]],
        destinations: JobDestinations,
        *,
        now: Callable[[], float],
    ) -> None:
        self._connection = connection
        self._open_publisher = publisher
        self._publisher: Publisher | None = None
        self._destinations = destinations
        self._queue = destinations.route(Intake.SOON)[1]
        self._now = now
        #: Number of jobs held on each channel.
        self._held: Counter[Channel] = Counter()
        self._opening: asyncio.Task[None] | None = None
        self._heap: list[HeldJob] = []
        self._by_id: dict[str, HeldJob] = {}
        self._numbers = count()
        self._timer: asyncio.TimerHandle | None = None
        self._loop = asyncio.get_running_loop()
        #: Unconfirmed publishes, and channels that are being opened.
        self._under_way: set[asyncio.Future[None]] = set()
        #: The due jobs that their queues refused.
        self._refused = RefusedJobs(connection, self._publish_refused, "delayed jobs")
        self._waiting: dict[str, HeldJob] = {}
        #: Whether jobs were acknowledged since the last mark.
        self._acked = False
        self._closed = False

    async def open(self) -> None:
        """Start taking jobs from the intake, which is created if it is missing."""
        self._destinations.forget(Intake.SOON)
        await self._destinations.ensure(Intake.SOON)
        await self._consume()

    async def run(self) -> None:
        """Take and publish jobs until cancelled. Raises the connection's error."""
        while True:
            if not self._held:  # the intake was deleted
                await self.open()
            if self._acked:
                self._acked = False
                await write_acks(await self._open_publisher(), self._queue)
            await asyncio.sleep(LOOK_EVERY)

    async def _consume(self) -> None:
        channel = await self._connection.channel()
        self._held[channel] = 0
        channel.on_close(partial(self._held.__delitem__, channel))
        channel.on_cancel(channel.abandon)
        await channel.prefetch(_PREFETCH)
        await channel.consume(self._queue, partial(self._on_message, channel))

    def _on_message(self, channel: Channel, got: Got) -> None:
        if is_mark(got):
            channel.ack(got.tag)
            return
        self._held[channel] += 1
        message = to_message(got.properties, got.body, taken_from=None)
        held = HeldJob(message.run_at or 0.0, next(self._numbers), message, channel, got.tag, message.queue)
        try:
            check_job_queue(message.queue)
        except QueueNameInvalid as error:
            self._fail(held, error)
        else:
            held.place = TenantQueue.of(message) or message.queue
            self._add(held)
        full = self._held.total() > _PREFETCH * len(self._held) - _ROOM
        if full and len(self._held) < _CHANNELS and (self._opening is None or self._opening.done()):
            self._opening = spawn(self._under_way, quietly(self._consume()))

    async def caught_up(self) -> None:
        """Wait until all jobs that are in the intake now are held."""
        deadline = self._loop.time() + DELIVERED_WITHIN
        for channel in list(self._held)[:1]:
            while self._loop.time() < deadline:
                if not channel.is_open or not await waits(channel, self._queue):
                    break
                await asyncio.sleep(0.01)

    def _fail(self, held: HeldJob, error: PalermoError) -> None:
        """Store a job that can never be published in the failed queue, with this error."""
        # A queue with an invalid name gets no failed queue of its own.
        invalid = isinstance(error, QueueNameInvalid)
        place = FAILED_QUEUE if invalid else self._destinations.failed_place(held.message.queue)
        self._again(held, 0.0, unpublishable(held.message, error, now=self._now()), place)

    def has(self, id: str) -> bool:
        """Whether the job with this id is held and not on its way to `failed`."""
        held = self._by_id.get(id)
        return held is not None and self._is_there(held) and not _is_for_failed(held.place)

    def call(self, id: str) -> None:
        """Publish this held job now, because it can get a permit, and its tenant has had its turn."""
        held, now = self._by_id[id], self._now()
        held.removed = True
        # Directly to its job queue, ahead of the jobs that wait for their tenants' turns.
        self._again(held, now, replace(held.message, run_at=now), held.message.queue)

    def _again(self, held: HeldJob, due: float, message: Message, place: str | TenantQueue) -> None:
        """Hold a removed job again as this message, with this due time and destination."""
        self._add(HeldJob(due, next(self._numbers), message, held.channel, held.tag, place))

    def _add(self, held: HeldJob) -> None:
        heapq.heappush(self._heap, held)
        self._by_id[held.message.id] = held
        if self._heap[0] is held:
            self._set_timer()

    def take(self, matches: Callable[[Message], bool]) -> list[HeldJob]:
        """Remove and return the matching jobs, so that they aren't published. The caller settles them."""
        self._ring()
        taken = [held for held in self._heap if self._is_there(held) and matches(held.message)]
        for held in taken:
            held.removed = True
        return sorted(taken)

    def put_back(self, held: HeldJob) -> None:
        """Hold this job again, as if it had not been removed."""
        self._again(held, held.due, held.message, held.place)

    def settle(self, held: HeldJob) -> None:
        """Acknowledge a job that is stored elsewhere. If its channel is closed, RabbitMQ has already requeued it."""
        if held.channel.is_open:
            held.channel.ack(held.tag)
            self._held[held.channel] -= 1
            self._acked = True

    def jobs(self) -> list[Message]:
        """The held jobs by due time."""
        return [held.message for held in sorted(held for held in self._heap if self._is_there(held))]

    async def close(self) -> None:
        """Stop publishing, and wait for pending publishes. Otherwise unconfirmed jobs would be published twice."""
        self._closed = True
        self._refused.stop()
        if self._timer is not None:
            self._timer.cancel()
        while self._under_way:
            await asyncio.wait(set(self._under_way))

    @staticmethod
    def _is_there(held: HeldJob) -> bool:
        # RabbitMQ has requeued the jobs of a closed channel, and delivers them again.
        return not held.removed and held.channel.is_open

    def _set_timer(self, wait: float | None = None) -> None:
        if self._timer is not None:
            self._timer.cancel()
        if wait is None:
            wait = min(LOOK_EVERY, seconds_until(self._heap[0].due, self._now))
        self._timer = self._loop.call_later(wait, self._ring)

    def _ring(self) -> None:
        if self._closed:
            return
        connection, heap = self._connection, self._heap
        now, published = self._now(), 0
        while heap and (heap[0].removed or heap[0].due <= now):
            if published >= _AT_ONCE or not connection.raw.writable.is_set():
                break
            held = heapq.heappop(heap)
            if self._by_id.get(held.message.id) is held:
                del self._by_id[held.message.id]
            if self._is_there(held):
                self._publish(held)
                published += 1
        if published:
            connection.raw.flush()
        if heap:
            self._set_timer(None if connection.raw.writable.is_set() else 0.005)

    def _publish(self, held: HeldJob) -> None:
        held.removed = True
        place, publisher = held.place, self._publisher
        if publisher is None or not publisher.is_open or _is_for_failed(place) or not self._destinations.has(place):
            spawn(self._under_way, self._publish_in_task(held))
        else:
            # Fast path: most jobs need no task (benchmarks.growth due).
            future = publisher.send_job(*self._destinations.route(place), held.message)
            self._under_way.add(future)
            future.add_done_callback(partial(self._on_answer, held))

    def _on_answer(self, held: HeldJob, answer: "asyncio.Future[None]") -> None:
        self._under_way.discard(answer)
        error = answer.exception()
        if error is None:
            self.settle(held)
        elif isinstance(error, NotFound):
            self._destinations.forget(held.place)
            spawn(self._under_way, self._publish_in_task(held))
        elif isinstance(error, PalermoError):
            self._keep(held, error)

    async def _publish_in_task(self, held: HeldJob) -> None:
        """Publish a job whose queue or channel must be created first."""
        try:
            await self._store(held)
        except PalermoError as error:
            self._keep(held, error)

    async def _store(self, held: HeldJob) -> None:
        """Publish a job, and acknowledge it once it is stored. Raises the error if it isn't."""
        self._publisher = await self._open_publisher()
        await self._destinations.publish(held.place, held.message)
        self.settle(held)

    def _keep(self, held: HeldJob, error: PalermoError) -> None:
        """Keep a refused job and retry. If the connection is lost, the next leader gets the job."""
        if self._connection.error is not None or self._closed:
            return
        if _is_hopeless(held, error):
            self._fail(held, error)
            return
        id = held.message.id
        if (other := self._waiting.get(id)) is not None:
            if other.channel.is_open:
                self.settle(held)  # a second copy, left by a crash
            else:
                self._waiting[id] = held  # RabbitMQ had requeued it, and has delivered it again
            return
        self._waiting[id] = held
        self._refused.add([held.message], {id: error})

    async def _publish_refused(self, message: Message) -> None:
        held = self._waiting[message.id]
        if held.channel.is_open:  # otherwise RabbitMQ has requeued it, and delivers it again
            try:
                await asyncio.shield(spawn(self._under_way, self._store(held)))
            except HeadersTooLarge as error:
                if not _is_hopeless(held, error):
                    raise
                self._fail(held, error)
        del self._waiting[message.id]


def _is_hopeless(held: HeldJob, error: PalermoError) -> bool:
    """Whether the job can never be published to its destination."""
    return isinstance(error, HeadersTooLarge) and not _is_for_failed(held.place)


def _is_for_failed(place: str | TenantQueue) -> bool:
    return isinstance(place, str) and is_failed(place)
