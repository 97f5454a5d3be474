"""Where jobs wait that are due later: a durable queue for each stretch of time in use, and the list of them.

A stretch's queue is declared by whoever first has a job for it, who then writes its name to the
queue `~later`, and only then publishes. Who leads (clock.py) reads that queue and holds what it read, so that
whoever leads next reads it again; from time to time it replaces all records by one.
"""

import asyncio
import json
from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import Any, Generic, Protocol, TypeVar

from pika import spec

from palermo.brokers.rabbitmq.link import Channel, Link
from palermo.brokers.rabbitmq.publisher import Publisher, Unroutable
from palermo.brokers.rabbitmq.wire import PERSISTENT
from palermo.core.delay import Stretch
from palermo.core.topology import internal
from palermo.errors import PalermoError

N = TypeVar("N", str, tuple[str, str])

#: Hundredths of a second that are waited for a leader that has gone to let go of all.
_PATIENCE = 500

#: Stretches whose queues a session remembers to have made.
_REMEMBERED = 10_000

#: Records that are replaced by one when there are so many, and seconds after which they are in any case: RabbitMQ takes
#: back what is held for half an hour.
_MANY = 50
_OLD = 600.0


def queue_of(exchange: str, stretch: Stretch) -> str:
    """The AMQP queue of a stretch."""
    return internal(exchange, f"later.{stretch}")


def lease(exchange: str) -> str:
    """The queue that whoever leads holds, see leader.py; what the clock is asked goes there."""
    return internal(exchange, "leader")


class Later:
    """The stretches' queues of one exchange, as one link sees them."""

    def __init__(
        self,
        exchange: str,
        link: Link,
        publisher: Callable[[], Awaitable[Publisher]],
        arguments: Mapping[str, Any],
    ) -> None:
        """`arguments` are those that the queues are declared with."""
        self._exchange = exchange
        self._link = link
        self._publisher = publisher
        self._arguments = dict(arguments)
        self._made: set[str] = set()
        self._listed = False
        self._lock = asyncio.Lock()

    def has(self, stretch: Stretch) -> bool:
        """Whether its queue has been made on this link."""
        return str(stretch) in self._made

    async def ensure(self, stretch: Stretch) -> None:
        """See that its queue is there, and known to the clock."""
        async with self._lock:
            if str(stretch) in self._made:
                return
            if len(self._made) > _REMEMBERED:
                self._made.clear()
            await self.make_list()
            await self._declare(queue_of(self._exchange, stretch))
            # Behind the declaration, or its deletion by a clock that found it empty might be the later word; and before
            # the first job, or nobody would look for that.
            try:
                await self.write({"made": str(stretch)})
            except Unroutable:
                self._listed = False
                await self.make_list()
                await self.write({"made": str(stretch)})
            self._made.add(str(stretch))

    def forget(self, stretch: Stretch) -> None:
        """Its queue has been deleted: make it again next time."""
        self._made.discard(str(stretch))

    async def make_list(self, *, again: bool = False) -> None:
        """See that the list is there; `again` if it may have been deleted."""
        if not self._listed or again:
            await self._declare(internal(self._exchange, "later"))
            self._listed = True

    async def write(self, record: Mapping[str, Any]) -> None:
        """Add a record to the list; returns once it is stored."""
        properties = spec.BasicProperties(delivery_mode=PERSISTENT, content_type="application/json")
        publisher = await self._publisher()
        await publisher.send("", internal(self._exchange, "later"), properties, json.dumps(record).encode())

    async def counts(self, stretches: Iterable[Stretch]) -> dict[Stretch, int]:
        """How many jobs wait in each of these; those that are not there are left out."""
        found: dict[Stretch, int] = {}
        channel: Channel | None = None
        for one in stretches:
            if channel is None or not channel.is_open:
                channel = await self._link.channel()
            try:
                frame = await channel.call(channel.raw.queue_declare, queue_of(self._exchange, one), passive=True)
            except PalermoError:
                if not channel.missing:
                    raise
                continue
            if frame.method.consumer_count:
                # Who led before has just gone, and what it held is about to come back.
                frame = await settled(channel, queue_of(self._exchange, one), readers=0)
            found[one] = int(frame.method.message_count)
        if channel is not None:
            await channel.close()
        return found

    async def delete(self, stretch: Stretch) -> bool:
        """Delete its queue unless something is in it, or someone reads it; whether that was done."""
        self._made.discard(str(stretch))
        channel = await self._link.channel()
        try:
            await channel.call(
                channel.raw.queue_delete, queue_of(self._exchange, stretch), if_empty=True, if_unused=True
            )
        except PalermoError:
            if self._link.error is not None:
                raise
            return channel.missing
        await channel.close()
        return True

    async def _declare(self, name: str) -> None:
        """Make the queue unless it is there, of whatever type."""
        channel = await self._link.channel()
        try:
            await channel.call(channel.raw.queue_declare, name, passive=True)
        except PalermoError:
            if not channel.missing:
                raise
            channel = await self._link.channel()
            await channel.call(channel.raw.queue_declare, name, durable=True, arguments=self._arguments)
        await channel.close()


