"""The tenants of one job queue, in the hands of the one who leads: whose turn it is, and their jobs into the queue.

Only a few jobs more than there are slots are put into the job queue, so that who comes next is decided late. A job is
published to it and acknowledged to its tenant's queue in one transaction: whenever the leader dies,
both were done or neither. Where the job queue is no classic one, which takes part in no such transaction, it is
published and confirmed first.

A tenant that has jobs is asked for one at its turn (basic.get). One that has none left is listened to, with a prefetch
of one: what it sends next is in hand at once, and nothing is asked of ten thousand empty queues.
"""

import asyncio
import logging
import random
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import field
from typing import Any

from pika import spec

from palermo.brokers.rabbitmq.declarer import Declarer
from palermo.brokers.rabbitmq.link import Channel, Got, Link
from palermo.brokers.rabbitmq.looking import is_taken
from palermo.brokers.rabbitmq.publisher import Publisher, Unroutable
from palermo.brokers.rabbitmq.seats import Seat, seat_queue
from palermo.core.shares import Wheel
from palermo.core.topology import CLASSIC
from palermo.core.values import dataclass
from palermo.errors import NotFound, PalermoError

log = logging.getLogger("palermo.rabbitmq")

#: Jobs that are to wait in the job queue, for each consumer it has, and at least.
_AHEAD = 3

#: Jobs of one transaction, so that what the job queue holds is looked at again.
_AT_ONCE = 100

#: Seconds between two looks at a job queue that is full: doubled from the first to the last while it stays so.
_FIRST_PAUSE, _LAST_PAUSE = 0.001, 0.02

#: Seconds between two looks whether somebody who goes through the queue has done.
_STILL = 0.2

#: Seconds until the next attempt after something went wrong.
_AGAIN = 1.0

#: Jobs that one tenant sends while it is listened to, after which it is asked instead: that costs less.
_BUSY = 4

#: Bytes of bodies that are in hand at once; beyond that what comes goes back until its turn.
_IN_HAND = 32 * 1024 * 1024


@dataclass(slots=True)
class Client:
    """What is known of one tenant."""

    name: str
    queue: str
    share: float = 1.0
    #: Whether its queue may hold jobs, so that it is to be asked.
    asked: bool = True
    #: The tag by which it is listened to; "" if it is not.
    tag: str = ""
    #: A job that it has sent.
    in_hand: Got | None = None
    #: Jobs that it has sent since it was last found empty.
    sent: int = 0
    #: When something was last heard of it, on the loop's clock.
    heard: float = field(default_factory=lambda: asyncio.get_running_loop().time())


