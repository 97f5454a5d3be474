"""Takes jobs from one queue: each slot of the worker has its own subscription, with a prefetch of one or more."""

import asyncio
import logging
from collections import deque
from collections.abc import Awaitable, Callable
from typing import Any

from palermo.brokers.rabbitmq.amqp import versions
from palermo.brokers.rabbitmq.amqp.connection import Channel, Connection, finish, fulfil, quietly, together
from palermo.brokers.rabbitmq.amqp.frames import Delivered
from palermo.brokers.rabbitmq.amqp.messages import delivered, read, read_delivered
from palermo.brokers.rabbitmq.amqp.replies import QueueInUse
from palermo.brokers.rabbitmq.consuming.troubled_queues import TroubledQueues
from palermo.brokers.rabbitmq.publishing.declarer import Declarer
from palermo.contract.broker import Delivery, TakeDelivery
from palermo.contract.tasks import spawn
from palermo.core.message import Message
from palermo.core.queue_selection import PausedQueues
from palermo.core.topology import CLASSIC, amqp_queue
from palermo.errors import BrokerRefused, BrokerUnavailable, PalermoError

log = logging.getLogger("palermo.rabbitmq")

Token = tuple[Channel, int]


class Slot:
    """One slot's subscription. It holds at most `prefetch` unsettled deliveries: a running one, and waiting ones.

    A delivery that arrives during `receive` is offered to its callback. If the callback takes it, `receive` continues
    to wait until the delivery is settled.

    RabbitMQ delivers no other job while the end of a keyed job or a step is being stored. So a slot of a classic queue
    then unsubscribes and polls for its next job (basic.get).
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
        #: The callback of `receive`, and whether a delivery that it took is unsettled.
        self._offer: TakeDelivery | None = None
        self._taken = False
        #: The unsettled delivery that was handed out.
        self._held: Token | None = None
        #: Whether to poll for the next job, because the end of the last one is being stored.
        self._asks = False
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
                    if (found := await self._ask()) is not None:
                        return self._hand_out(found)
                    continue  # the queue may be paused by now, or this slot closed
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
        """Unsubscribe permanently, and end a pending `receive`."""
        self._closed = True
        self.wake()
        try:
            await self.rest()
        finally:
            # A `receive` that was subscribing starts to wait only now.
            self.wake()

    async def rest(self) -> None:
        """Unsubscribe, and requeue the deliveries that were not taken."""
        async with self._lock:
            channel, tag = self._channel, self._tag
            self._tag = ""
            await self._cancel(channel, tag)
            self._give_back()

    async def detach(self, delivery: Delivery) -> None:
        """Leave the channel with this unsettled delivery, and take the next delivery on another channel."""
        async with self._lock:
            channel, tag = self._channel, self._tag
            self._channel, self._tag, self._held = None, "", None
            await self._cancel(channel, tag)
            self._give_back()
        if self._taken:
            # The callback took it, while `receive` waits for the next one.
            self._taken = False
            self.wake()

    async def _cancel(self, channel: Channel | None, tag: str) -> None:
        if channel is not None and channel.is_open and tag:
            self._source.connection.raw.deliver_no_more(channel.raw)
            await channel.call(channel.raw.basic_cancel, tag)

    def _give_back(self) -> None:
        """Return all waiting deliveries to their positions in the queue."""
        while self._waiting:
            give_back(self._waiting.popleft())

    # -- polling

    def ending(self) -> None:
        """Record that the end of its last job is being stored: until then RabbitMQ delivers no other."""
        # Fast path, benchmarks.drain keyed. A quorum queue answers basic.get slowly (browsing/sweep.py).
        self._asks = self._kind == CLASSIC

    async def _ask(self) -> Delivery | None:
        """Poll for the next job. None if no job waits: then RabbitMQ should deliver the next one."""
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
            # Only this channel is closed, perhaps because the queue was deleted. The next subscription uses another
            # one.
            self._source.declarer.forget(self._source.queue)
            return None
        if got is None:
            return None
        message = read(got, self._source.queue)
        return Delivery(message=message, slot=self._number, token=(channel, got.tag), redelivered=got.redelivered)

    # -- the subscription

    async def prepare(self) -> None:
        """Create the queue and open the channel for its jobs, without taking any yet."""
        async with self._lock:
            await self._open()

    async def _subscribe(self) -> None:
        async with self._lock:
            if self._tag and self._channel is not None and self._channel.is_open:
                return
            channel = await self._open()
            # Set before the call: a caller that is cancelled during the call unsubscribes with this tag.
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
        if self._waiting or not self._offered(delivery):
            self._waiting.append(delivery)
            if not self._taken:
                self.wake()

    def _offer_next(self) -> None:
        """Offer the next waiting delivery: the one that the callback took is settled."""
        if not self._waiting or self._taken:
            return
        if self._offered(self._waiting[0]):
            self._waiting.popleft()
        elif not self._taken:
            self.wake()

    def _offered(self, delivery: Delivery) -> bool:
        """Offer the delivery to the callback of a pending `receive`; return whether the callback took it."""
        waits = self._asked is not None and not self._asked.done()
        if not waits or self._offer is None or self._taken or self._source.paused or not self._offer(delivery):
            return False
        self._taken, self._held = True, delivery.token
        return True

    def ack(self, delivery: Delivery) -> None:
        """Acknowledge the delivery that the callback took, and continue. The next job arrives only after that."""
        channel, tag = delivery.token
        channel.connection.raw.ack(channel.raw, tag)
        self.settled(delivery.token)

    def settled(self, token: Token) -> None:
        self._held = None
        if token[0] is not self._channel:
            token[0].abandon()
        if self._taken:
            self._taken = False
            if self._waiting:
                # Not now: the worker is still in the call that settles the last one.
                asyncio.get_running_loop().call_soon(self._offer_next)
            elif not self._tag:
                self.wake()

    def _on_cancelled_by_broker(self, channel: Channel) -> None:
        if channel is not self._channel:
            return
        # The queue was deleted, and is declared again; or a job has run too long. A second consumer on this channel may
        # not receive its deliveries: see docs/internals/rabbitmq-versions.md.
        self._channel, self._tag = None, ""
        self._source.connection.raw.deliver_no_more(channel.raw)
        self._source.declarer.forget(self._source.queue)
        self._give_back()
        if self._held is None or self._held[0] is not channel:
            channel.abandon()
        elif self._kind != CLASSIC and self._source.cancels_late:
            self._source.see_to(self._end_if_late(channel))
        self.wake()

    async def _end_if_late(self, channel: Channel) -> None:
        """Close a channel whose consumer RabbitMQ has cancelled, unless the cause was the deletion of the queue."""
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
        """Make `receive` check for changes."""
        if self._asked is not None:
            fulfil(self._asked, None)


def give_back(delivery: Delivery) -> None:
    """Return a delivery to its queue. If its channel is closed, the broker has done so."""
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
        #: Whether RabbitMQ requeues a late job by cancelling its consumer.
        self.cancels_late = versions.cancels_late_consumers(connection.version)
        #: Called with every closed channel.
        self.ended: Callable[[Channel], None] = lambda _: None
        #: Whether the queue is paused.
        self.paused = False
        self._told = False
        #: Contains the queue while another program uses it exclusively.
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
        """Number of jobs that a slot may hold from a queue of this type: a quorum queue counts each return of a job."""
        if kind == CLASSIC or self.prefetch == 1:
            return self.prefetch
        if not self._told:
            self._told = True
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
        # The queue may be deleted, or migrated, before it is served again.
        self.declarer.forget(self.queue)
        for slot in self.slots:
            slot.wake()
            if self.paused:
                self.see_to(self._put_to_rest(slot))

    def see_to(self, work: Awaitable[None]) -> None:
        """Run this as a task, without waiting for it."""
        spawn(self._resting, quietly(work))

    async def _put_to_rest(self, slot: Slot) -> None:
        await slot.rest()
        # The pause may have ended in the meantime.
        slot.wake()

    def ending(self, delivery: Delivery) -> None:
        """Record that the job has ended. Its delivery is acknowledged once that is stored."""
        self.slots[delivery.slot - 1].ending()

    def acknowledge(self, delivery: Delivery) -> None:
        """Acknowledge the delivery: the end of its job is stored."""
        channel, tag = delivery.token
        channel.connection.raw.ack(channel.raw, tag)

    def give_back(self, delivery: Delivery) -> None:
        """Return the delivery to its queue: the end of its job was not stored."""
        give_back(delivery)

    def settled(self, delivery: Delivery, *, detached: bool) -> None:
        """Record that a delivery has been settled; the channel of a detached one is no longer needed."""
        channel, _ = delivery.token
        if not detached:
            self.slots[delivery.slot - 1].settled(delivery.token)
        elif channel.is_open:
            channel.abandon()

    async def close(self) -> None:
        self.troubled.close()
        for slot in self.slots:
            await quietly(slot.close())
