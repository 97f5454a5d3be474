"""Events that are kept for a while: a stream that the gateway fills, whoever publishes.

With it mandatory publishing never returns an event: the stream takes all. An entry has the exchange it was
published to and its topic as the routing key.
"""

import hashlib
import time
from collections import Counter
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import aclosing
from datetime import UTC, datetime
from typing import Any
from uuid import NAMESPACE_OID, uuid5

from palermo.broker import Session
from palermo.brokers.rabbitmq.link import Got, Link
from palermo.brokers.rabbitmq.publisher import Publisher
from palermo.brokers.rabbitmq.stream import Stream
from palermo.brokers.rabbitmq.sweep import Reader
from palermo.brokers.rabbitmq.wiring import Wiring
from palermo.core.message import EVENT_ID
from palermo.core.topology import amqp_queue, internal
from palermo.core.values import dataclass
from palermo.errors import NotFound

#: How many segments the stream is cut into; it forgets a whole one at a time. Bytes of the smallest and the largest.
_SEGMENTS, _SMALLEST, _LARGEST = 16, 1024**2, 64 * 1024**2

#: Seconds that reading waits for a stream at least, whatever a publish may take: a long read that is given up has to
#: be begun anew.
_PATIENCE = 30.0

#: What a stream adds to the headers.
_OFFSET = "x-stream-offset"

#: Seconds by which the clock of whoever published may be ahead of the broker's, which instants go by.
_SKEW = 60.0


@dataclass(frozen=True, slots=True)
class Found:
    """An event that is kept."""

    entry: Got
    offset: int
    #: Whether it came without an id.
    nameless: bool

    @property
    def at(self) -> float | None:
        """When it was published, in Unix seconds, as far as it says so."""
        headers = self.entry.properties.headers or {}
        for said in (headers.get("queued-at"), headers.get("created-at"), self.entry.properties.timestamp):
            if isinstance(said, int | float) and not isinstance(said, bool):
                return float(said)
        return None


class Kept:
    """The events of one exchange that are kept."""

    def __init__(
        self, session: Session, link: Link, wiring: Wiring, publisher: Callable[[], Awaitable[Publisher]]
    ) -> None:
        self._session = session
        self._link = link
        self._wiring = wiring
        self.wanted = session.keep_events
        self._stream = Stream(
            internal(session.exchange, "events"),
            publisher,
            patience=max(session.timeout, _PATIENCE),
            holds="the events that are kept",
            arguments={
                "x-max-length-bytes": session.events_bytes,
                "x-max-age": f"{max(1, round(session.events_age))}s",
                "x-stream-max-segment-size-bytes": max(_SMALLEST, min(_LARGEST, session.events_bytes // _SEGMENTS)),
            },
        )

    async def bind(self) -> None:
        """Have the gateway fill the stream from now on; or not, where events are not to be kept."""
        if self.wanted:
            await self._stream.make()
            channel = await self._link.channel()
            try:
                await channel.call(channel.raw.queue_bind, self._stream.name, self._wiring.gateway)
            except NotFound:
                self._stream.made = False  # deleted since this session saw it
                await self._stream.make()
                channel = await self._link.channel()
                await channel.call(channel.raw.queue_bind, self._stream.name, self._wiring.gateway)
        else:
            channel = await self._link.channel()
            await channel.call(channel.raw.queue_unbind, self._stream.name, self._wiring.gateway)
        await channel.close()

    async def count(self, link: Link) -> int:
        """How many there are, marks included: places in the stream, since what it says of its length is late."""
        end = await self.end(link)
        if end < 1:
            return 0
        async with aclosing(self._stream.deliveries(link, "first", end)) as entries:
            async for first, _ in entries:
                # The very first only makes it not empty.
                return end - max(1, first) + 1
        return 0

    async def end(self, link: Link) -> int:
        """The offset of the newest event; below 0 if there is nothing."""
        end = await self._stream.end(link)
        return -1 if end is None else end

    async def mark(self, link: Link) -> int:
        """Write something, and give its offset or a later one: what was routed before this was called lies before it.

        A publisher's channel looks up the bindings and sends to the stream in one step. So what it sent by bindings
        that have been changed since has arrived before a message that goes out now; but `end` may not show it yet.
        """
        await self._stream.write({"mark": time.time()})
        return await self.end(link)

    async def read(self, link: Link, first: int, last: int, since: float | None = None) -> AsyncGenerator[Found, None]:
        """The events from one offset to another, without those that are older than they are kept.

        `since` is where to begin, about, instead of at the first; something must have been stored after it.
        One without an id has one from here on, which is the same whenever it is read. See Stream.deliveries.
        """
        start: int | str | datetime = first or "first"
        if since is not None:
            start = datetime.fromtimestamp(max(0.0, since - _SKEW), UTC).replace(tzinfo=None)
        oldest = time.time() - self._session.events_age
        async with aclosing(self._stream.deliveries(link, start, last)) as entries:
            async for offset, entry in entries:
                # What was written to the stream itself is a mark, or only makes it not empty.
                if offset >= first and entry.exchange:
                    found = self._found(offset, entry)
                    if found.at is None or found.at >= oldest:
                        yield found

    def _found(self, offset: int, entry: Got) -> Found:
        headers: dict[str, Any] = dict(entry.properties.headers or {})
        headers.pop(_OFFSET, None)
        nameless = not entry.properties.message_id and not isinstance(headers.get("id"), str)
        if nameless:
            headers["id"] = str(uuid5(NAMESPACE_OID, f"{self._stream.name}/{offset}"))
        entry.properties.headers = headers
        return Found(entry, offset, nameless)


class Lying:
    """Which events lie in a group's queue already, so that none of them is put there twice."""

    def __init__(self) -> None:
        self._there: Counter[str] = Counter()

    @classmethod
    async def within(cls, link: Link, exchange: str, queue: str) -> "Lying":
        """What a look into the queue finds, by whichever way it came."""
        lying = cls()
        reader = Reader(link, exchange, name=amqp_queue(exchange, queue))
        try:
            async for _, page in reader.pages(await reader.count(), only_look=True):
                lying._there.update(_key(one) for one in page)
        finally:
            await reader.close()
        return lying

    def has(self, found: Found) -> bool:
        """Whether this event is among them; a second time only if it lies there twice."""
        for key in (_key(found.entry), *((_digest(found.entry),) if found.nameless else ())):
            if self._there[key]:
                self._there[key] -= 1
                return True
        return False


def _key(entry: Got) -> str:
    headers = entry.properties.headers or {}
    known = headers.get(EVENT_ID) or entry.properties.message_id or headers.get("id")
    return str(known) if known else _digest(entry)


def _digest(entry: Got) -> str:
    """What tells an event without an id from others."""
    return hashlib.sha256(entry.routing_key.encode() + b"\0" + entry.body).hexdigest()
