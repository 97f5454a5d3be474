"""Events on RabbitMQ: published to a fanout, distributed by topic, and kept in a stream; see palermo.events."""

import asyncio
import logging
import math
import time
import uuid
from collections.abc import Awaitable, Callable
from contextlib import aclosing, suppress
from dataclasses import replace

from palermo.broker import Session, Swept
from palermo.brokers.rabbitmq.declarer import Declarer
from palermo.brokers.rabbitmq.kept import Found, Kept, Lying
from palermo.brokers.rabbitmq.link import Link
from palermo.brokers.rabbitmq.outbox import Outbox
from palermo.brokers.rabbitmq.publisher import Publisher, Unroutable
from palermo.brokers.rabbitmq.subscriptions import Subscriptions
from palermo.brokers.rabbitmq.turn import Turn
from palermo.brokers.rabbitmq.wire import read, to_properties
from palermo.brokers.rabbitmq.wiring import Wiring
from palermo.core.message import EVENT_ID, Message
from palermo.core.topics import Event, as_job
from palermo.core.topology import amqp_queue, internal
from palermo.errors import BrokerRefused, BrokerUnavailable, NoSubscriber, NotFound
from palermo.events import ALL, Old, Subscription

log = logging.getLogger("palermo.rabbitmq")

#: Old events that are published and confirmed together, and about how many bytes of bodies.
_BATCH, _BATCH_BYTES = 500, 8 * 1024**2

#: Seconds for which what groups are known to subscribe to need not be read again to subscribe others.
_FRESH = 5.0

#: How often what was published while old events were read is read after them, before the group is bound; once there
#: are so few of them the rest is left until after that.
_ROUNDS, _FEW = 20, 500


