"""A slot of a worker that serves several queues: it asks one queue after another for its next job, one at a time.

Callbacks drive this, and no task. An answer that brings a job offers it to the callback of `receive`, or else wakes
the task that waits there. An answer that brings none asks the next queue at once.
"""

import asyncio
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Protocol

from palermo.brokers.rabbitmq.amqp.connection import Channel, Connection, finish, fulfil
from palermo.brokers.rabbitmq.amqp.frames import Delivered
from palermo.brokers.rabbitmq.amqp.messages import Properties, delivered, read, read_delivered
from palermo.contract.broker import Delivery, TakeDelivery
from palermo.core.message import Message
from palermo.errors import BrokerUnavailable, PalermoError


class Source(Protocol):
    """The parts that all slots of a worker share."""

    connection: Connection
    closed: bool
    #: Called with every channel that has closed.
    ended: Callable[[Channel], None]

    def turn(self, slot: "PollingSlot") -> str:
        """The queue that the slot asks now; "" if it waits until the source tells it to `look`, or gives it a job."""

    def amqp_name(self, queue: str) -> str:
        """The queue's name in RabbitMQ."""

    def takes_from(self, queue: str) -> bool:
        """Whether the worker takes jobs from this queue now."""

    def leave(self, slot: "PollingSlot") -> None:
        """Forget a slot that does not wait any more."""

    def found_empty(self, queue: str) -> None:
        """Note that a slot asked this queue and found it empty."""

    def began(self) -> None:
        """Note that a slot has got a job."""

    def settled(self, delivery: Delivery, *, parked: bool) -> None:
        """Note that a delivery has been settled."""

    def returned(self, delivery: Delivery) -> None:
        """Give back a delivery that came for a slot whose `receive` was cancelled."""

    async def missing(self, queue: str) -> None:
        """Deal with a queue that was asked and does not exist."""


class PollingSlot:
    """One slot. It holds at most one unsettled delivery, or has one question under way, or waits for the source."""

    def __init__(self, source: Source, number: int) -> None:
        self.number = number
        self._source = source
        #: Opened at the first question: the many slots of an idle worker need none.
        self._channel: Channel | None = None
        self._lacks_channel = False
        #: The future of the task that waits in `receive`; the delivery, the error or the missing queue for it.
        self._asked: asyncio.Future[None] | None = None
        self._arrived: Delivery | None = None
        self._error: PalermoError | None = None
        self._gone = ""
        #: The callback of `receive`, which is offered a delivery first, and the delivery that it took.
        self._offer: TakeDelivery | None = None
        self._taken: Delivery | None = None
        self._resting = False
        #: The queue that is being asked; the future of a caller that waits only until its answer has come; whether the
        #: source has this slot in its list of waiting slots.
        self._queue = ""
        self._answered: asyncio.Future[None] | None = None
        self._waits = False

    async def receive(self, offer: TakeDelivery | None = None) -> Delivery:
        """The next job, unless the callback takes it."""
        self._offer, self._resting = offer, False
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
            await finish(self._withdraw())
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
        channel = await self._source.connection.channel()
        channel.on_close(lambda: self._on_end(channel))
        channel.on_get_empty(self._on_get_empty)
        self._source.connection.raw.answers_to(channel.raw, self._on_read)
        return channel

    async def _withdraw(self) -> None:
        """After `receive` was cancelled, give back a delivery that has come or is coming. Returns once it is back."""
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
            # Once this is answered, a count of the queue includes the job again.
            with suppress(PalermoError):
                await channel.prefetch(0)

    # -- asking

    def look(self, acked: int = 0) -> None:
        """Ask the queue whose turn it is, after acknowledging the delivery `acked`, if any, in the same write."""
        self._waits = False
        if self._source.closed:
            self.wake()
            return
        raw, channel = self._source.connection.raw, self._channel
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
            self._on_get_empty()
        elif self._queue:
            self._on_job(read_delivered(found, data, self._queue), found.tag, found.redelivered)

    def _on_got(self, _: object, method: Any, properties: Properties, body: bytes) -> None:
        message = read(delivered(method, properties, body), self._queue)
        self._on_job(message, method.delivery_tag, method.redelivered)

    def _on_get_empty(self) -> None:
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
        """Note that the answer has come. Returns the queue that was asked."""
        queue, self._queue = self._queue, ""
        if self._answered is not None:
            fulfil(self._answered, None)
        return queue

    @property
    def _is_waited_for(self) -> bool:
        return self._asked is not None and not self._asked.done() and not self._source.closed

    def take(self, delivery: Delivery) -> None:
        """Take a job that has come for this slot."""
        self._waits = False
        self._taken = delivery
        if self._offer is None or not self._offer(delivery):
            self._taken, self._arrived = None, delivery
            self.wake()
        self._source.began()

    def fail(self, error: PalermoError) -> None:
        """Make `receive` raise this error."""
        self._waits, self._error = False, error
        self.wake()

    def wake(self) -> None:
        """Wake the task in `receive`, so that it sees what has changed."""
        if self._asked is not None:
            fulfil(self._asked, None)

    def _on_end(self, channel: Channel) -> None:
        self._source.connection.raw.deliver_no_more(channel.raw)
        if channel is self._channel and (queue := self._heard()):
            if channel.missing:
                self._gone = queue
            elif self._is_waited_for:
                self._error = channel.error
            self.wake()
        self._source.ended(channel)

    # -- deliveries that were taken

    def ack(self, delivery: Delivery) -> None:
        """Acknowledge the delivery that the callback took, and go on. The next question leaves in the same write."""
        channel, tag = delivery.token
        self._taken = None
        if self._is_waited_for and not self._resting and channel is self._channel:
            self.look(acked=tag)
        else:
            channel.connection.raw.ack(channel.raw, tag)
            self._go_on()
        self._source.settled(delivery, parked=False)

    def settled(self, delivery: Delivery) -> None:
        """Go on to the next job, if this settled delivery is the one that the callback took."""
        if self._taken is not None and self._taken.token == delivery.token:
            self._taken = None
            self._go_on()

    def _go_on(self) -> None:
        if self._resting:
            # Left to the task in `receive`, which may be about to be cancelled.
            self.wake()
        elif self._is_waited_for and self._is_free:
            self.look()

    async def park(self, delivery: Delivery) -> None:
        """Leave the channel to this unsettled delivery, and take the next job on another channel."""
        channel = delivery.token[0]
        if self._channel is channel:
            self._channel = None
        if self._taken is not None and self._taken.token[0] is channel:
            self._taken = None
            self._go_on()

    async def rest(self) -> None:
        """Ask for no job after the one that the callback took, until `receive` is called again."""
        self._resting = self._taken is not None


def give_back(delivery: Delivery) -> None:
    """Give a delivery back to its queue. If its channel is closed, the broker has done so."""
    channel, tag = delivery.token
    if channel.is_open:
        channel.requeue(tag)
