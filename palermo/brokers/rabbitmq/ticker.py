"""Recurring jobs on RabbitMQ: who leads holds the state of each, and fires it at its ticks.

The durable queue `~recurring` has one message for every entry. Who leads consumes them all and acknowledges none.
To fire, or to change an entry, it publishes the jobs and the entry's next state and acknowledges the last one,
all in one transaction of one channel: whenever it dies, all of that was done or nothing. What it held
goes back to the queue, to whoever leads next.

That holds for classic queues. A quorum queue may drop what a transaction has published to it when the publisher dies in
the same moment; so where one takes part, the jobs are published and confirmed first, then the state, and
only then the last state is acknowledged: a leader that dies in between leaves a tick that fires twice, and
none that is lost. A broker that is killed in the middle of a transaction may have stored any part of it. Of two
states of one entry the newer counts.
"""

import asyncio
import json
import logging
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from typing import Any

from pika import spec

from palermo.brokers.rabbitmq.declarer import Declarer
from palermo.brokers.rabbitmq.later import settled
from palermo.brokers.rabbitmq.link import Channel, Link
from palermo.brokers.rabbitmq.publisher import Publisher, Unroutable
from palermo.brokers.rabbitmq.seats import Seat, Seats, seat_queue
from palermo.brokers.rabbitmq.translate import PRECONDITION_FAILED
from palermo.brokers.rabbitmq.wire import PERSISTENT, to_message, to_properties
from palermo.core.message import Message
from palermo.core.topology import CLASSIC, internal
from palermo.core.values import dataclass
from palermo.entries import Change, Entry
from palermo.errors import BrokerUnavailable, PalermoError
from palermo.timetable import Tell

log = logging.getLogger("palermo.rabbitmq")

#: The wall clock may jump: it is looked at this often, in seconds, however far the next tick is.
_LOOK_EVERY = 0.5

#: Seconds until what could not be fired is tried again.
_AGAIN = 1.0

#: Jobs after which a transaction takes no other entry.
_AT_ONCE = 200

#: Seconds after which a state is written anew: RabbitMQ takes back what is held for half an hour.
_OLD = 600.0

#: Seconds that a state may be under way from us by the broker to us.
_PATIENCE = 10.0


@dataclass(slots=True)
class _Held:
    """The state of one entry, unacknowledged."""

    entry: Entry
    tag: int
    #: When it fires next; infinite while it is disabled.
    due: float
    #: When it came, on the loop's clock.
    since: float


