"""What the clock holds: jobs that are due within seconds, each unacknowledged until it has been published.

A job is published at its instant, by this machine's wall clock, and acknowledged once that is confirmed.
Between its instant and the confirm nobody can cancel it any more: who asks is told so.
"""

import asyncio
import heapq
import logging
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

from pika import spec

from palermo.brokers.rabbitmq.link import Channel
from palermo.brokers.rabbitmq.publisher import Publisher, Unroutable
from palermo.core.message import Message
from palermo.errors import PalermoError

log = logging.getLogger("palermo.rabbitmq")

#: The wall clock may jump: it is looked at this often, in seconds, however far the next job is.
_LOOK_EVERY = 0.5

#: Seconds until a job that the broker refused is tried again.
_AGAIN = 1.0


@dataclass(order=True, slots=True)
class Held:
    """One job, and what it takes to settle it."""

    due: float
    number: int
    message: Message = field(compare=False)
    properties: spec.BasicProperties = field(compare=False)
    channel: Channel = field(compare=False)
    tag: int = field(compare=False)
    settled: Callable[[], None] = field(compare=False)
    #: Whether it was published, or taken out: it stays in the heap until its turn comes.
    gone: bool = field(default=False, compare=False)

    def ack(self) -> None:
        """Done with it; a channel that is closed has given it back."""
        if self.channel.is_open:
            self.channel.raw.basic_ack(self.tag)
        self.settled()


class Due:
    """Jobs in the order of their instants."""

    def __init__(
        self,
        exchange: str,
        publisher: Publisher,
        *,
        ready: Callable[[str], bool],
        ensure: Callable[[str], Awaitable[object]],
        forget: Callable[[str], None],
    ) -> None:
        """`ready` says whether a queue has been declared, `ensure` declares it, `forget` has it declared anew."""
        self._exchange = exchange
        self._publisher = publisher
        self._ready = ready
        self._ensure = ensure
        self._forget = forget
        self._heap: list[Held] = []
        self._by_id: dict[str, Held] = {}
        self._numbers = 0
        self._timer: asyncio.TimerHandle | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._loop = asyncio.get_running_loop()

    def __len__(self) -> int:
        return len(self._by_id)

    def add(
        self,
        message: Message,
        properties: spec.BasicProperties,
        channel: Channel,
        tag: int,
        settled: Callable[[], None],
    ) -> None:
        """Hold a job until its instant; one whose instant has passed is published at once."""
        self._numbers += 1
        held = Held(message.run_at or 0.0, self._numbers, message, properties, channel, tag, settled)
        heapq.heappush(self._heap, held)
        self._by_id[message.id] = held
        if self._heap[0] is held:
            self._set_timer()

    def take(self, id: str) -> Held | None:
        """Take a job out, so that it is not published; None if it is not there, or not any more."""
        held = self._by_id.pop(id, None)
        if held is not None:
            held.gone = True
        return held

    def jobs(self) -> list[Message]:
        """What is held, in the order of the instants."""
        return [held.message for held in sorted(self._by_id.values())]

    def close(self) -> None:
        """Publish no more."""
        if self._timer is not None:
            self._timer.cancel()
        for task in self._tasks:
            task.cancel()

    def _set_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        wait = min(_LOOK_EVERY, max(0.0, self._heap[0].due - time.time()))
        self._timer = self._loop.call_later(wait, self._ring)

    def _ring(self) -> None:
        self._timer = None
        heap = self._heap
        now = time.time()
        while heap and (heap[0].gone or heap[0].due <= now):
            held = heapq.heappop(heap)
            if not held.gone:
                self._by_id.pop(held.message.id, None)
                self._publish(held)
        self._publisher.channel.link.raw.flush()
        if heap:
            self._set_timer()

    def _publish(self, held: Held) -> None:
        queue = held.message.queue
        if not self._ready(queue):
            self._later(self._publish_declared(held))
            return
        future = self._publisher.send(self._exchange, queue, held.properties, held.message.body)
        future.add_done_callback(lambda done: self._published(held, done))

    async def _publish_declared(self, held: Held) -> None:
        try:
            await self._ensure(held.message.queue)
        except PalermoError as error:
            self._refused(held, error)
            return
        self._publish(held)

    def _published(self, held: Held, done: "asyncio.Future[None]") -> None:
        if done.cancelled():
            return
        error = done.exception()
        if error is None:
            held.ack()
        elif isinstance(error, Unroutable):
            self._forget(held.message.queue)
            self._later(self._publish_declared(held))
        elif self._publisher.is_open:
            self._refused(held, error)
        # Else the session is lost, and whoever leads next gets the job.

    def _refused(self, held: Held, error: BaseException) -> None:
        log.warning("a job that is due cannot be published id=%s error=%r", held.message.id, str(error))
        self._loop.call_later(_AGAIN, self._publish, held)

    def _later(self, work: Awaitable[None]) -> None:
        task = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
