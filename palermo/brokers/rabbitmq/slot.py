"""One slot's subscription to the one queue of its worker, and what has come by it."""

import asyncio
from typing import TYPE_CHECKING, Any

from palermo.broker import Delivery, Take
from palermo.brokers.rabbitmq.backlog import Backlog
from palermo.brokers.rabbitmq.deliveries import Delivered
from palermo.brokers.rabbitmq.link import Channel, delivered
from palermo.brokers.rabbitmq.wire import read, read_delivered
from palermo.core.message import Message
from palermo.errors import BrokerUnavailable, PalermoError

if TYPE_CHECKING:
    from palermo.brokers.rabbitmq.push import PushSource

Token = tuple[Channel, int]

#: Seconds for which a delivery that has ended, with its end stored, is kept while the job after it runs.
_ASIDE = 1.0


class Slot:
    """One slot's subscription. It holds at most one unsettled delivery, or some more that wait until asked for.

    Or which was taken as it came, by whoever it is offered to first: then who asks waits until that is settled.
    Of one that has ended, and is not acknowledged before its end is stored, it does not wait for that: it asks for the
    next job itself, and acknowledges the one before when that next one has ended, since then another may come.
    """

    def __init__(self, source: "PushSource", number: int) -> None:
        self._source = source
        self._number = number
        self._channel: Channel | None = None
        self._tag = ""
        self._backlog = Backlog(
            source.prefetch,
            slow=lambda: source.see_to(self._keep_none_waiting()),
            resize=lambda: source.see_to(self._resize()),
        )
        #: How many its channel lets a subscription hold.
        self._count = 0
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
            if self._backlog and not self._taken:
                self._backlog.began()
                return self._backlog.take()
            try:
                if self._ended is not None and self._hungry and (ahead := await self._get_ahead()) is not None:
                    return ahead
                if not self._taken:
                    await self._subscribe()
                if not self._backlog or self._taken:
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
            self._give_back()
            self._let_come(channel)

    async def park(self) -> None:
        """Leave the channel to its unsettled delivery, and take the next on another."""
        async with self._lock:
            channel, tag = self._channel, self._tag
            self._channel, self._tag = None, ""
            await self._cancel(channel, tag)
            self._give_back()
            self._backlog.left()
            self._let_come(channel)

    def _give_back(self) -> None:
        """All that wait, to their places in the queue."""
        for delivery in self._backlog.clear():
            channel, tag = delivery.token
            if channel.is_open:
                channel.raw.basic_nack(tag, requeue=True)

    async def _keep_none_waiting(self) -> None:
        """The job that runs takes long: others may have those that wait behind it."""
        await self.rest()
        self.wake()

    async def _resize(self) -> None:
        """Subscribe anew, since that is how a subscription may hold another number; after what it holds still."""
        try:
            async with self._lock:
                channel, tag = self._channel, self._tag
                if channel is None or not channel.is_open or not tag or self._count == self._backlog.wanted:
                    return
                # What comes until this is answered is taken as ever.
                await channel.call(channel.raw.basic_cancel, tag)
                self._source.link.raw.deliver_no_more(channel.raw)
                self._tag = ""
            # Otherwise it would hold as many more.
            if not (self._backlog or self._closed or self._source.paused):
                await self._subscribe()
        finally:
            if not (self._tag or self._backlog):
                self.wake()

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
            channel = await self._open()
            # Known before the call: a caller cancelled in its middle unsubscribes by it.
            tag = self._tag = self._source.tag(self._number)
            self._source.link.raw.deliver_to(channel.raw, tag, self._on_delivered)
            await channel.call(channel.raw.basic_consume, self._source.amqp_name, self._on_message, consumer_tag=tag)

    async def prepare(self) -> None:
        """Make the queue and open what its jobs will come by, and let none come yet."""
        async with self._lock:
            await self._open()

    async def _open(self) -> Channel:
        channel = self._channel
        if channel is None or not channel.is_open:
            made = channel = self._channel = await self._source.link.channel()
            made.on_close(lambda: self._on_end(made))
            made.raw.add_on_cancel_callback(lambda _: self._on_cancelled_by_broker(made))
            self._count = 0
        count = self._source.allowed(await self._source.declarer.ensure(self._source.queue), self._backlog.wanted)
        if count != self._count:
            await channel.call(channel.raw.basic_qos, prefetch_count=count)
            self._count = count
        return channel

    def _on_delivered(self, found: Delivered, data: bytes) -> None:
        self._take(read_delivered(found, data, self._source.queue), found.tag, found.redelivered)

    def _on_message(self, _: object, method: Any, properties: Any, body: bytes) -> None:
        message = read(delivered(method, properties, body), self._source.queue)
        self._take(message, method.delivery_tag, method.redelivered)

    def _take(self, message: Message, tag: int, redelivered: bool) -> None:
        assert self._channel is not None
        token = (self._channel, tag)
        delivery = handed(message, self._number, token, redelivered=redelivered)
        if self._backlog or not self._shown(delivery):
            self._backlog.add(delivery)
            if not self._taken:
                self.wake()

    def next(self) -> None:
        """Whoever took the last delivery as it came is free again: show it the next one, if one waits."""
        if not self._backlog:
            return
        delivery = self._backlog.take()
        if not self._shown(delivery):
            self._backlog.put_back(delivery)
            if not self._taken:
                self.wake()

    def _shown(self, delivery: Delivery) -> bool:
        """Show it to whoever is to see what comes while somebody waits; whether that one took it."""
        waits = self._asked is not None and not self._asked.done()
        if not waits or self._offer is None or self._taken or self._source.paused or not self._offer(delivery):
            return False
        self._taken = True
        self._backlog.began()
        return True

    def offer_to(self, take: Take) -> None:
        """Show it deliveries first that come while somebody waits."""
        self._offer = take

    def settled(self, token: Token) -> None:
        """What was taken as it came is settled."""
        if token == (self._channel, self._got):
            self._behind()
        self._backlog.ended()
        if self._taken:
            # If others wait, whoever took it is shown the next one: see `next`.
            self._taken = False
            if not self._backlog and (not self._tag or self._channel is None or not self._channel.is_open):
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
            self._backlog.clear()
            self._backlog.left()
            self._ended = self._got = None
            self._ahead = self._stored = False
            self.wake()
        self._source.ended(channel)

    def wake(self) -> None:
        """Let it look at what has changed."""
        if self._asked is not None and not self._asked.done():
            self._asked.set_result(None)


def handed(message: Message, slot: int, token: Token, *, redelivered: bool) -> Delivery:
    """The delivery of which no more is known than this, at a fifth of the constructor's price: every job pays it."""
    delivery = object.__new__(Delivery)
    known = {"message": message, "slot": slot, "token": token, "redelivered": redelivered}
    object.__setattr__(delivery, "__dict__", known)
    return delivery
