"""A stream of small records that any session may write and follow: the shared knowledge of an exchange's workers.

A stream is read over AMQP 0-9-1 on a channel of its own, which is closed and whose consumer is never cancelled:
RabbitMQ answers the rejects of a cancelled stream consumer by closing the connection.
The first record only makes the stream non-empty, since a reader cannot tell an empty stream from a slow one.

A stream exists before it has a leader, and RabbitMQ 3.10.8 closes every connection that
writes to it or reads it then (541, 506). So the session that makes a stream holds the exclusive queue
`<stream>.making` until the first record is stored, and all others wait for that.
"""

import asyncio
import json
import logging
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from contextlib import aclosing, suppress
from datetime import datetime
from typing import Any, TypeVar

from pika import spec

from palermo.brokers.rabbitmq.amqp.connection import Channel, Connection, Got, delivered
from palermo.brokers.rabbitmq.amqp.destination import Destination
from palermo.brokers.rabbitmq.amqp.errors import RESOURCE_LOCKED
from palermo.brokers.rabbitmq.amqp.json_text import read_json
from palermo.brokers.rabbitmq.amqp.properties import PERSISTENT
from palermo.brokers.rabbitmq.amqp.publisher import Publisher
from palermo.errors import BrokerUnavailable, PalermoError

log = logging.getLogger("palermo.rabbitmq")

Record = Mapping[str, Any]

#: One entry of a stream: its properties and its body.
Entry = tuple[spec.BasicProperties, bytes]

#: An entry with its offset before it.
Placed = tuple[int, spec.BasicProperties, bytes]

T = TypeVar("T")

#: The prefetch of a follower, and of a reader of whole jobs.
_CREDIT, _READ_CREDIT = 1_000, 200

#: A reader of whole jobs acknowledges this many together.
_ACK_EVERY = 100

#: Seconds between two attempts to read a stream that is down.
_AGAIN = 0.2

#: Seconds between two checks whether a stream has been made.
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

        `holds` says what is in it, for logs and errors; `arguments` bound it.
        """
        self.name = name
        self._publisher = publisher
        self._patience = patience
        self.holds = holds
        self._arguments = dict(arguments or {})
        #: Whether the stream exists, as far as this session knows.
        self.made = False
        #: Whether the stream was seen complete, with its first record, so that it can be read.
        self._whole = False
        self._making = asyncio.Lock()

    async def make(self) -> None:
        """Make the stream if it does not exist."""
        async with self._making:
            if self.made:
                return
            publisher = await self._publisher()
            connection = publisher.channel.connection
            while not await self._is_whole(connection):
                await self._make_first(connection, publisher)
            self.made = True

    async def _make_first(self, connection: Connection, publisher: Publisher) -> None:
        """Make the stream, unless another session is making it."""
        channel = await connection.channel()
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

    async def _is_whole(self, connection: Connection) -> bool:
        """Whether the stream exists; waits for one that is being made."""
        if not (await connection.probe(self.name)).exists:
            return False
        # The stream is checked before the mark: a stream that exists when the mark does not is complete.
        for _ in range(round(self._patience / _LOOK_EVERY)):
            if not (await connection.probe(self._mark)).exists:
                break
            await asyncio.sleep(_LOOK_EVERY)
        return True

    @property
    def _mark(self) -> str:
        return f"{self.name}.making"

    async def write(self, record: Record) -> None:
        """Add a record, and make the stream first if need be; returns once the record is stored."""
        await self.append([record_entry(record)])

    async def append(self, entries: Sequence[Entry]) -> None:
        """Add these in order, and make the stream first if need be; returns once all are stored."""

        async def send() -> None:
            await self._publish(await self._publisher(), entries)

        await Destination(self.make, self._forget).publish(send)

    def _forget(self) -> None:
        # The error for a stream that cannot be read tells users to delete it.
        log.warning("%s was deleted, and is made anew stream=%s", self.holds, self.name)
        self.made = False

    async def follow(self, connection: Connection, on_record: Callable[[Record], None]) -> "Follower | None":
        """A reader that has caught up and goes on, and gives each record to `on_record`. None without a stream.

        It starts at the oldest record, and starts again if the stream goes down before it has caught up.

        Raises BrokerUnavailable if the stream is down and stays so.
        """
        return await self._patiently(connection, lambda: self._follow(connection, on_record))

    async def is_there(self) -> bool:
        """Whether the stream exists."""
        return self.made or await self._is_whole((await self._publisher()).channel.connection)

    async def end(self, connection: Connection) -> int | None:
        """The offset of the newest entry; None without a stream. Raises what `follow` raises."""
        found = await self.last(connection)
        return None if found is None else found[0]

    async def last(self, connection: Connection) -> tuple[int, float] | None:
        """The offset of the newest entry, and the time that its writer gave it, else 0; see `end`."""
        return await self._patiently(connection, lambda: self._find_last(connection))

    async def read(self, connection: Connection, first: int, last: int) -> AsyncGenerator[Placed, None]:
        """The entries from one offset to another that exists, as far as the stream still has them.

        Memory is bounded: only few more entries come while the caller does not take those that have come.
        Raises BrokerUnavailable, also if none comes for as long as `patience`, and NotFound if there is no stream.
        """
        async with aclosing(self.deliveries(connection, first or "first", last)) as entries:
            async for offset, one in entries:
                if offset >= first:
                    yield offset, one.properties, one.body

    async def deliveries(
        self, connection: Connection, start: int | str | datetime, last: int
    ) -> AsyncGenerator[tuple[int, Got], None]:
        """The entries as they were delivered, perhaps with some that lie shortly before `start`; else as `read`."""
        channel = await connection.channel()
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

    async def _patiently(self, connection: Connection, attempt: Callable[[], Awaitable[T]]) -> T:
        """Repeat the attempt while the stream is down, for `patience` seconds."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + self._patience
        while True:
            try:
                return await attempt()
            except BrokerUnavailable as error:
                if connection.error is not None:
                    raise
                if loop.time() > deadline:
                    raise BrokerUnavailable(
                        f"{self.holds} cannot be read: {error} If the stream stays down, delete it"
                        f" (rabbitmqctl delete_queue '{self.name}'): it is made anew when it is needed."
                    ) from error
            await asyncio.sleep(_AGAIN)

    async def _find_last(self, connection: Connection) -> tuple[int, float] | None:
        if not self._whole:
            self._whole = await self._is_whole(connection)
            if not self._whole:
                await _check_access(connection, self._mark)
        last = await _last_entry(connection, self.name) if self._whole else None
        if last is None:
            self._whole = self.made = False
        return last

    async def _follow(self, connection: Connection, on_record: Callable[[Record], None]) -> "Follower | None":
        last = await self._find_last(connection)
        if last is None:
            return None
        channel = await connection.channel()
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
    """A reader of a stream that goes on as records come, on a channel of its own."""

    def __init__(self, channel: Channel, on_record: Callable[[Record], None]) -> None:
        self._channel = channel
        self._on_record = on_record
        self._caught_up = asyncio.Event()
        self._end = 0
        channel.on_close(self._caught_up.set)
        # The stream was deleted: nothing is left to read on this channel.
        channel.raw.add_on_cancel_callback(lambda _: channel.raw.close())

    @property
    def caught_up(self) -> bool:
        """Whether it has read all that was written before it started."""
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
        """Call this once when the reader has ended, for whatever reason."""
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


