"""What the clock holds: jobs that are due within seconds, each unacknowledged until it has been published.

A job is published at its instant, by this machine's wall clock, and acknowledged once that is confirmed.
From the instant on nobody can cancel it any more: who asks is told so.
"""

import asyncio
import heapq
import logging
from collections.abc import Awaitable, Callable
from dataclasses import field, replace
from itertools import count

from palermo.brokers.rabbitmq.declarer import Declarer
from palermo.brokers.rabbitmq.link import Channel
from palermo.brokers.rabbitmq.publisher import Publisher, Unroutable
from palermo.brokers.rabbitmq.seats import Seat, Seats, seat_queue
from palermo.brokers.rabbitmq.wire import to_properties
from palermo.core.message import Message
from palermo.core.values import dataclass
from palermo.errors import PalermoError

log = logging.getLogger("palermo.rabbitmq")

#: The wall clock may jump: it is looked at this often, in seconds, however far the next job is.
_LOOK_EVERY = 0.5

#: Jobs published at once, before anything else of this process has its turn.
_AT_ONCE = 200

#: Seconds that one who leads no more waits for what it has published to be confirmed.
_LAST_WORDS = 2.0

#: Seconds until a job that the broker refused is tried again.
_AGAIN = 1.0


@dataclass(order=True, slots=True)
class Held:
    """One job, and what it takes to settle it."""

    due: float
    number: int
    message: Message = field(compare=False)
    channel: Channel = field(compare=False)
    tag: int = field(compare=False)
    settled: Callable[[], None] = field(compare=False)
    #: Whether it was published, or taken out: it stays in the heap until its turn comes.
    gone: bool = field(default=False, compare=False)
    #: Whether it goes into its job queue itself, past the others that wait for their tenants' turns.
    called: bool = field(default=False, compare=False)

    def ack(self) -> None:
        """Done with it; a channel that is closed has given it back."""
        if self.channel.is_open:
            self.channel.raw.basic_ack(self.tag)
        self.settled()


class Due:
    """Jobs in the order of their instants."""

    def __init__(
        self, exchange: str, publisher: Publisher, declarer: Declarer, seats: Seats, *, now: Callable[[], float]
    ) -> None:
        self._exchange = exchange
        self._publisher = publisher
        self._declarer = declarer
        self._seats = seats
        self._now = now
        self._heap: list[Held] = []
        self._numbers = count()
        self._timer: asyncio.TimerHandle | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._loop = asyncio.get_running_loop()
        #: What has been published and is not confirmed yet.
        self._flying: set[asyncio.Future[None]] = set()
        self._closed = False

    def add(self, message: Message, channel: Channel, tag: int, settled: Callable[[], None]) -> None:
        """Hold a job until its instant; one whose instant has passed is published at once."""
        self._add(Held(message.run_at or 0.0, next(self._numbers), message, channel, tag, settled))

    def call(self, held: Held) -> None:
        """Publish one that was taken out now: there is a permit for it, and it has had its tenant's turn."""
        now = self._now()
        message = replace(held.message, run_at=now)
        number = next(self._numbers)
        self._add(Held(now, number, message, held.channel, held.tag, held.settled, called=True))

    def _add(self, held: Held) -> None:
        heapq.heappush(self._heap, held)
        if self._heap[0] is held:
            self._set_timer()

    def take(self, means: Callable[[Message], bool]) -> list[Held]:
        """Take these jobs out, so that they are not published; whoever does so settles them."""
        self._ring()
        taken = [held for held in self._heap if self._is_there(held) and means(held.message)]
        for held in taken:
            held.gone = True
        return sorted(taken)

    def put_back(self, held: Held) -> None:
        """Hold it again, as if it had not been taken out."""
        self.add(held.message, held.channel, held.tag, held.settled)

    def jobs(self) -> list[Message]:
        """What is held, in the order of the instants."""
        return [held.message for held in sorted(held for held in self._heap if self._is_there(held))]

    async def close(self) -> None:
        """Publish no more, and see those off that are on their way: without it they would be published twice."""
        self._closed = True
        if self._flying:
            await asyncio.wait(set(self._flying), timeout=_LAST_WORDS)
        if self._timer is not None:
            self._timer.cancel()
        for task in self._tasks:
            task.cancel()

    @staticmethod
    def _is_there(held: Held) -> bool:
        # What came on a channel that is closed has gone back, and comes again.
        return not held.gone and held.channel.is_open

    def _set_timer(self, wait: float | None = None) -> None:
        if self._timer is not None:
            self._timer.cancel()
        if wait is None:
            wait = min(_LOOK_EVERY, max(0.0, self._heap[0].due - self._now()))
        self._timer = self._loop.call_later(wait, self._ring)

    def _ring(self) -> None:
        if self._closed:
            return
        link, heap = self._publisher.channel.link, self._heap
        now, published = self._now(), 0
        while heap and (heap[0].gone or heap[0].due <= now):
            if published >= _AT_ONCE or not link.raw.writable.is_set():
                break
            held = heapq.heappop(heap)
            if held.gone:
                continue
            if self._is_there(held):
                self._publish(held)
                published += 1
            else:
                held.settled()
        if published:
            link.raw.flush()
        if heap:
            self._set_timer(None if link.raw.writable.is_set() else 0.005)

    def _publish(self, held: Held) -> None:
        held.gone = True
        queue, seat = held.message.queue, _seat(held)
        if not (self._declarer.has(queue) if seat is None else self._seats.has(seat)):
            self._later(self._publish_declared(held))
            return
        exchange, key = (self._exchange, queue) if seat is None else ("", seat_queue(self._exchange, seat))
        future = self._publisher.send(exchange, key, to_properties(held.message), held.message.body)
        self._flying.add(future)
        future.add_done_callback(lambda done: self._published(held, done))

    async def _publish_declared(self, held: Held) -> None:
        try:
            seat = _seat(held)
            if seat is None:
                await self._declarer.ensure(held.message.queue, priority=held.message.priority)
            else:
                await self._seats.ensure(seat, priority=held.message.priority)
        except PalermoError as error:
            self._refused(held, error)
            return
        self._publish(held)

    def _published(self, held: Held, done: "asyncio.Future[None]") -> None:
        self._flying.discard(done)
        if done.cancelled():
            return
        error = done.exception()
        if error is None:
            held.ack()
        elif isinstance(error, Unroutable):
            self._declarer.forget(held.message.queue)
            if (seat := _seat(held)) is not None:
                self._seats.forget(seat)
            self._later(self._publish_declared(held))
        elif self._publisher.is_open:
            self._refused(held, error)
        # Else the link is lost, and whoever leads next gets the job.

    def _refused(self, held: Held, error: BaseException) -> None:
        if self._publisher.is_open and not self._closed:
            log.warning("a job that is due cannot be published id=%s error=%r", held.message.id, str(error))
            self._loop.call_later(_AGAIN, self._publish, held)

    def _later(self, work: Awaitable[None]) -> None:
        task = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)


def _seat(held: Held) -> Seat | None:
    return None if held.called else Seat.of(held.message)