class Line:
    """See the module's first lines."""

    def __init__(
        self,
        exchange: str,
        queue: str,
        link: Link,
        declarer: Declarer,
        publisher: Callable[[], Awaitable[Publisher]],
        *,
        order: str,
    ) -> None:
        self.queue = queue
        self.clients: dict[str, Client] = {}
        #: Held by whoever deals, and by whoever looks or tidies.
        self.turn = asyncio.Lock()
        #: Whether somebody may be going through the queue, so that nothing may be dealt now.
        self.still = True
        self._exchange = exchange
        self._link = link
        self._declarer = declarer
        self._publisher = publisher
        self._wheel = Wheel(order, random.random)
        self._loop = asyncio.get_running_loop()
        self._channel: Channel | None = None
        self._tags: dict[str, Client] = {}
        self._numbers = 0
        self._bytes = 0
        self._returned: list[tuple[spec.BasicProperties, bytes]] = []
        self._news = asyncio.Event()

    def know(self, tenant: str) -> None:
        """This tenant has a queue, in which there may be jobs soon."""
        client = self.clients.get(tenant)
        if client is None:
            client = self.clients[tenant] = Client(tenant, seat_queue(self._exchange, Seat(self.queue, tenant)))
        client.heard = self._loop.time()
        if not client.tag:
            self._rouse(client)

    def forget(self, client: Client) -> None:
        """Its queue is gone."""
        self._drop_hand(client)
        self._wheel.leave(client.name)
        self._tags.pop(client.tag, None)
        if self.clients.get(client.name) is client:
            del self.clients[client.name]

    def __contains__(self, tenant: str) -> bool:
        """Whether it may have jobs waiting, and so its turn is to come."""
        return tenant in self._wheel

    def is_idle(self, client: Client) -> bool:
        """Whether nothing of it waits as far as is known."""
        return bool(client.tag) and client.in_hand is None and client.name not in self._wheel

    async def run(self) -> None:
        """Deal until the link is lost, which is raised, or the call is cancelled."""
        pause = _FIRST_PAUSE
        while True:
            try:
                # With the channel all that was in hand, or listened to, is to be asked anew.
                if not len(self._wheel) and (self._channel is None or self._channel.is_open):
                    self._news.clear()
                    await self._news.wait()
                async with self.turn:
                    self.still = self.still and await is_taken(self._link, self._exchange)
                    room = 0 if self.still else await self._room()
                    if room > 0:
                        await self._deal(min(room, _AT_ONCE))
            except PalermoError as error:
                if self._link.error is not None:
                    raise
                # Where the queue of one tenant is gone that one is forgotten, and the others go on.
                if not isinstance(error, NotFound):
                    log.warning("cannot deal jobs of tenants queue=%s error=%r", self.queue, str(error))
                    await asyncio.sleep(_AGAIN)
                continue
            # Where they are taken as fast as they are dealt nobody is to wait for us.
            pause = _FIRST_PAUSE if room > 0 else min(2 * pause, _LAST_PAUSE)
            await asyncio.sleep(0 if room > 0 else _STILL if self.still else pause)

    async def _room(self) -> int:
        """How many more jobs may lie in the job queue."""
        counted = await self._declarer.count(self.queue)
        if counted is None:
            self._declarer.forget(self.queue)
            await self._declarer.ensure(self.queue)
            counted = (0, 0)
        ready, consumers = counted
        return _AHEAD * max(1, consumers) - ready

    # -- dealing

    async def _deal(self, most: int) -> None:
        """Put the jobs whose turn it is into the job queue, so many at most."""
        channel = await self._open()
        jobs: list[Got] = []
        while len(jobs) < most and (name := self._wheel.next()) is not None:
            client = self.clients[name]
            got = await self._take(channel, client)
            if got is not None:
                client.share = _share(got.properties, client.share)
                self._wheel.served(name, client.share)
                jobs.append(got)
            if not client.asked:
                self._wheel.leave(name)
                if not client.tag:
                    self._listen(channel, client)
        if jobs:
            await self._hand_on(channel, jobs)

    async def _take(self, channel: Channel, client: Client) -> Got | None:
        if client.in_hand is not None:
            return self._drop_hand(client)
        try:
            got = await channel.get(client.queue)
        except PalermoError:
            if channel.missing:
                self.forget(client)
            raise
        client.heard = self._loop.time()
        client.asked = got is not None and got.left > 0
        return got

    async def _hand_on(self, channel: Channel, jobs: Sequence[Got]) -> None:
        raw, self._returned = channel.raw, []
        if await self._declarer.ensure(self.queue) == CLASSIC:
            for got in jobs:
                raw.basic_publish(self._exchange, self.queue, got.body, got.properties, mandatory=True)
        else:
            publisher = await self._publisher()
            await asyncio.gather(
                *(publisher.send(self._exchange, self.queue, got.properties, got.body) for got in jobs)
            )
        for got in jobs:
            raw.basic_ack(got.tag)
        await channel.call(raw.tx_commit)
        # Somebody deleted the job queue at this moment, and they are out of the transaction by now.
        returned, self._returned = self._returned, []
        for properties, body in returned:
            self._declarer.forget(self.queue)
            await self._declarer.ensure(self.queue)
            with suppress(Unroutable):
                await (await self._publisher()).send(self._exchange, self.queue, properties, body)

    # -- listening

    def _listen(self, channel: Channel, client: Client) -> None:
        """Not waited for: where its queue is gone the channel ends, and all are asked anew."""
        self._numbers += 1
        client.tag, client.sent = f"tenant-{self._numbers}", 0
        self._tags[client.tag] = client
        channel.raw.basic_consume(client.queue, self._on_sent, consumer_tag=client.tag)

    def _on_sent(self, raw: Any, method: Any, properties: spec.BasicProperties, body: bytes) -> None:
        client = self._tags.get(method.consumer_tag)
        if client is None:
            raw.basic_nack(method.delivery_tag)
            return
        client.sent += 1
        client.heard = self._loop.time()
        if self._bytes + len(body) > _IN_HAND:
            # Given back with the next commit; asked for at its turn.
            raw.basic_nack(method.delivery_tag)
            self._unlisten(raw, client)
        else:
            client.in_hand = Got(method.delivery_tag, method.redelivered, properties, body)
            self._bytes += len(body)
            if client.sent >= _BUSY:
                self._unlisten(raw, client)
        self._rouse(client)

    def _unlisten(self, raw: Any, client: Client) -> None:
        """Listen to it no more, but ask."""
        tag, client.tag, client.asked = client.tag, "", True
        self._tags.pop(tag, None)
        raw.basic_cancel(tag, callback=lambda _: None)

    def _rouse(self, client: Client) -> None:
        self._wheel.join(client.name, client.share)
        self._news.set()

    def _drop_hand(self, client: Client) -> Got | None:
        got, client.in_hand = client.in_hand, None
        if got is not None:
            self._bytes -= len(got.body)
        return got

    async def let_go(self, clients: Sequence[Client]) -> bool:
        """Hold nothing of these, and listen to them no more; whether what was held is back. To be called in `turn`."""
        channel = self._channel
        if channel is None or not channel.is_open:
            return False
        for client in clients:
            if client.tag:
                self._unlisten(channel.raw, client)
        # Behind the answers to what was asked until now: nothing is on its way any more.
        await channel.call(channel.raw.basic_qos, prefetch_count=1)
        for client in clients:
            if (got := self._drop_hand(client)) is not None:
                channel.raw.basic_nack(got.tag)
            self._rouse(client)
        # pika, too, may have given back what came behind a cancel: in a transaction, all counts from its commit on.
        await channel.call(channel.raw.tx_commit)
        return True

    async def drop(self, clients: Sequence[Client]) -> int:
        """Remove what is held of these; how many jobs that was. To be called in `turn`."""
        held = [got for client in clients if (got := self._drop_hand(client)) is not None]
        if held and self._channel is not None and self._channel.is_open:
            for got in held:
                self._channel.raw.basic_ack(got.tag)
            await self._channel.call(self._channel.raw.tx_commit)
        return len(held)

    async def _open(self) -> Channel:
        """The channel on which all jobs of tenants are taken."""
        if self._channel is not None and self._channel.is_open:
            return self._channel
        # What was held on the last one has gone back.
        self._tags.clear()
        for client in self.clients.values():
            self._drop_hand(client)
            client.tag, client.asked = "", True
            self._wheel.join(client.name, client.share)
        channel = await self._link.channel()
        raw = channel.raw
        raw.add_on_return_callback(lambda _, method, properties, body: self._returned.append((properties, body)))
        raw.add_on_cancel_callback(self._on_cancelled_by_broker)
        channel.on_close(self._news.set)
        await channel.call(raw.tx_select)
        await channel.call(raw.basic_qos, prefetch_count=1)
        self._channel = channel
        return channel

    def _on_cancelled_by_broker(self, frame: Any) -> None:
        client = self._tags.pop(frame.method.consumer_tag, None)
        if client is not None:
            self.forget(client)


def _share(properties: spec.BasicProperties, known: float) -> float:
    found = (properties.headers or {}).get("share")
    return float(found) if isinstance(found, int | float) and not isinstance(found, bool) and found > 0 else known
