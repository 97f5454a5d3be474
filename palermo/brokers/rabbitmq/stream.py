"""A stream of small records that anyone may write and follow: what the workers of an exchange know together.

Streams are read over AMQP 0-9-1 on a channel of their own that is closed, never cancelled:
RabbitMQ answers the rejects of a cancelled stream consumer by closing the connection.
The first record only makes the stream non-empty, since the end of an empty one cannot be
told from a slow one.

A stream can be seen before it has a leader, and RabbitMQ 3.10.8 closes the connection of whoever
writes to it or reads it then (541, 506). So whoever makes one holds the exclusive queue
`<stream>.making` until its first record is stored, and everybody else waits for that.
"""

import asyncio
import json
import logging
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from contextlib import aclosing, suppress
from datetime import datetime
from typing import Any, TypeVar

from pika import spec

from palermo.brokers.rabbitmq.link import Channel, Got, Link, delivered
from palermo.brokers.rabbitmq.publisher import Publisher, Unroutable
from palermo.brokers.rabbitmq.translate import RESOURCE_LOCKED
from palermo.brokers.rabbitmq.wire import PERSISTENT
from palermo.errors import BrokerUnavailable, PalermoError

log = logging.getLogger("palermo.rabbitmq")

Record = Mapping[str, Any]

#: What a stream holds: the properties and the body.
Entry = tuple[spec.BasicProperties, bytes]

#: The same with its offset before it.
Placed = tuple[int, spec.BasicProperties, bytes]

T = TypeVar("T")

#: Entries on their way to a follower, and to one that reads whole jobs.
_CREDIT, _READ_CREDIT = 1_000, 200

#: Of the latter so many are acknowledged together.
_ACK_EVERY = 100

#: Seconds between two attempts to read a stream that is down.
_AGAIN = 0.2

#: Seconds between two looks at whether a stream has been made.
_LOOK_EVERY = 0.02

#: Seconds without a record after which a stream counts as empty.
_EMPTY_AFTER = 2.0