async def settled(channel: Channel, queue: str, *, readers: int) -> Any:
    """Wait until a queue has so many readers, and if that is one, until it has got all; what the queue says then."""
    for _ in range(_PATIENCE):
        # Asked twice: the second answer comes after all that the first saw being delivered.
        await channel.call(channel.raw.queue_declare, queue, passive=True)
        frame = await channel.call(channel.raw.queue_declare, queue, passive=True)
        if frame.method.consumer_count <= readers and not (readers and frame.method.message_count):
            break
        await asyncio.sleep(0.01)
    return frame


class Source(Protocol):
    """A list that a roll reads."""

    async def make_list(self, *, again: bool = False) -> None:
        """See that the list is there; `again` if it may have been deleted."""

    async def write(self, record: Mapping[str, Any]) -> None:
        """Add a record; returns once it is stored."""


class Roll(Generic[N]):
    """A list of what may hold jobs, as whoever leads reads it: the stretches of time, or the tenants of queues."""

    def __init__(
        self,
        queue: str,
        link: Link,
        source: Source,
        *,
        parse: Callable[[Any], N],
        plain: Callable[[N], object],
        news: Callable[[set[N]], None],
    ) -> None:
        """`news` is called with the names in each record that comes; `parse` and `plain` say how JSON has one."""
        self.names: set[N] = set()
        self._queue = queue
        self._link = link
        self._source = source
        self._parse: Callable[[Any], N] = parse
        self._plain: Callable[[N], object] = plain
        self._news: Callable[[set[N]], None] = news
        self._channel: Channel | None = None
        self._held: list[int] = []
        self._since = 0.0

    async def read(self) -> None:
        """Know all that was written before this call; what is written later comes by itself. A second call reads on."""
        if self._channel is not None and self._channel.is_open:
            return
        await self._source.make_list(again=True)
        self._held, self._since = [], asyncio.get_running_loop().time()
        channel = self._channel = await self._link.channel()
        channel.raw.add_on_cancel_callback(lambda _: channel.raw.close())
        try:
            await channel.call(channel.raw.basic_qos, prefetch_count=65_535)
            await channel.call(channel.raw.basic_consume, self._queue, self._on_record)
            # Until the broker has noticed the end of who led before, what that one held is not there.
            await settled(channel, self._queue, readers=1)
        except PalermoError:
            if not channel.missing:
                raise

    async def tidy(self) -> None:
        """Replace the records by one, if they are many or old."""
        channel, loop = self._channel, asyncio.get_running_loop()
        if channel is None or not channel.is_open or not self._held:
            return
        if len(self._held) < max(_MANY, len(self.names)) and loop.time() - self._since < _OLD:
            return
        held, self._held, self._since = self._held, [], loop.time()
        await self._source.write({"all": [self._plain(name) for name in sorted(self.names)]})
        for tag in held:
            channel.raw.basic_ack(tag)

    def _on_record(self, raw: Any, method: Any, properties: object, body: bytes) -> None:
        try:
            record = json.loads(body)
            names = {self._parse(name) for name in (record.get("all") or [record["made"]])}
        except (ValueError, KeyError, TypeError, AttributeError):
            names = set[N]()  # a later version's
        self._held.append(method.delivery_tag)
        self.names |= names
        self._news(names)
