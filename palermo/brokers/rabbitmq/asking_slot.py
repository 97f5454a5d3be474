"""A slot of a worker on several queues: it asks one queue after another for its next job, one question at a time.

Question and answer are no task's: the answer that brings a job shows it to whoever takes it as it comes, or wakes who
waits in `receive`; one that brings none asks the next queue at once.
"""

import asyncio
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Protocol

from pika import spec

from palermo.broker import Delivery, Take
from palermo.brokers.rabbitmq.deliveries import Delivered
from palermo.brokers.rabbitmq.link import Channel, Link, delivered, fulfil
from palermo.brokers.rabbitmq.wire import read, read_delivered
from palermo.core.message import Message
from palermo.errors import BrokerUnavailable, PalermoError


class Source(Protocol):
    """What the slots of a worker share."""

    link: Link
    closed: bool
    #: Told of every channel that has ended.
    ended: Callable[[Channel], None]

    def turn(self, slot: "AskingSlot") -> str:
        """The queue that it is to ask now; "" if it is to wait until it is told to `look`, or is given a job."""

    def amqp_name(self, queue: str) -> str:
        """What RabbitMQ calls the queue."""

    def takes_from(self, queue: str) -> bool:
        """Whether jobs of this queue are to be taken now."""

    def leave(self, slot: "AskingSlot") -> None:
        """It does not wait any more."""

    def found_empty(self, queue: str) -> None:
        """A slot has asked, and there was nothing."""

    def began(self) -> None:
        """A slot has got a job."""

    def returned(self, delivery: Delivery) -> None:
        """Give back what came for a slot that does not ask any more."""

    async def missing(self, queue: str) -> None:
        """A queue that was asked does not exist."""