class Stream:
    """One stream, as one session sees it."""

    def __init__(
        self,
        name: str,
        publisher: Callable[[], Awaitable[Publisher]],
        *,
        patience: float,
        holds: str,
        arguments: Mapping[str, Any] | None = None,
    ) -> None:
        """`patience` is how many seconds reading waits for a stream that is down: RabbitMQ starts its queues first.

        `holds` says for people what is in it; `arguments` bound it.
        """
        self.name = name
        self._publisher = publisher
        self._patience = patience
        self.holds = holds
        self._arguments = dict(arguments or {})
        #: Whether it is certain to be there, as far as this session knows.
        self.made = False
        #: Whether it was seen whole, so that it can be read.
        self._whole = False
        self._making = asyncio.Lock()

    async def make(self) -> None:
        """Make the stream if it is not there."""
        async with self._making:
            if self.made:
                return
            publisher = await self._publisher()
            link = publisher.channel.link
            while not await self._is_whole(link):
                await self._make_first(link, publisher)
            self.made = True

    async def _make_first(self, link: Link, publisher: Publisher) -> None:
        """Make it, unless someone else is about to."""
        channel = await link.channel()
        try:
            await channel.call(channel.raw.queue_declare, self._mark, exclusive=True)
        except PalermoError:
            if channel.code != RESOURCE_LOCKED:
                raise
            await asyncio.sleep(_LOOK_EVERY)
            return
        try:
            arguments = {"x-queue-type": "stream", **self._arguments}
            await channel.call(channel.raw.queue_declare, self.name, durable=True, arguments=arguments)
            await self._publish(publisher, [record_entry({"version": 1})])
        finally:
            if channel.is_open:
                channel.raw.queue_delete(self._mark, callback=lambda _: None)
            _leave(channel)

    async def _is_whole(self, link: Link) -> bool:
        """Whether it is there; one that is being made is waited for."""
        if not await exists(link, self.name):
            return False
        # The stream before the mark: what is there now without one was made before.
        for _ in range(round(self._patience / _LOOK_EVERY)):
            if not await exists(link, self._mark):
                break
            await asyncio.sleep(_LOOK_EVERY)
        return True

    @property
    def _mark(self) -> str:
        return f"{self.name}.making"

    async def write(self, record: Record) -> None:
        """Add a record, and the stream before if need be; returns once it is stored."""
        await self.append([record_entry(record)])

    async def append(self, entries: Sequence[Entry]) -> None:
        """Add these in order, and the stream before if need be; returns once all are stored."""
        await self.make()
        try:
            await self._publish(await self._publisher(), entries)
        except Unroutable:
            # Deleted since, as whoever cannot read it is told to do.
            log.warning("%s was deleted, and is made anew stream=%s", self.holds, self.name)
            self.made = False
            await self.make()
            await self._publish(await self._publisher(), entries)

    async def follow(self, link: Link, on_record: Callable[[Record], None]) -> "Follower | None":
        """A reader that has caught up and goes on, giving each record to `on_record`. None without a stream.

        It begins at the first record there is, and begins again if the stream goes down meanwhile.

        Raises BrokerUnavailable if the stream is down and stays so.
        """
        return await self._patiently(link, lambda: self._follow(link, on_record))

    async def is_there(self) -> bool:
        """Whether there is such a stream."""
        return self.made or await self._is_whole((await self._publisher()).channel.link)

    async def end(self, link: Link) -> int | None:
        """The offset of the newest entry; None without a stream. Raises the same."""
        found = await self.last(link)
        return None if found is None else found[0]

    async def last(self, link: Link) -> tuple[int, float] | None:
        """The offset of the newest entry, and when it was stored as far as its writer said, else 0; see `end`."""
        return await self._patiently(link, lambda: self._find_last(link))

    async def read(self, link: Link, first: int, last: int) -> AsyncGenerator[Placed, None]:
        """The entries from one offset to another that is there, as far as the stream still has them.

        Memory is bounded: as long as those that came are not taken, few others do.
        Raises BrokerUnavailable, also if none comes for as long as `patience`, and NotFound if there is no stream.
        """
        async with aclosing(self.deliveries(link, first or "first", last)) as entries:
            async for offset, one in entries:
                if offset >= first:
                    yield offset, one.properties, one.body

    async def deliveries(
        self, link: Link, start: int | str | datetime, last: int
    ) -> AsyncGenerator[tuple[int, Got], None]:
        """The same, each as it was delivered, and perhaps some that lie shortly before `start`."""
        channel = await link.channel()
        come: asyncio.Queue[Got | None] = asyncio.Queue()

        def on_entry(_: object, method: Any, properties: spec.BasicProperties, body: bytes) -> None:
            come.put_nowait(delivered(method, properties, body))

        channel.on_close(lambda: come.put_nowait(None))
        channel.raw.add_on_cancel_callback(lambda _: channel.raw.close())
        try:
            await channel.call(channel.raw.basic_qos, prefetch_count=_READ_CREDIT)
            await channel.call(channel.raw.basic_consume, self.name, on_entry, arguments={"x-stream-offset": start})
            while (entry := await self._next(come)) is not None:
                offset = offset_of(entry.properties)
                if offset <= last:
                    yield offset, entry
                if offset >= last:
                    return
                if entry.tag % _ACK_EVERY == 0 and channel.is_open:
                    channel.raw.basic_ack(entry.tag, multiple=True)
            raise channel.error or BrokerUnavailable(f"{self.holds} was deleted while it was being read.")
        finally:
            await channel.close()

    async def _next(self, come: "asyncio.Queue[Got | None]") -> Got | None:
        if not come.empty():
            return come.get_nowait()
        try:
            async with asyncio.timeout(self._patience):
                return await come.get()
        except TimeoutError:
            raise BrokerUnavailable(f"{self.holds} did not answer within {self._patience:g} s.") from None

    async def _patiently(self, link: Link, attempt: Callable[[], Awaitable[T]]) -> T:
        """Try it again as long as the stream is down and there is hope."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + self._patience
        while True:
            try:
                return await attempt()
            except BrokerUnavailable as error:
                if link.error is not None:
                    raise
                if loop.time() > deadline:
                    raise BrokerUnavailable(
                        f"{self.holds} cannot be read: {error} If the stream stays down, delete it"
                        f" (rabbitmqctl delete_queue '{self.name}'): it is made anew when it is needed."
                    ) from error
            await asyncio.sleep(_AGAIN)

    async def _find_last(self, link: Link) -> tuple[int, float] | None:
        if not self._whole:
            self._whole = await self._is_whole(link)
            if not self._whole:
                await _check_access(link, self._mark)
        last = await _last_entry(link, self.name) if self._whole else None
        if last is None:
            self._whole = self.made = False
        return last

    async def _follow(self, link: Link, on_record: Callable[[Record], None]) -> "Follower | None":
        last = await self._find_last(link)
        if last is None:
            return None
        channel = await link.channel()
        follower = Follower(channel, on_record)
        try:
            await follower.start(self.name, last[0])
        except asyncio.CancelledError:
            if channel.is_open:
                channel.raw.close()
            raise
        return follower

    async def _publish(self, publisher: Publisher, entries: Sequence[Entry]) -> None:
        sent = [publisher.send("", self.name, properties, body) for properties, body in entries]
        for ended in await asyncio.gather(*sent, return_exceptions=True):
            if isinstance(ended, BaseException):
                raise ended


class Follower:
    """A reader of a stream, on its own channel."""

    def __init__(self, channel: Channel, on_record: Callable[[Record], None]) -> None:
        self._channel = channel
        self._on_record = on_record
        self._caught_up = asyncio.Event()
        self._end = 0
        channel.on_close(self._caught_up.set)
        # The stream was deleted: there is nothing left to read on this channel.
        channel.raw.add_on_cancel_callback(lambda _: channel.raw.close())

    @property
    def caught_up(self) -> bool:
        """Whether all that was written before it began has been read."""
        return self._caught_up.is_set()

    @property
    def is_open(self) -> bool:
        """Whether it still reads."""
        return self._channel.is_open

    async def start(self, stream: str, end: int) -> None:
        self._end = end
        self._channel.raw.add_on_cancel_callback(self._on_cancelled_by_broker)
        await _read(self._channel, stream, "first", self._on_message)
        await self._caught_up.wait()
        if self._channel.error is not None:
            raise self._channel.error

    def on_close(self, callback: Callable[[], None]) -> None:
        """Call this once when it reads no more, for whatever reason."""
        self._channel.on_close(callback)

    async def close(self) -> None:
        await self._channel.close()

    def _on_cancelled_by_broker(self, _: object) -> None:
        # The stream was deleted, or its node has gone.
        if self._channel.is_open:
            self._channel.raw.close()

    def _on_message(self, _: object, method: Any, properties: spec.BasicProperties, body: bytes) -> None:
        self._channel.raw.basic_ack(method.delivery_tag)
        self._on_record(record(body))
        if offset_of(properties) >= self._end:
            self._caught_up.set()


async def exists(link: Link, queue: str) -> bool:
    """Whether there is such a queue, of whoever it is."""
    channel = await link.channel()
    try:
        await channel.call(channel.raw.queue_declare, queue, passive=True)
    except PalermoError:
        if channel.missing or channel.code == RESOURCE_LOCKED:
            return not channel.missing
        raise
    finally:
        _leave(channel)
    return True


def _leave(channel: Channel) -> None:
    """Close it without waiting for that: whoever opened it may have given up."""
    if channel.is_open:
        channel.raw.close()


async def _check_access(link: Link, queue: str) -> None:
    """Raise BrokerRefused for a user who may not read: seeing that a queue is not there needs no permission."""
    channel = await link.channel()
    try:
        await channel.get(queue)
    except PalermoError:
        if channel.missing or channel.code == RESOURCE_LOCKED:
            return
        raise
    await channel.close()


async def _last_entry(link: Link, stream: str) -> tuple[int, float] | None:
    """The offset and the time of the newest entry; None if there is no stream."""
    channel = await link.channel()
    seen: list[tuple[int, float]] = []
    first = asyncio.Event()
    channel.on_close(first.set)

    def on_record(_: object, method: Any, properties: spec.BasicProperties, body: bytes) -> None:
        seen.append((offset_of(properties), float(properties.timestamp or 0)))
        first.set()

    try:
        await _read(channel, stream, "last", on_record)
        # Its maker may have died before the first record: an empty stream never answers.
        with suppress(TimeoutError):
            async with asyncio.timeout(_EMPTY_AFTER):
                await first.wait()
        if channel.error is not None:
            raise channel.error
        if not seen:
            return None
        # A chunk is handed out whole; what of the last one follows its first record comes before this answer.
        await channel.call(channel.raw.queue_declare, stream, passive=True)
        return max(seen)
    except PalermoError:
        if channel.missing:
            return None
        raise
    finally:
        await channel.close()


async def _read(channel: Channel, stream: str, offset: str, callback: Callable[..., None]) -> None:
    await channel.call(channel.raw.basic_qos, prefetch_count=_CREDIT)
    await channel.call(channel.raw.basic_consume, stream, callback, arguments={"x-stream-offset": offset})


def offset_of(properties: spec.BasicProperties) -> int:
    """Where in its stream an entry is."""
    return int((properties.headers or {}).get("x-stream-offset", 0))


def record_entry(record: Record) -> Entry:
    """A record as it is written."""
    return spec.BasicProperties(delivery_mode=PERSISTENT, content_type="application/json"), json.dumps(record).encode()


def record(body: bytes) -> dict[str, Any]:
    """A record as written; {} for what a later version or a stranger wrote."""
    try:
        found = json.loads(body)
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}