class RabbitmqEvents:
    """The events of one exchange, as one session publishes and subscribes to them."""

    def __init__(
        self,
        session: Session,
        link: Link,
        wiring: Wiring,
        declarer: Declarer,
        outbox: Outbox,
        reading: Callable[[], Awaitable[Link]],
    ) -> None:
        """`link` is the connection to publish on, `reading` gives the one to read on."""
        self._session = session
        self._exchange = session.exchange
        self._link = link
        self._wiring = wiring
        self._declarer = declarer
        self._outbox = outbox
        self._reading = reading
        self._kept = Kept(session, link, wiring, self._open)
        self._list = Subscriptions(session.exchange, self._open, patience=session.timeout)
        self._turn = Turn(internal(session.exchange, "events.turn"), "another group's first subscription")
        self._publisher: Publisher | None = None
        self._seen: dict[str, Subscription] = {}
        self._seen_at = -math.inf
        self._wired = False
        self._wiring_now = asyncio.Lock()

    async def publish(self, event: Event) -> None:
        try:
            async with asyncio.timeout(self._session.timeout):
                await self._publish(event)
        except TimeoutError:
            why = "its memory or disk alarm blocks publishers" if self._link.blocked else "it is too busy, or away"
            raise BrokerUnavailable(
                f"RabbitMQ at {self._link.where} did not confirm event {event.message.id} within"
                f" {self._session.timeout:g} s: {why}."
            ) from None

    async def subscribe(self, subscription: Subscription, *, from_start: bool = False) -> int:
        await self._wire()
        before = (await self._seen_lately()).get(subscription.group)
        if before is None and from_start and self._kept.wanted:
            async with self._turn.taken(self._link):
                before = (await self.known()).get(subscription.group)
                if before is None:
                    told = await self._join(subscription)
                    await self._list.put(replace(subscription, since=subscription.since or time.time()))
                    return told
        since = before.since if before is not None else subscription.since or time.time()
        subscription = replace(subscription, since=since)
        if subscription != before:
            # Known before it is bound: then what is bound is known, whoever dies in between.
            await self._list.put(subscription)
        await self._bind(subscription)
        if before is not None:
            await self._unbind(before, set(before.topics) - set(subscription.topics))
        return 0

    async def unsubscribe(self, group: str) -> None:
        found = await self._find(group)
        self._wiring.topics.pop(found.queue, None)
        await self._unbind(found, set(found.topics))
        await self._list.remove(group)
        self._seen_at = -math.inf

    async def subscriptions(self) -> list[Subscription]:
        return list((await self.known()).values())

    async def replay(self, group: str, old: Old = ALL, *, progress: Callable[[Swept], None] | None = None) -> int:
        if not self._kept.wanted:
            raise BrokerRefused(
                "events are not kept here, so none can be told again: see the setting events_unsubscribed."
            )
        found = await self._find(group)
        await self._wire()
        link = await self._reading()
        # Where nothing has been stored since an instant, a stream would wait for what will be.
        last = await self._kept.end(link) if old.since is None else await self._kept.mark(link)
        return await self._tell(found, 0, last, old, run=uuid.uuid4().hex[:8], progress=progress)

    async def kept(self) -> int | None:
        return await self._kept.count(await self._reading()) if self._kept.wanted else None

    async def known(self) -> dict[str, Subscription]:
        """All subscriptions, by group."""
        self._seen = await self._list.all(await self._reading())
        self._seen_at = asyncio.get_running_loop().time()
        return self._seen

    async def _seen_lately(self) -> dict[str, Subscription]:
        """The same as of a moment ago: a worker has many groups, and to read it takes several questions."""
        fresh = asyncio.get_running_loop().time() - self._seen_at < _FRESH
        return self._seen if fresh else await self.known()

    async def deleted(self, queue: str) -> None:
        """A queue has been deleted, and with it what it was bound by: its group subscribes no more."""
        if not self._wiring.is_group(queue):
            return
        self._wiring.topics.pop(queue, None)
        for one in (await self.known()).values():
            if one.queue == queue:
                await self._list.remove(one.group)
        self._seen_at = -math.inf

    # -- publishing

    async def _publish(self, event: Event) -> None:
        for attempt in (1, 2):
            await self._wire()
            publisher = await self._open()
            properties = to_properties(event.message)
            sent = publisher.send(self._wiring.gateway, event.topic, properties, event.message.body)
            self._link.raw.flush()
            try:
                await sent
                return
            except Unroutable as error:
                if attempt == 2:
                    raise NoSubscriber(
                        f"no group subscribes to topic {event.topic!r}: event {event.message.id} was refused. Start a"
                        " worker that subscribes, or have such events kept by the setting events_unsubscribed."
                    ) from error
            except NotFound:
                if attempt == 2:
                    raise
            # What carried it was deleted, or nobody wants it.
            self._wired = False
            await self._wire(again=True)

    async def _wire(self, *, again: bool = False) -> None:
        """See that what carries events is there; `again` binds all groups anew too."""
        if self._wired:
            return
        async with self._wiring_now:
            if self._wired:
                return
            channel = await self._link.channel()
            await self._wiring.make(channel)
            await self._kept.bind()
            for one in (await self.known()).values() if again else ():
                with suppress(NotFound):  # its queue was deleted: whoever serves it makes it again
                    channel = channel if channel.is_open else await self._link.channel()
                    for topic in one.topics:
                        name = amqp_queue(self._exchange, one.queue)
                        await channel.call(channel.raw.queue_bind, name, self._wiring.distributor, routing_key=topic)
            await channel.close()
            self._wired = True

    async def _open(self) -> Publisher:
        """A channel of its own: what is refused closes the channel, and no job may be among what is lost with it."""
        if self._publisher is None or not self._publisher.is_open:
            self._publisher = await Publisher.open(self._link)
        return self._publisher

    # -- subscribing

    async def _find(self, group: str) -> Subscription:
        known = await self.known()
        if group not in known:
            raise NotFound(f"no group {group!r} subscribes to events; `palermo topics` lists those that do.")
        return known[group]

    async def _bind(self, subscription: Subscription) -> None:
        self._wiring.topics[subscription.queue] = subscription.topics
        self._declarer.forget(subscription.queue)
        await self._declarer.ensure(subscription.queue)

    async def _unbind(self, subscription: Subscription, topics: set[str]) -> None:
        name = amqp_queue(self._exchange, subscription.queue)
        channel = await self._link.channel()
        for topic in sorted(topics):
            await channel.call(channel.raw.queue_unbind, name, self._wiring.distributor, routing_key=topic)
        await channel.close()

    # -- old events

    async def _join(self, subscription: Subscription) -> int:
        """Put the events that are kept into the queue of a new group, and bind it, so that it gets each event once.

        What is published around the moment of binding is in the stream, and perhaps in the queue: a look tells. A
        join that was broken off is begun anew, past what lies in the queue already.
        """
        link = await self._reading()
        queue = subscription.queue
        await self._declarer.ensure(queue)
        # By one that was broken off, or by another program, it may be bound; what is published meanwhile is kept.
        await self._unbind(subscription, set(subscription.topics))
        lying = await Lying.within(link, self._exchange, queue)
        done, told = -1, 0
        for _ in range(_ROUNDS):
            last = await self._kept.end(link)
            told += await self._tell(subscription, done + 1, last, ALL, lying=lying)
            few, done = last - done < _FEW, last
            if few:
                break
        await self._bind(subscription)
        last = await self._kept.mark(link)
        async with aclosing(self._kept.read(link, done + 1, last)) as events:
            late = [found async for found in events if subscription.wants(found.entry.routing_key)]
        if late:
            lying = await Lying.within(link, self._exchange, queue)
            missed = [_as_job(found, subscription, "") for found in late if not lying.has(found)]
            told += await self._outbox.publish_many(missed)
        log.info("group subscribes from the start group=%s events=%d", subscription.group, told)
        return told

    async def _tell(
        self,
        subscription: Subscription,
        first: int,
        last: int,
        old: Old,
        *,
        run: str = "",
        lying: Lying | None = None,
        progress: Callable[[Swept], None] | None = None,
    ) -> int:
        """Put the events from one offset to another into the group's queue, as far as they are meant; how many."""
        batch: list[Message] = []
        size = told = seen = 0
        link = await self._reading()

        async def store() -> None:
            nonlocal told, size
            told += await self._outbox.publish_many(batch)
            batch.clear()
            size = 0
            if progress is not None:
                progress(Swept(total=max(seen, last - first + 1), seen=seen, moved=told))

        if last < first:
            return 0
        async with aclosing(self._kept.read(link, first, last, old.since)) as events:
            async for found in events:
                seen = found.offset - first + 1
                if not old.means(subscription, found.entry.routing_key, found.at):
                    continue
                if lying is not None and lying.has(found):
                    continue
                batch.append(_as_job(found, subscription, run))
                size += len(found.entry.body)
                if len(batch) >= _BATCH or size >= _BATCH_BYTES:
                    await store()
        await store()
        return told


def _as_job(found: Found, subscription: Subscription, run: str) -> Message:
    """The job that an old event becomes; its wait is not counted from when it was published."""
    message = read(found.entry, subscription.queue)
    event = replace(message, id=str(message.extra[EVENT_ID])) if EVENT_ID in message.extra else message
    job = as_job(event, group=subscription.group, topic=found.entry.routing_key, run=run)
    return replace(job, queue=subscription.queue, queued_at=None)