class Ticker:
    """The recurring jobs of one exchange, in the hands of the one who leads."""

    def __init__(
        self,
        exchange: str,
        link: Link,
        publisher: Publisher,
        declarer: Declarer,
        seats: Seats,
        arguments: Mapping[str, Any],
        *,
        now: Callable[[], float],
        fired: Tell,
    ) -> None:
        """`arguments` are those that the queue of states is declared with; `fired` is told of what was published."""
        self._exchange = exchange
        self._queue = internal(exchange, "recurring")
        self._link = link
        self._publisher = publisher
        self._declarer = declarer
        self._seats = seats
        self._arguments = dict(arguments)
        #: Whether the queue of states is a classic one, for which transactions hold.
        self._classic = False
        self._now = now
        self._fired = fired
        self._loop = asyncio.get_running_loop()
        #: Held by whoever looks at the states, or changes them.
        self._turn = asyncio.Lock()
        self._news = asyncio.Event()
        self._channel: Channel | None = None
        self._held: dict[str, _Held] = {}
        #: States that are under way to us, by the name of their entry.
        self._coming: dict[str, tuple[int, asyncio.Future[None]]] = {}
        #: Tags of states that are older than what is held.
        self._outdated: list[int] = []
        self._returned: list[Message] = []

    async def run(self) -> None:
        """Fire what is due until the link is lost, which is raised, or the call is cancelled."""
        while True:
            self._news.clear()
            try:
                async with self._turn:
                    wait = await self._fire(await self._open())
            except PalermoError as error:
                if self._link.error is not None:
                    raise
                log.warning("recurring jobs cannot be fired now error=%r", str(error))
                wait = _AGAIN
            with suppress(TimeoutError):
                async with asyncio.timeout(wait):
                    await self._news.wait()

    async def entries(self) -> list[Entry]:
        """All entries, by name."""
        async with self._turn:
            await self._open()
            return [self._held[name].entry for name in sorted(self._held)]

    async def change(self, change: Change) -> None:
        """Do this to an entry. Raises NotFound."""
        async with self._turn:
            channel = await self._open()
            held = self._held.get(change.name)
            old = None if held is None else held.entry
            entry, jobs = change.made_to(old, self._now())
            if entry is not old:
                await self._commit(channel, jobs, [(held, entry)])
            self._news.set()

    # -- firing

    async def _fire(self, channel: Channel) -> float:
        """Fire what is due; seconds until the next look."""
        while True:
            now, jobs, changes = self._now(), list[Message](), list[tuple[_Held | None, Entry | None]]()
            for held in sorted(self._held.values(), key=lambda one: one.due):
                due, old = held.due <= now, self._loop.time() - held.since > _OLD
                if len(jobs) >= _AT_ONCE or not (due or old):
                    continue
                fired, entry = held.entry.fired(now) if due else ([], held.entry.renewed())
                if await self._ready(held, fired):
                    jobs += fired
                    changes.append((held, entry))
            if not changes and not self._outdated:
                break
            await self._commit(channel, jobs, changes)
            self._fired(jobs)
        due_next = min((held.due for held in self._held.values()), default=math.inf)
        return min(_LOOK_EVERY, max(0.0, due_next - self._now()))

    async def _ready(self, held: _Held, jobs: Iterable[Message]) -> bool:
        """Whether the queues of these jobs are there; if they cannot be made, the entry is looked at again later."""
        try:
            for job in jobs:
                await self._declarer.ensure(job.queue, priority=job.priority)
                if (seat := Seat.of(job)) is not None:
                    await self._seats.ensure(seat, priority=job.priority)
        except PalermoError as error:
            if self._link.error is not None:
                raise
            log.warning("a recurring job cannot be fired name=%s error=%r", held.entry.name, str(error))
            held.due = self._now() + _AGAIN
            return False
        return True

    async def _commit(
        self, channel: Channel, jobs: Sequence[Message], changes: Iterable[tuple[_Held | None, Entry | None]]
    ) -> None:
        """Publish these jobs and the new states, and acknowledge the old ones, all or nothing: see the first lines."""
        raw, coming = channel.raw, list[asyncio.Future[None]]()
        self._returned = []
        kinds = {await self._declarer.ensure(job.queue, priority=job.priority) for job in jobs}
        atomic = self._classic and kinds <= {CLASSIC}
        try:
            if not atomic:
                await self._publish(jobs)
                publisher = await self._open_publisher()
            for job in jobs if atomic else ():
                raw.basic_publish(*self._place(job), job.body, to_properties(job), mandatory=True)
            old, new = list[_Held](), list[bytes]()
            for held, entry in changes:
                if held is not None:
                    del self._held[held.entry.name]
                    old.append(held)
                if entry is not None:
                    new.append(json.dumps(entry.to_plain()).encode())
                    arrival: asyncio.Future[None] = self._loop.create_future()
                    self._coming[entry.name] = (entry.version, arrival)
                    coming.append(arrival)
            if atomic:
                for state in new:
                    raw.basic_publish("", self._queue, state, _STATE)
            else:
                await asyncio.gather(*(publisher.send("", self._queue, _STATE, state) for state in new))
            for tag in [*(held.tag for held in old), *self._outdated]:
                raw.basic_ack(tag)
            self._outdated = []
            await channel.call(raw.tx_commit)
            async with asyncio.timeout(_PATIENCE):
                await asyncio.gather(*coming)
        except BaseException as error:
            # What was done is read from the queue again.
            self._let_go(channel)
            if isinstance(error, TimeoutError):
                raise BrokerUnavailable("the queue of recurring jobs does not hand out what was put in.") from None
            raise
        finally:
            self._coming.clear()
        # Their queues were deleted by somebody, and they are out of the transaction by now.
        returned, self._returned = self._returned, []
        await self._publish(returned, again=True)

    async def _publish(self, jobs: Iterable[Message], *, again: bool = False) -> None:
        """Publish these one by one, each confirmed; `again` when their queues are not there."""
        for job in jobs:
            try:
                if again:
                    raise Unroutable(job.queue)
                await self._send(job)
            except Unroutable:
                self._declarer.forget(job.queue)
                await self._declarer.ensure(job.queue, priority=job.priority)
                if (seat := Seat.of(job)) is not None:
                    self._seats.forget(seat)
                    await self._seats.ensure(seat, priority=job.priority)
                await self._send(job)

    def _place(self, job: Message) -> tuple[str, str]:
        """The exchange and the routing key that lead to where it waits."""
        seat = Seat.of(job)
        return (self._exchange, job.queue) if seat is None else ("", seat_queue(self._exchange, seat))

    async def _send(self, job: Message) -> None:
        publisher = await self._open_publisher()
        await publisher.send(*self._place(job), to_properties(job), job.body)

    async def _open_publisher(self) -> Publisher:
        if not self._publisher.is_open:
            self._publisher = await Publisher.open(self._link)
        return self._publisher

    # -- states

    async def _open(self) -> Channel:
        """The channel on which all states are held."""
        if self._channel is not None and self._channel.is_open:
            return self._channel
        await self._declare()
        self._held.clear()
        self._outdated = []
        channel = await self._link.channel()
        raw = channel.raw
        raw.add_on_cancel_callback(lambda _: raw.close())
        raw.add_on_return_callback(self._on_return)
        await channel.call(raw.tx_select)
        await channel.call(raw.basic_qos, prefetch_count=65_535)
        await channel.call(raw.basic_consume, self._queue, self._on_state)
        # Until the broker has noticed the end of who led before, what that one held is not there.
        await settled(channel, self._queue, readers=1)
        self._channel = channel
        return channel

    def _let_go(self, channel: Channel) -> None:
        self._channel = None
        if channel.is_open:
            channel.raw.close()

    async def _declare(self) -> None:
        channel = await self._link.channel()
        try:
            await channel.call(channel.raw.queue_declare, self._queue, durable=True, arguments=self._arguments)
            self._classic = self._arguments.get("x-queue-type") == CLASSIC
        except PalermoError:
            if channel.code != PRECONDITION_FAILED:
                raise
            # It is there already, of another type.
            self._classic = False
        else:
            await channel.close()

    def _on_state(self, raw: Any, method: Any, properties: object, body: bytes) -> None:
        try:
            entry = Entry.from_plain(json.loads(body))
            due = entry.next
        except (ValueError, KeyError, TypeError, AttributeError, PalermoError) as error:
            # A later version's, or of a time zone that this machine has not: held, as it is, for one who knows.
            log.warning("the state of a recurring job cannot be read error=%r state=%.200r", str(error), body)
            return
        held = self._held.get(entry.name)
        if held is not None and held.entry.version >= entry.version:
            self._outdated.append(method.delivery_tag)
        else:
            if held is not None:
                self._outdated.append(held.tag)
            self._held[entry.name] = _Held(
                entry, method.delivery_tag, math.inf if due is None else due, self._loop.time()
            )
        version, arrival = self._coming.get(entry.name, (math.inf, None))
        if arrival is not None and entry.version >= version and not arrival.done():
            arrival.set_result(None)

    def _on_return(self, _: object, method: Any, properties: spec.BasicProperties, body: bytes) -> None:
        self._returned.append(to_message(properties, body, taken_from=None))


_STATE = spec.BasicProperties(delivery_mode=PERSISTENT, content_type="application/json")