class AskingSlot:
    """One slot. It holds at most one unsettled delivery, or has one question out, or waits with the source."""

    def __init__(self, source: Source, number: int) -> None:
        self.number = number
        self._source = source
        #: Opened when there is something to ask: an idle worker of many slots has none for them.
        self._channel: Channel | None = None
        self._lacks_channel = False
        #: Who waits in `receive`; what has come for them, or went wrong, or which queue is not there any more.
        self._asked: asyncio.Future[None] | None = None
        self._arrived: Delivery | None = None
        self._error: PalermoError | None = None
        self._gone = ""
        #: Who is shown a delivery that comes while somebody waits, and the one that was taken so.
        self._offer: Take | None = None
        self._taken: Delivery | None = None
        self._resting = False
        #: The queue that is asked, and who waits for no more than that its answer has come; whether the source knows
        #: that this slot waits.
        self._queue = ""
        self._answered: asyncio.Future[None] | None = None
        self._waits = False

    async def receive(self) -> Delivery:
        """The next job, unless it is taken as it comes."""
        self._resting = False
        try:
            while not self._source.closed:
                if self._error is not None:
                    error, self._error = self._error, None
                    raise error
                if self._arrived is not None:
                    delivery, self._arrived = self._arrived, None
                    return delivery
                if self._gone:
                    gone, self._gone = self._gone, ""
                    await self._source.missing(gone)
                    continue
                if self._lacks_channel:
                    self._channel = await self._open()
                    self._lacks_channel = False
                await self._await_news()
        except asyncio.CancelledError:
            await asyncio.shield(self._withdraw())
            raise
        raise BrokerUnavailable("this worker's claim on jobs has been given up.")

    @property
    def _is_free(self) -> bool:
        return self._taken is None and not self._queue and not self._waits

    async def _await_news(self) -> None:
        self._asked = asyncio.get_running_loop().create_future()
        try:
            if self._is_free:
                self.look()
            await self._asked
        finally:
            self._asked = None

    async def _open(self) -> Channel:
        channel = await self._source.link.channel()
        channel.on_close(lambda: self._on_end(channel))
        channel.raw.add_callback(self._on_get_empty, [spec.Basic.GetEmpty], False)
        self._source.link.raw.answers_to(channel.raw, self._on_read)
        return channel

    async def _withdraw(self) -> None:
        """Nobody waits in `receive` any more: what has come, or is on its way, goes back before this returns."""
        if self._waits:
            self._waits = False
            self._source.leave(self)
        channel = self._channel
        if self._arrived is not None:
            delivery, self._arrived = self._arrived, None
            channel = delivery.token[0]
            self._source.returned(delivery)
        elif self._queue:
            self._answered = asyncio.get_running_loop().create_future()
            await self._answered
        else:
            return
        if channel is not None and channel.is_open:
            # Once this is answered, whoever counts finds it in the queue.
            with suppress(PalermoError):
                await channel.call(channel.raw.basic_qos, prefetch_count=0)

    # -- asking

    def look(self, acked: int = 0) -> None:
        """Ask the queue whose turn it is, after acknowledging the delivery `acked`, if any, in the same write."""
        self._waits = False
        if self._source.closed:
            self.wake()
            return
        raw, channel = self._source.link.raw, self._channel
        queue = self._source.turn(self)
        if not queue:
            self._waits = True
            if acked and channel is not None:
                raw.ack(channel.raw, acked)
        elif channel is None or not channel.is_open:
            self._lacks_channel = True
            self.wake()
        else:
            self._queue = queue
            raw.get(channel.raw, self._source.amqp_name(queue), self._on_got, acked=acked)

    def _on_read(self, found: Delivered, data: bytes) -> None:
        if not found.tag:
            self._on_get_empty(None)
        elif self._queue:
            self._on_job(read_delivered(found, data, self._queue), found.tag, found.redelivered)

    def _on_got(self, _: object, method: Any, properties: spec.BasicProperties, body: bytes) -> None:
        message = read(delivered(method, properties, body), self._queue)
        self._on_job(message, method.delivery_tag, method.redelivered)

    def _on_get_empty(self, _: object) -> None:
        queue = self._heard()
        if not queue:
            return
        self._source.found_empty(queue)
        if self._is_waited_for:
            self.look()

    def _on_job(self, message: Message, tag: int, redelivered: bool) -> None:
        queue = self._heard()
        delivery = Delivery(message=message, slot=self.number, token=(self._channel, tag), redelivered=redelivered)
        if self._is_waited_for and self._source.takes_from(queue):
            self.take(delivery)
            return
        give_back(delivery)
        if self._is_waited_for:
            self.look()

    def _heard(self) -> str:
        """The answer has come; to which queue's question."""
        queue, self._queue = self._queue, ""
        if self._answered is not None:
            fulfil(self._answered, None)
        return queue

    @property
    def _is_waited_for(self) -> bool:
        return self._asked is not None and not self._asked.done() and not self._source.closed

    def take(self, delivery: Delivery) -> None:
        """A job has come for it."""
        self._waits = False
        self._taken = delivery
        if self._offer is None or not self._offer(delivery):
            self._taken, self._arrived = None, delivery
            self.wake()
        self._source.began()

    def fail(self, error: PalermoError) -> None:
        """It waits in vain."""
        self._waits, self._error = False, error
        self.wake()

    def wake(self) -> None:
        """Let who waits look at what has changed."""
        if self._asked is not None:
            fulfil(self._asked, None)

    def _on_end(self, channel: Channel) -> None:
        self._source.link.raw.deliver_no_more(channel.raw)
        if channel is self._channel and (queue := self._heard()):
            if channel.missing:
                self._gone = queue
            elif self._is_waited_for:
                self._error = channel.error
            self.wake()
        self._source.ended(channel)

    # -- what was taken

    def offer_to(self, take: Take) -> None:
        """Show it deliveries first that come while somebody waits."""
        self._offer = take

    def ack(self, delivery: Delivery) -> None:
        """Acknowledge one that was taken as it came; what it asks next leaves in the same write."""
        channel, tag = delivery.token
        self._taken = None
        if self._is_waited_for and not self._resting and channel is self._channel:
            self.look(acked=tag)
            return
        channel.link.raw.ack(channel.raw, tag)
        self._go_on()

    def settled(self, delivery: Delivery) -> None:
        """A delivery has been settled."""
        if self._taken is not None and self._taken.token == delivery.token:
            self._taken = None
            self._go_on()

    def _go_on(self) -> None:
        if self._resting:
            # By its task, which may be about to be cancelled.
            self.wake()
        elif self._is_waited_for and self._is_free:
            self.look()

    def park(self, channel: Channel) -> None:
        """Leave this channel to its unsettled delivery, and take the next on another."""
        if self._channel is channel:
            self._channel = None

    def rest(self) -> None:
        """Ask for nothing when the job is over that was taken as it came, before somebody asks again."""
        self._resting = self._taken is not None


def give_back(delivery: Delivery) -> None:
    """Back to its queue, unless its channel is gone and the broker has done so."""
    channel, tag = delivery.token
    if channel.is_open:
        channel.raw.basic_nack(tag, requeue=True)
