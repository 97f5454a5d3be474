"""Events on RabbitMQ: published to a fanout exchange, distributed by topic, kept in a stream.

See palermo.contract.events.
"""

import asyncio
import logging
import uuid
from collections.abc import Awaitable, Callable, Collection
from contextlib import aclosing, suppress

from msgspec.structs import replace

from palermo.brokers.rabbitmq.amqp.alarms import unconfirmed
from palermo.brokers.rabbitmq.amqp.connection import Connection
from palermo.brokers.rabbitmq.amqp.messages import read, to_properties
from palermo.brokers.rabbitmq.amqp.mutex import Mutex
from palermo.brokers.rabbitmq.amqp.publisher import Destination, OwnPublisher, Unroutable
from palermo.brokers.rabbitmq.browsing.sweep import Reader, ids_in
from palermo.brokers.rabbitmq.cluster.facts import GROUP, Facts
from palermo.brokers.rabbitmq.event_log import EventLog, Found, event_id
from palermo.brokers.rabbitmq.publishing.declarer import Declarer, EventTopology
from palermo.brokers.rabbitmq.publishing.outbox import Outbox
from palermo.contract import clock
from palermo.contract.broker import SessionParameters
from palermo.contract.events import ALL_EVENTS, ReplayFilter, Subscription, no_group, no_subscriber, not_kept
from palermo.contract.sweep import SweepProgress
from palermo.core.message import EVENT_ID, Message
from palermo.core.topics import Event
from palermo.core.topology import amqp_queue, internal
from palermo.errors import NotFound

log = logging.getLogger("palermo.rabbitmq")

#: Number of earlier events published and confirmed together, and the approximate bytes of their bodies.
_BATCH, _BATCH_BYTES = 500, 8 * 1024**2


