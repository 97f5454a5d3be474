"""Taking jobs from one queue: a subscription per slot, each with a prefetch of one."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

from palermo.broker import Delivery, Take
from palermo.brokers.rabbitmq.declarer import Declarer
from palermo.brokers.rabbitmq.deliveries import Delivered
from palermo.brokers.rabbitmq.link import Channel, Link, delivered
from palermo.brokers.rabbitmq.together import together
from palermo.brokers.rabbitmq.wire import read, read_delivered
from palermo.core.message import Message
from palermo.core.topology import amqp_queue
from palermo.errors import BrokerUnavailable, PalermoError

Token = tuple[Channel, int]

#: Seconds for which a delivery that has ended, with its end stored, is kept while the job after it runs.
_ASIDE = 1.0


class Slot:
    """One slot's subscription. It holds at most one unsettled delivery, which waits here until asked for.

    Or which was taken as it came, by whoever it is offered to first: then who asks waits until that is settled.
    Of one that has ended, and is not acknowledged before its end is stored, it does not wait for that: it asks for the
    next job itself, and acknowledges the one before when that next one has ended, since then another may come.
    """

    def __init__(self, source: "PushSource", number: int) -> None:
        self._source = source
        self._number = number
        self._channel: Channel | None = None
        self._tag = ""
        self._arrived: Delivery | None = None
        self._asked: asyncio.Future[None] | None = None
        #: Who is shown a delivery that comes while somebody waits, and whether one is out that was taken so.
        self._offer: Take | None = None
        self._taken = False
        #: The tag of a delivery that has ended and keeps others from coming, and whether its end is stored.
        self._ended: int | None = None
        self._stored = False
        #: Whether a job was asked for, or is run, that did not come by the subscription; its tag, and whether to ask.
        self._ahead = False
        self._got: int | None = None
        self._hungry = False
        self._timer: asyncio.TimerHandle | None = None
        self._closed = False
        self._lock = asyncio.Lock()

    async def receive(self) -> Delivery:
        while not self._closed:
            if self._source.paused:
                await self._await_news()
                continue
            if self._arrived is not None and not self._taken:
                delivery, self._arrived = self._arrived, None
                return delivery
            try:
                if self._ended is not None and self._hungry and (ahead := await self._get_ahead()) is not None:
                    return ahead
                if not self._taken:
                    await self._subscribe()
                if self._arrived is None or self._taken:
                    await self._await_news()
            except asyncio.CancelledError:
                await asyncio.shield(self.rest())
                raise
        raise BrokerUnavailable("this worker's claim on jobs has been given up.")

    async def _await_news(self) -> None:
        self._asked = asyncio.get_running_loop().create_future()
        try:
            await self._asked
        finally:
            self._asked = None

    async def close(self) -> None:
        """Rest for good, and tell who waits."""
        self._closed = True
        self.wake()
        await self.rest()

    async def rest(self) -> None:
        """Unsubscribe; what has come and was not taken goes back."""
        async with self._lock:
            channel, tag = self._channel, self._tag
            self._tag = ""
            await self._cancel(channel, tag)
            delivery, self._arrived = self._arrived, None
            if delivery is not None and channel is not None and channel.is_open:
                channel.raw.basic_nack(delivery.token[1], requeue=True)
            self._let_come(channel)

    async def park(self) -> None:
        """Leave the channel to its unsettled delivery, and take the next on another."""
        async with self._lock:
            channel, tag = self._channel, self._tag
            self._channel, self._tag = None, ""
            await self._cancel(channel, tag)
            self._let_come(channel)

    # -- while the end of a job is being stored

    def ending(self, token: Token) -> None:
        """A job has ended whose delivery `acknowledge` is called for when that is stored."""
        channel, tag = token
        if channel is self._channel and self._tag:
            if tag != self._got:
                self._ended, self._stored = tag, False
            self._hungry = True

    def acknowledge(self, token: Token) -> None:
        """The end of its job is stored."""
        channel, tag = token
        if channel is not self._channel or tag != self._ended:
            channel.link.raw.ack(channel.raw, tag)
        elif self._ahead:
            self._stored = True
            self._timer = asyncio.get_running_loop().call_later(_ASIDE, self._step_aside)
        else:
            self._stored = True
            self._let_come(channel)

    async def _get_ahead(self) -> Delivery | None:
        channel, self._hungry, self._ahead = self._channel, False, True
        assert channel is not None
        got = None
        try:
            got = await channel.get(self._source.amqp_name)
        except PalermoError:
            # If only this channel has ended, the next subscription is on another.
            if channel.link.error is not None:
                raise
        finally:
            if got is None:
                self._behind()
        if got is None:
            return None
        self._got = got.tag
        message = read(got, self._source.queue)
        return Delivery(message=message, slot=self._number, token=(channel, got.tag), redelivered=got.redelivered)

    def _behind(self) -> None:
        """What was asked for is done with, or there was nothing."""
        self._ahead, self._got = False, None
        if self._stored:
            self._let_come(self._channel)

    def _let_come(self, channel: Channel | None) -> None:
        """Acknowledge the delivery that has ended, if its end is stored, or let whoever stores it do so."""
        tag, self._ended = self._ended, None
        if self._timer is not None:
            self._timer.cancel()
        if tag is not None and self._stored and channel is not None and channel.is_open:
            channel.link.raw.ack(channel.raw, tag)
        self._stored = False

    def _step_aside(self) -> None:
        """The job that was asked for takes long: let nothing come meanwhile, and acknowledge the one before."""
        self._source.see_to(self.rest())

    async def _cancel(self, channel: Channel | None, tag: str) -> None:
        if channel is not None and channel.is_open and tag:
            self._source.link.raw.deliver_no_more(channel.raw)
            await channel.call(channel.raw.basic_cancel, tag)

    async def _subscribe(self) -> None:
        async with self._lock:
            if self._tag and self._channel is not None and self._channel.is_open:
                return
            await self._open()
            assert self._channel is not None
            await self._source.declarer.ensure(self._source.queue)
            # Known before the call: a caller cancelled in its middle unsubscribes by it.
            tag = self._tag = self._source.tag(self._number)
            self._source.link.raw.deliver_to(self._channel.raw, tag, self._on_delivered)
            await self._channel.call(
                self._channel.raw.basic_consume, self._source.amqp_name, self._on_message, consumer_tag=tag
            )

    async def prepare(self) -> None:
        """Open what jobs will come by, and let none come yet."""
        async with self._lock:
            await self._open()

    async def _open(self) -> None:
        if self._channel is None or not self._channel.is_open:
            channel = self._channel = await self._source.link.channel()
            channel.on_close(lambda: self._on_end(channel))
            channel.raw.add_on_cancel_callback(lambda _: self._on_cancelled_by_broker(channel))
            await channel.call(channel.raw.basic_qos, prefetch_count=1)

    def _on_delivered(self, found: Delivered, data: bytes) -> None:
        self._take(read_delivered(found, data, self._source.queue), found.tag, found.redelivered)

    def _on_message(self, _: object, method: Any, properties: Any, body: bytes) -> None:
        message = read(delivered(method, properties, body), self._source.queue)
        self._take(message, method.delivery_tag, method.redelivered)

    def _take(self, message: Message, tag: int, redelivered: bool) -> None:
        assert self._channel is not None
        token = (self._channel, tag)
        delivery = Delivery(message=message, slot=self._number, token=token, redelivered=redelivered)
        waits = self._asked is not None and not self._asked.done()
        if waits and self._offer is not None and not (self._taken or self._source.paused) and self._offer(delivery):
            self._taken = True
            return
        self._arrived = delivery
        self.wake()

    def offer_to(self, take: Take) -> None:
        """Show it deliveries first that come while somebody waits."""
        self._offer = take

    def settled(self, token: Token) -> None:
        """What was taken as it came is settled."""
        if token == (self._channel, self._got):
            self._behind()
        if self._taken:
            self._taken = False
            if self._arrived is not None or not self._tag or self._channel is None or not self._channel.is_open:
                self.wake()

    def _on_cancelled_by_broker(self, channel: Channel) -> None:
        if channel is not self._channel:
            return
        # The queue was deleted under us: declare it again and subscribe anew.
        self._tag = ""
        self._source.declarer.forget(self._source.queue)
        self.wake()

    def _on_end(self, channel: Channel) -> None:
        self._source.link.raw.deliver_no_more(channel.raw)
        if channel is self._channel:
            self._tag = ""
            self._arrived = self._ended = self._got = None
            self._ahead = self._stored = False
            self.wake()
        self._source.ended(channel)

    def wake(self) -> None:
        """Let it look at what has changed."""
        if self._asked is not None and not self._asked.done():
            self._asked.set_result(None)


class PushSource:
    """All slots of a worker on one queue."""

    def __init__(
        self, link: Link, declarer: Declarer, exchange: str, queue: str, *, slots: int, tag: Callable[[int], str]
    ) -> None:
        self.link = link
        self.declarer = declarer
        self.queue = queue
        self.amqp_name = amqp_queue(exchange, queue)
        self.tag = tag
        #: Told of every channel that has ended.
        self.ended: Callable[[Channel], None] = lambda _: None
        #: Whether the queue is to be left alone.
        self.paused = False
        self._resting: set[asyncio.Task[None]] = set()
        self._slots = [Slot(self, number) for number in range(1, slots + 1)]

    @property
    def queues(self) -> tuple[str, ...]:
        """The one that it serves, unless that is paused."""
        return () if self.paused else (self.queue,)

    async def prepare(self) -> None:
        """Make the queue, and ready what its jobs will come by."""
        await together(self.declarer.ensure(self.queue), *(slot.prepare() for slot in self._slots))

    async def receive(self, slot: int) -> Delivery:
        return await self._slots[slot - 1].receive()

    def offer_to(self, slot: int, take: Take) -> None:
        """Show deliveries first to this, which come while the slot waits for one."""
        self._slots[slot - 1].offer_to(take)

    def pause(self, queues: set[str]) -> None:
        """Take nothing from these queues; from all others again."""
        before, self.paused = self.paused, self.queue in queues
        if self.paused == before:
            return
        # It may be deleted, or migrated, before it is served again.
        self.declarer.forget(self.queue)
        for slot in self._slots:
            slot.wake()
            if self.paused:
                self.see_to(self._put_to_rest(slot))

    def see_to(self, work: Awaitable[None]) -> None:
        """Have this done, without waiting for it."""
        task = asyncio.ensure_future(quietly(work))
        self._resting.add(task)
        task.add_done_callback(self._resting.discard)

    async def _put_to_rest(self, slot: Slot) -> None:
        await slot.rest()
        # The pause may have ended meanwhile.
        slot.wake()

    async def rest(self, slot: int) -> None:
        await self._slots[slot - 1].rest()

    async def park(self, delivery: Delivery) -> None:
        """Let the slot go on without this delivery, which stays unsettled."""
        await self._slots[delivery.slot - 1].park()

    def ending(self, delivery: Delivery) -> None:
        """Its job has ended, and it is acknowledged once that is stored."""
        self._slots[delivery.slot - 1].ending(delivery.token)

    def acknowledge(self, delivery: Delivery) -> None:
        """The end of this job is stored."""
        self._slots[delivery.slot - 1].acknowledge(delivery.token)

    def settled(self, delivery: Delivery, *, parked: bool) -> None:
        """A delivery has been settled; the channel of one that was parked has served."""
        channel, _ = delivery.token
        if not parked:
            self._slots[delivery.slot - 1].settled(delivery.token)
        elif channel.is_open:
            channel.raw.close()

    async def close(self) -> None:
        for slot in self._slots:
            await quietly(slot.close())


async def quietly(closing: Awaitable[None]) -> None:
    """Await the end of something whose session may be gone already."""
    try:
        await closing
    except PalermoError:
        return
