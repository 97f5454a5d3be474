"""Takes jobs from one queue: each slot of the worker has its own subscription, with a prefetch of one or more."""

import asyncio
import logging
from collections import deque
from collections.abc import Awaitable, Callable
from typing import Any

from palermo.brokers.rabbitmq.amqp import versions
from palermo.brokers.rabbitmq.amqp.connection import Channel, Connection, fulfil
from palermo.brokers.rabbitmq.amqp.frames import Delivered
from palermo.brokers.rabbitmq.amqp.messages import delivered, read, read_delivered
from palermo.brokers.rabbitmq.amqp.replies import QueueInUse
from palermo.brokers.rabbitmq.consuming.troubled_queues import TroubledQueues
from palermo.brokers.rabbitmq.publishing.declarer import Declarer
from palermo.contract.broker import Delivery, TakeDelivery
from palermo.contract.tasks import finish, quietly, spawn, together
from palermo.core.message import Message
from palermo.core.queue_selection import PausedQueues
from palermo.core.topology import CLASSIC, amqp_queue
from palermo.errors import BrokerRefused, BrokerUnavailable, PalermoError

log = logging.getLogger("palermo.rabbitmq")

Token = tuple[Channel, int]

#: After a poll has found an empty queue, the number of jobs whose ends are awaited before the next poll. A poll of an
#: empty queue costs three requests: cancel, get and consume.
_AWAITED = 8