class RabbitmqEvents:
    """One session's access to the events of one exchange."""

    def __init__(
        self,
        session: SessionParameters,
        connection: Connection,
        wiring: EventTopology,
        declarer: Declarer,
        outbox: Outbox,
        facts: Facts,
        reading: Callable[[], Awaitable[Connection]],
    ) -> None:
        """`connection` is for publishing; `reading` returns the one for reading."""
        self._session = session
        self._exchange = session.exchange
        self._connection = connection
        self._wiring = wiring
        self._declarer = declarer
        self._outbox = outbox
        self._reading = reading
        self._publisher = OwnPublisher(connection)
        self._event_log = EventLog(session, connection, wiring, self._publisher.open)
        self._facts = facts
        self._mutex = Mutex(internal(session.exchange, "events.turn"), "another group's first subscription")
        self._wired = self._rebinds = False
        self._wiring_now = asyncio.Lock()

    async def publish(self, event: Event) -> None:
        try:
            async with asyncio.timeout(self._session.timeout):
                await self._publish(event)
        except TimeoutError:
            raise unconfirmed(self._connection, f"event {event.message.id}", self._session.timeout) from None

    async def subscribe(self, subscription: Subscription, *, from_start: bool = False) -> int:
        await self._wire()
        before = (await self.known()).get(subscription.group)
        if before is None and from_start and self._event_log.wanted:
            async with self._mutex.held(self._connection, optional=True):
                before = (await self.known()).get(subscription.group)
                if before is None:
                    replayed = await self._join(subscription)
                    await self._store(replace(subscription, since=subscription.since or clock.now()))
                    return replayed
        since = before.since if before is not None else subscription.since or clock.now()
        subscription = replace(subscription, since=since)
        if subscription != before:
            # Listed before it is bound, so that every bound group is listed even if a process dies in between.
            await self._store(subscription)
        await self._bind(subscription)
        if before is not None:
            await self._unbind(before, set(before.topics) - set(subscription.topics))
        return 0

    async def unsubscribe(self, group: str) -> None:
        found = await self._find(group)
        self._wiring.topics.pop(found.queue, None)
        await self._unbind(found, set(found.topics))
        await self._facts.remove(GROUP, group)

    async def subscriptions(self) -> list[Subscription]:
        return list((await self.known()).values())

    async def replay(
        self, group: str, old: ReplayFilter = ALL_EVENTS, *, progress: Callable[[SweepProgress], None] | None = None
    ) -> int:
        if not self._event_log.wanted:
            raise not_kept()
        found = await self._find(group)
        await self._wire()
        connection = await self._reading()
        # A mark, because a stream without an entry after `since` would wait for its next one.
        last = await self._event_log.end(connection) if old.since is None else await self._event_log.mark(connection)
        return await self._deliver_kept(found, 0, last, old, run=uuid.uuid4().hex[:8], progress=progress)

    async def kept(self) -> int | None:
        return await self._event_log.count(await self._reading()) if self._event_log.wanted else None

    async def known(self) -> dict[str, Subscription]:
        """All subscriptions, by group."""
        return (await self._facts.read(await self._reading())).subscriptions

    async def deleted(self, queue: str) -> None:
        """Remove the subscription of the group with this queue, which was deleted with its bindings."""
        if not self._wiring.is_group(queue):
            return
        self._wiring.topics.pop(queue, None)
        for one in (await self.known()).values():
            if one.queue == queue:
                await self._facts.remove(GROUP, one.group)

    # -- publishing

    async def _publish(self, event: Event) -> None:
        async def send() -> None:
            publisher = await self._publisher.open()
            properties = to_properties(event.message)
            sent = publisher.send(self._wiring.gateway, event.topic, properties, event.message.body)
            self._connection.raw.flush()
            await sent

        try:
            await Destination(self._wire, self._unwire).publish(send)
        except Unroutable as error:
            raise no_subscriber(event) from error

    def _unwire(self) -> None:
        """Record that an exchange or a binding was deleted, or that an event was returned."""
        self._wired, self._rebinds = False, True

    async def _wire(self) -> None:
        """Create the exchanges, the stream and their bindings. Binds all groups again if a binding may be missing."""
        if self._wired:
            return
        async with self._wiring_now:
            if self._wired:
                return
            async with self._connection.spare_channel() as channel:
                await self._wiring.make(channel)
            bound = await self._event_log.bind()
            for one in (await self.known()).values() if self._rebinds else ():
                with suppress(NotFound):  # the queue was deleted; a worker of the group will recreate it
                    async with self._connection.spare_channel() as channel:
                        for topic in one.topics:
                            name = amqp_queue(self._exchange, one.queue)
                            await channel.bind(name, self._wiring.distributor, routing_key=topic)
            self._wired, self._rebinds = bound, False

    # -- subscribing

    async def _store(self, subscription: Subscription) -> None:
        await self._facts.put(GROUP, subscription.group, subscription.to_plain())

    async def _find(self, group: str) -> Subscription:
        known = await self.known()
        if group not in known:
            raise no_group(group)
        return known[group]

    async def _bind(self, subscription: Subscription) -> None:
        self._wiring.topics[subscription.queue] = subscription.topics
        self._declarer.forget(subscription.queue)
        await self._declarer.ensure(subscription.queue)

    async def _unbind(self, subscription: Subscription, topics: set[str]) -> None:
        name = amqp_queue(self._exchange, subscription.queue)
        async with self._connection.spare_channel() as channel:
            for topic in sorted(topics):
                await channel.unbind(name, self._wiring.distributor, routing_key=topic)

    # -- earlier events

    async def _join(self, subscription: Subscription) -> int:
        """Put the kept events into a new group's queue and bind the queue, so that the group gets each event once.

        An event published at the moment of binding may be in the stream and in the queue, so the queue is read too. If
        a join is interrupted, the next one starts again, and skips the events that are already in the queue.
        """
        connection, queue = await self._reading(), subscription.queue
        await self._declarer.ensure(queue)
        # An interrupted join, or another program, may have bound the queue already.
        await self._unbind(subscription, set(subscription.topics))
        last = await self._event_log.end(connection)
        replayed = await self._deliver_kept(subscription, 0, last, queued=await self._queued_ids(queue))
        await self._bind(subscription)
        late = await self._event_log.mark(connection)
        replayed += await self._deliver_kept(subscription, last + 1, late, queued=await self._queued_ids(queue))
        log.info("group subscribed, with earlier events group=%s events=%d", subscription.group, replayed)
        return replayed

    async def _queued_ids(self, queue: str) -> set[str]:
        """The ids of the events in a group's queue."""
        name = amqp_queue(self._exchange, queue)
        reader = Reader(await self._reading(), self._exchange, name=name, only_look=True)
        return await ids_in(reader, id_of=event_id) - {""}

    async def _deliver_kept(
        self,
        subscription: Subscription,
        first: int,
        last: int,
        old: ReplayFilter = ALL_EVENTS,
        *,
        run: str = "",
        queued: Collection[str] = (),
        progress: Callable[[SweepProgress], None] | None = None,
    ) -> int:
        """Put the events between two offsets that match `old` into the group's queue. Returns their number.

        Skips events with an id in `queued`.
        """
        batch: list[Message] = []
        size = replayed = seen = 0
        connection = await self._reading()

        async def store() -> None:
            nonlocal replayed, size
            replayed += await self._outbox.publish_many(batch)
            batch.clear()
            size = 0
            if progress is not None:
                progress(SweepProgress(total=max(seen, last - first + 1), seen=seen, moved=replayed))

        if last < first:
            return 0
        async with aclosing(self._event_log.read(connection, first, last, old.since)) as events:
            async for found in events:
                seen = found.offset - first + 1
                if not old.matches(subscription, found.entry.routing_key, found.at) or event_id(found.entry) in queued:
                    continue
                batch.append(_as_job(found, subscription, run))
                size += len(found.entry.body)
                if len(batch) >= _BATCH or size >= _BATCH_BYTES:
                    await store()
        await store()
        return replayed


def _as_job(found: Found, subscription: Subscription, run: str) -> Message:
    """The job of an earlier event."""
    message = read(found.entry, subscription.queue)
    event = replace(message, id=str(message.extra[EVENT_ID])) if EVENT_ID in message.extra else message
    return subscription.job(Event(found.entry.routing_key, event), run=run, old=True)