def _leave(channel: Channel) -> None:
    """Close the channel without waiting for the answer: the caller may have given up."""
    if channel.is_open:
        channel.raw.close()


async def _check_access(connection: Connection, queue: str) -> None:
    """Raise BrokerRefused for a user who may not read: seeing that a queue does not exist needs no permission."""
    channel = await connection.channel()
    try:
        await channel.get(queue)
    except PalermoError:
        if channel.missing or channel.code == RESOURCE_LOCKED:
            return
        raise
    await channel.close()


async def _last_entry(connection: Connection, stream: str) -> tuple[int, float] | None:
    """The offset and the time of the newest entry; None if there is no stream."""
    channel = await connection.channel()
    seen: list[tuple[int, float]] = []
    first = asyncio.Event()
    channel.on_close(first.set)

    def on_record(_: object, method: Any, properties: spec.BasicProperties, body: bytes) -> None:
        seen.append((offset_of(properties), float(properties.timestamp or 0)))
        first.set()

    try:
        await _read(channel, stream, "last", on_record)
        # The session that made it may have died before the first record, and an empty stream never answers.
        with suppress(TimeoutError):
            async with asyncio.timeout(_EMPTY_AFTER):
                await first.wait()
        if channel.error is not None:
            raise channel.error
        if not seen:
            return None
        # RabbitMQ delivers a chunk as a whole: all records of the last chunk come before this answer.
        if not (await channel.probe(stream)).exists:
            return None
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
    """The offset of an entry in its stream."""
    return int((properties.headers or {}).get("x-stream-offset", 0))


def record_entry(record: Record) -> Entry:
    """The entry that stores a record."""
    return spec.BasicProperties(delivery_mode=PERSISTENT, content_type="application/json"), json.dumps(record).encode()


def record(body: bytes) -> dict[str, Any]:
    """The record in an entry's body; {} for one that a later version or another program wrote."""
    try:
        found = read_json(body)
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}