class Slot:
    """One slot's subscription. It holds up to `prefetch` unsettled deliveries: the running job, and waiting ones.

    A delivery during `receive` is offered to its callback. If the callback accepts it, `receive` keeps waiting.
    RabbitMQ delivers no other job while the end of a keyed job or a step is being stored. In the meantime a slot of a
    classic queue unsubscribes and polls for its next job (basic.get), unless the queue was empty lately.
    """

    def __init__(self, source: "PushSource", number: int) -> None:
        self._source = source
        self._number = number
        self._channel: Channel | None = None
        self._tag = ""
        #: Deliveries that wait until the slot is free, oldest first.
        self._waiting: deque[Delivery] = deque()
        #: The prefetch of its channel.
        self._prefetch = 0
        #: The type of its queue.
        self._kind = CLASSIC
        self._asked: asyncio.Future[None] | None = None
        #: The callback of `receive`, and whether a delivery that it accepted is unsettled.
        self._offer: TakeDelivery | None = None
        self._taken = False
        #: The unsettled delivery that `receive` returned.
        self._held: Token | None = None
        #: Whether to poll for the next job, because the last one's end is being stored.
        self._asks = False
        #: Number of jobs whose ends are awaited before the next poll.
        self._awaited = 0
        self._closed = False
        self._lock = asyncio.Lock()

    async def receive(self, offer: TakeDelivery | None = None) -> Delivery:
        self._offer = offer
        while not self._closed:
            if self._source.rests:
                await self._await_news()
                continue
            if self._waiting and not self._taken:
                return self._hand_out(self._waiting.popleft())
            try:
                if self._asks:
                    found = await self._ask()
                    if found is not None and not self._offered(found):
                        return self._hand_out(found)
                    continue  # in the meantime the queue may be paused, or this slot closed
                if not self._taken:
                    await self._subscribe()
                    if not self._tag:
                        continue  # the subscription has ended in the meantime
                if not self._waiting or self._taken:
                    await self._await_news()
            except QueueInUse as error:
                self._tag = ""
                self._source.troubled.put(self._source.queue, error)
            except asyncio.CancelledError:
                await finish(self.rest())
                raise
        raise BrokerUnavailable("this worker has stopped taking jobs.")

    def _hand_out(self, delivery: Delivery) -> Delivery:
        self._held = delivery.token
        return delivery

    async def _await_news(self) -> None:
        self._asked = asyncio.get_running_loop().create_future()
        try:
            await self._asked
        finally:
            self._asked = None

    async def close(self) -> None:
        """Unsubscribe permanently; a pending `receive` raises."""
        self._closed = True
        self.wake()
        try:
            await self.rest()
        finally:
            # a `receive` that was just subscribing starts to wait only now
            self.wake()

    async def rest(self) -> None:
        """Unsubscribe, and requeue the waiting deliveries."""
        async with self._lock:
            channel, tag = self._channel, self._tag
            self._tag = ""
            await self._cancel(channel, tag)
            self._requeue_waiting()

    async def detach(self, delivery: Delivery) -> None:
        """Leave the channel to this unsettled delivery, and use another channel for the next one."""
        async with self._lock:
            channel, tag = self._channel, self._tag
            self._channel, self._tag, self._held = None, "", None
            await self._cancel(channel, tag)
            self._requeue_waiting()
        if self._taken:
            # The callback accepted it, and `receive` waits for the next one.
            self._taken = False
            self.wake()

    async def _cancel(self, channel: Channel | None, tag: str) -> None:
        if channel is not None and channel.is_open and tag:
            self._source.connection.raw.deliver_no_more(channel.raw)
            await channel.call(channel.raw.basic_cancel, tag)

    def _requeue_waiting(self) -> None:
        """Requeue all waiting deliveries at their old positions."""
        while self._waiting:
            requeue(self._waiting.popleft())

    # -- polling

    async def _ask(self) -> Delivery | None:
        """Poll for the next job. None if there is none: then subscribe again."""
        self._asks = False
        await self.rest()
        channel = self._channel
        if channel is None or not channel.is_open:
            return None
        try:
            got = await channel.get(self._source.amqp_name)
        except PalermoError:
            if channel.connection.error is not None:
                raise
            # Only this channel was closed, perhaps because the queue was deleted. The next subscription opens another.
            self._source.declarer.forget(self._source.queue)
            return None
        if got is None:
            self._awaited = _AWAITED
            return None
        message = read(got, self._source.queue)
        return Delivery(message=message, slot=self._number, token=(channel, got.tag), redelivered=got.redelivered)

    # -- the subscription

    async def prepare(self) -> None:
        """Create the queue and open the channel for its jobs. Takes none yet."""
        async with self._lock:
            await self._open()

    async def _subscribe(self) -> None:
        async with self._lock:
            if self._tag and self._channel is not None and self._channel.is_open:
                return
            channel = await self._open()
            # Set before the call, so that a caller cancelled during the call can unsubscribe.
            tag = self._tag = self._source.tag(self._number)
            self._source.connection.raw.deliver_to(channel.raw, tag, self._on_delivered)
            await channel.call(channel.raw.basic_consume, self._source.amqp_name, self._on_message, consumer_tag=tag)

    async def _open(self) -> Channel:
        channel = self._channel
        if channel is None or not channel.is_open:
            made = channel = self._channel = await self._source.connection.channel()
            made.on_close(lambda: self._on_end(made))
            made.on_cancel(lambda: self._on_cancelled_by_broker(made))
            self._prefetch = 0
        self._kind = await self._source.declarer.ensure(self._source.queue)
        prefetch = self._source.allowed(self._kind)
        if prefetch != self._prefetch:
            await channel.prefetch(prefetch)
            self._prefetch = prefetch
        return channel

    def _on_delivered(self, found: Delivered, data: bytes) -> None:
        self._take(read_delivered(found, data, self._source.queue), found.tag, found.redelivered)

    def _on_message(self, _: object, method: Any, properties: Any, body: bytes) -> None:
        message = read(delivered(method, properties, body), self._source.queue)
        self._take(message, method.delivery_tag, method.redelivered)

    def _take(self, message: Message, tag: int, redelivered: bool) -> None:
        assert self._channel is not None
        token = (self._channel, tag)
        delivery = Delivery(message=message, slot=self._number, token=token, redelivered=redelivered)
        if self._waiting or not (self._is_waited_for and self._offered(delivery)):
            self._waiting.append(delivery)
            if not self._taken:
                self.wake()

    def _offer_next(self) -> None:
        """Offer the next waiting delivery, after the accepted one is settled."""
        if not self._waiting or self._taken or not self._is_waited_for:
            return
        if self._offered(self._waiting[0]):
            self._waiting.popleft()
        elif not self._taken:
            self.wake()

    @property
    def _is_waited_for(self) -> bool:
        return self._asked is not None and not self._asked.done()

    def _offered(self, delivery: Delivery) -> bool:
        """Offer the delivery to the callback of a pending `receive`; return whether it accepted."""
        if self._offer is None or self._taken or self._source.paused or not self._offer(delivery):
            return False
        self._taken, self._held = True, delivery.token
        return True

    def ack(self, delivery: Delivery) -> None:
        """Acknowledge the delivery that the callback accepted. The next job arrives after that."""
        channel, tag = delivery.token
        channel.connection.raw.ack(channel.raw, tag)
        self.settled(delivery.token)

    def settled(self, token: Token, *, pending: bool = False) -> None:
        """Continue with the next job. While the last one is `pending`, RabbitMQ delivers no other."""
        self._held = None
        # Fast path, see benchmarks.drain keyed. Not for quorum queues, which answer basic.get slowly
        # (browsing/sweep.py).
        self._asks = pending and self._kind == CLASSIC and self._awaited == 0
        self._awaited -= min(self._awaited, pending)
        if token[0] is not self._channel:
            token[0].abandon()
        if self._taken:
            self._taken = False
            if self._waiting:
                # Later, because the worker is still settling the last one.
                asyncio.get_running_loop().call_soon(self._offer_next)
            elif not self._tag or self._asks:
                self.wake()

    def _on_cancelled_by_broker(self, channel: Channel) -> None:
        if channel is not self._channel:
            return
        # The queue was deleted and will be declared again, or a job has run too long. A second consumer on this channel
        # may get no deliveries: see docs/internals/rabbitmq-versions.md.
        self._channel, self._tag = None, ""
        self._source.connection.raw.deliver_no_more(channel.raw)
        self._source.declarer.forget(self._source.queue)
        self._requeue_waiting()
        if self._held is None or self._held[0] is not channel:
            channel.abandon()
        elif self._kind != CLASSIC and self._source.cancels_late:
            self._source.start_task(self._end_if_late(channel))
        self.wake()

    async def _end_if_late(self, channel: Channel) -> None:
        """Close a channel whose consumer RabbitMQ has cancelled, unless the queue was deleted."""
        if (await self._source.connection.probe(self._source.amqp_name)).exists:
            where = self._source.connection.where
            channel.take_back(
                BrokerRefused(f"RabbitMQ at {where} cancelled the consumer: delivery acknowledgement timed out.")
            )

    def _on_end(self, channel: Channel) -> None:
        self._source.connection.raw.deliver_no_more(channel.raw)
        if channel is self._channel:
            self._tag = ""
            self._waiting.clear()
            self.wake()
        self._source.ended(channel)

    def wake(self) -> None:
        """Wake `receive` to check for changes."""
        if self._asked is not None:
            fulfil(self._asked, None)


def requeue(delivery: Delivery) -> None:
    """Requeue a delivery. If its channel is closed, the broker has already done so."""
    channel, tag = delivery.token
    if channel.is_open:
        channel.requeue(tag)


class PushSource:
    """All slots of a worker on one queue."""

    def __init__(
        self,
        connection: Connection,
        declarer: Declarer,
        exchange: str,
        queue: str,
        *,
        slots: int,
        tag: Callable[[int], str],
        prefetch: int = 1,
    ) -> None:
        self.connection = connection
        self.declarer = declarer
        self.queue = queue
        self.amqp_name = amqp_queue(exchange, queue)
        self.tag = tag
        self.prefetch = prefetch
        #: Whether RabbitMQ requeues an overdue job by cancelling its consumer.
        self.cancels_late = versions.cancels_late_consumers(connection.version)
        #: Called with every closed channel.
        self.ended: Callable[[Channel], None] = lambda _: None
        #: Whether the queue is paused.
        self.paused = False
        self._logged = False
        #: Has the queue while another program uses it exclusively.
        self.troubled = TroubledQueues(self._try_again)
        self._resting: set[asyncio.Task[None]] = set()
        self.slots = [Slot(self, number) for number in range(1, slots + 1)]

    @property
    def queues(self) -> tuple[str, ...]:
        """The queue that it serves, unless it is paused."""
        return () if self.paused else (self.queue,)

    def waiting(self) -> list[str]:
        """The ids of delivered jobs that wait for a slot."""
        return [delivery.message.id for slot in self.slots for delivery in slot._waiting]

    async def prepare(self) -> None:
        """Create the queue, and open the channels for its jobs."""
        await together(*(slot.prepare() for slot in self.slots))

    @property
    def rests(self) -> bool:
        """Whether no slot should subscribe now."""
        return self.paused or self.queue in self.troubled

    def _try_again(self, _: str) -> None:
        for slot in self.slots:
            slot.wake()

    def allowed(self, kind: str) -> int:
        """Number of jobs that a slot may hold. A quorum queue counts each requeue of a job, so it allows only one."""
        if kind == CLASSIC or self.prefetch == 1:
            return self.prefetch
        if not self._logged:
            self._logged = True
            log.info(
                "prefetch is 1, because a quorum queue limits how often a job is returned queue=%s type=%s",
                self.queue,
                kind,
            )
        return 1

    def pause(self, queues: PausedQueues) -> None:
        """Take nothing from these queues, and resume all others."""
        before, self.paused = self.paused, self.queue in queues
        if self.paused == before:
            return
        # The queue may have been deleted or migrated when it is served again.
        self.declarer.forget(self.queue)
        for slot in self.slots:
            slot.wake()
            if self.paused:
                self.start_task(self._rest_slot(slot))

    def start_task(self, work: Awaitable[None]) -> None:
        """Run this as a task in the background."""
        spawn(self._resting, quietly(work))

    async def _rest_slot(self, slot: Slot) -> None:
        await slot.rest()
        # The pause may be over by now.
        slot.wake()

    def acknowledge(self, delivery: Delivery) -> None:
        """Acknowledge the delivery, because the end of its job is stored."""
        channel, tag = delivery.token
        channel.connection.raw.ack(channel.raw, tag)

    def requeue(self, delivery: Delivery) -> None:
        """Requeue the delivery, because the end of its job was not stored."""
        requeue(delivery)

    def settled(self, delivery: Delivery, *, detached: bool, pending: bool = False) -> None:
        """Record that a delivery was settled. If it was detached, close its channel.

        A `pending` delivery is acknowledged or requeued later.
        """
        channel, _ = delivery.token
        if not detached:
            self.slots[delivery.slot - 1].settled(delivery.token, pending=pending)
        elif channel.is_open:
            channel.abandon()

    async def close(self) -> None:
        self.troubled.close()
        for slot in self.slots:
            await quietly(slot.close())
