"""A stream of small records that any session may write and follow.

A stream is read over AMQP 0-9-1 on a channel of its own. To stop, the channel is closed and its consumer never
cancelled: RabbitMQ closes the connection when a cancelled stream consumer rejects a message. The first record only
makes the stream non-empty, since a reader can't distinguish an empty stream from a slow one.

A stream exists before it has a leader. If a session uses it then, RabbitMQ 3.10.8 closes the session's connection (541,
506). So the session that creates a stream holds a lock until the first record is stored, and all others wait. A
cancelled task finishes the creation first, because RabbitMQ would continue it, and the lock must not be free before
there is a leader.

If RabbitMQ is killed within a second after it created its very first stream, it never opens that stream again (3.10 to
4.3). It answers "home node is down" (up to 4.2, where it can't delete the stream either), or closes the connection of
each session that uses it (4.3: 541, 506). So a session that finds a stream down for some seconds creates another stream
with the next name, `<stream>.2`. If the new stream works while the first one is still down, the first one is broken and
its contents are lost, and all sessions use the new one.
"""

import asyncio
import logging
import math
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from datetime import datetime
from typing import Any, TypeVar

from pika import spec

from palermo.brokers.rabbitmq.amqp import versions
from palermo.brokers.rabbitmq.amqp.connection import CALL_TIMEOUT, Channel, Connection
from palermo.brokers.rabbitmq.amqp.messages import PERSISTENT, Got, write_record
from palermo.brokers.rabbitmq.amqp.mutex import Mutex
from palermo.brokers.rabbitmq.amqp.publisher import Destination, Publisher
from palermo.brokers.rabbitmq.amqp.replies import NotOnThisNode
from palermo.brokers.rabbitmq.seconds import ANSWERED_WITHIN, LOOK_EVERY, RETRY_EVERY, SOON
from palermo.contract.tasks import together, uninterrupted, wait_for_any
from palermo.errors import BrokerUnavailable, NotFound, PalermoError

log = logging.getLogger("palermo.rabbitmq")

Record = Mapping[str, Any]

#: The body of the first entry of each stream, which has no meaning.
OPENING = write_record({})

#: One entry of a stream: its properties and its body.
Entry = tuple[spec.BasicProperties, bytes]

T = TypeVar("T")

#: Seconds within which a broken stream is replaced.
REPLACED_WITHIN = 15.0

#: The prefetch of a follower, and of a reader of whole jobs.
_CREDIT, _READ_CREDIT = 1_000, 200

#: Number of entries that a reader of whole jobs acknowledges at a time.
_ACK_EVERY = 100

#: Seconds without a record after which a stream is considered empty.
_EMPTY_AFTER = 2.0

#: Seconds that a stream must be down before another one is created, since RabbitMQ opens its queues first when it
#: starts.
_DOWN_FOR = 1.5


class Stream:
    """One stream, for one session."""

    def __init__(
        self,
        name: str,
        publisher: Callable[[], Awaitable[Publisher]],
        *,
        patience: float,
        holds: str,
        arguments: Mapping[str, Any] | None = None,
        grace: float = 5.0,
    ) -> None:
        """`patience` is the maximum time in seconds that reading waits for a stream that is down.

        `holds` describes the contents, for logs and errors. `arguments` limit the stream's size and age. `grace` is the
        time in seconds for which the stream may be down after RabbitMQ has created another one in its place.
        """
        #: The name of the stream in use, which changes if the first one is broken.
        self.name = self._first_name = name
        self._publisher = publisher
        self._patience = patience
        self.holds = holds
        self._arguments = dict(arguments or {})
        self._grace = grace
        #: Creates the initial records of a new stream.
        self.refill: Callable[[], Iterable[Record]] = tuple
        #: Whether this session has found the stream to exist and to be usable.
        self.made = False
        #: When it was first and last found down, and the error.
        self._down: tuple[float, float, BrokerUnavailable] | None = None
        self._making = asyncio.Lock()
        #: Creates the stream if it is missing.
        self.destination = Destination(self.make, self._forget)
        prefix, _, suffix = name.rpartition("~")
        #: Held while the stream is created.
        self._mark = Mutex(f"{prefix}~making.{suffix}")

    @property
    def is_down(self) -> bool:
        """Whether it was down when this session last used it."""
        return self._down is not None

    async def make(self) -> None:
        """Create the stream if it doesn't exist."""
        async with self._making:
            connection = (await self._publisher()).channel.connection
            while not await self.exists(connection):
                if not await uninterrupted(self._make_if_first(connection)):
                    await asyncio.sleep(SOON)

    async def exists(self, connection: Connection) -> bool:
        """Whether the stream exists. Waits while it is being created. Raises BrokerUnavailable if it is down."""
        if not self.made:
            self.name = self._first_name
            self.made = await self._find(connection)
        return self.made

    async def _find(self, connection: Connection) -> bool:
        """Whether the stream exists under one of its names, which are tried in order."""
        if self._down is not None and asyncio.get_running_loop().time() - self._down[1] < LOOK_EVERY:
            raise self._down[2].with_traceback(None)
        while True:
            fault = None
            try:
                if await self._is_made(connection) and (
                    not versions.ends_connections(connection.version) or await _is_sound(connection, self.name)
                ):
                    self._down = None
                    return True
            except NotOnThisNode:
                raise  # other nodes serve it
            except BrokerUnavailable as error:
                if connection.error is not None:
                    raise
                fault = error
            following = self._following()
            if await exists(connection, following):
                self.name = following
            elif fault is None:
                return False
            else:
                self._record_down(fault)
                await uninterrupted(self._replace(connection, following))
                await asyncio.sleep(SOON)

    def _following(self) -> str:
        """The name of the next stream, to use if this one is broken."""
        number = self.name.removeprefix(self._first_name).removeprefix(".")
        return f"{self._first_name}.{int(number or 1) + 1}"

    async def _is_made(self, connection: Connection) -> bool:
        """Whether the stream exists. Waits for one that is being created. Raises BrokerUnavailable while it is down."""
        # Query the stream before the lock: if the stream exists while the lock is free, it is complete.
        found = (await connection.probe(self.name)).exists
        for attempt in range(round(self._patience / SOON) if found else 0):
            if not (await connection.probe(self._mark.queue)).exists:
                # Its creation may have failed.
                return attempt == 0 or (await connection.probe(self.name)).exists
            await asyncio.sleep(SOON)
        return found

    def _record_down(self, fault: BrokerUnavailable) -> None:
        """Record that the stream is down.

        Raises `fault`, unless the stream has been down for so long that it may be broken.
        """
        now = asyncio.get_running_loop().time()
        since = self._down[0] if self._down is not None else now
        self._down = since, now, fault
        if now - since < _DOWN_FOR:
            raise fault.with_traceback(None)

    async def _replace(self, connection: Connection, following: str) -> None:
        """Create the next stream, and use it if the present one stays down although RabbitMQ can create streams."""
        async with self._mark.held(connection, patience=0) as held:
            if held:  # otherwise another session is doing this
                broken, self.name = self.name, following
                await self._declare(connection)
                await asyncio.sleep(self._grace)
                with suppress(BrokerUnavailable):
                    if await _is_sound(connection, broken):
                        self.name = broken
                if self.name == broken:
                    await connection.delete(following)
                else:
                    log.error("stream is broken, its records are lost stream=%s next=%s", broken, following)

    async def _make_if_first(self, connection: Connection) -> bool:
        """Create the stream, unless another session is doing that. Returns whether this one did."""
        async with self._mark.held(connection, patience=0) as held:
            if held and not (await connection.probe(self.name)).exists:
                await self._declare(connection)
            return held

    async def _declare(self, connection: Connection) -> None:
        await connection.declare(self.name, {"x-queue-type": "stream", **self._arguments})
        publisher = await Publisher.open(connection)
        await self._publish(publisher, [record_entry(one) for one in [{}, *self.refill()]])
        publisher.channel.abandon()
        await connection.persist_queues()

    async def write(self, record: Record) -> None:
        """Add a record, creating the stream if necessary; returns once it is stored."""
        await self.append([record_entry(record)])

    async def write_patiently(self, record: Record) -> None:
        """Add a record, waiting for a stream that is down."""
        connection = (await self._publisher()).channel.connection
        await self._patiently(connection, lambda: self.write(record))

    async def append(self, entries: Sequence[Entry]) -> None:
        """Add these entries in order, creating the stream if necessary; returns once all are stored."""

        async def send() -> None:
            await self._publish(await self._publisher(), entries)

        await self.destination.publish(send)

    def _forget(self) -> None:
        log.warning("stream was deleted, creating it again holds=%r stream=%s", self.holds, self.name)
        self.made = False

    async def follow(self, connection: Connection, on_record: Callable[[Record], None]) -> "Follower | None":
        """Start a reader that calls `on_record` with each record.

        Returns the reader once it has caught up; None without a stream. Reads from the oldest record, and starts again
        if the stream goes down before it has caught up. Raises BrokerUnavailable if the stream stays down.
        """
        return await self._patiently(connection, lambda: self._follow(connection, on_record))

    async def end(self, connection: Connection) -> int | None:
        """The offset of the newest entry; None without a stream. Raises the errors of `follow`."""
        found = await self.last(connection)
        return None if found is None else found[0]

    async def last(self, connection: Connection) -> tuple[int, float] | None:
        """The offset of the newest entry, and its writer's time or 0. See `end`."""
        return await self._patiently(connection, lambda: self._find_last(connection))

    async def deliveries(
        self, connection: Connection, start: int | str | datetime, last: int
    ) -> AsyncGenerator[tuple[int, Got], None]:
        """The entries from `start` to the offset `last` that the stream has not deleted yet. The first ones may precede
        `start`.

        Only a few entries are buffered while the caller is busy. Raises BrokerUnavailable, also after `patience`
        seconds without an entry, and NotFound if the stream doesn't exist.
        """
        channel = await connection.channel()
        come: asyncio.Queue[Got | None] = asyncio.Queue()
        channel.on_close(lambda: come.put_nowait(None))
        channel.raw.add_on_cancel_callback(lambda _: channel.abandon())
        try:
            await channel.prefetch(_READ_CREDIT)
            await channel.consume(self.name, come.put_nowait, arguments={"x-stream-offset": start}, late=True)
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
                    raise BrokerUnavailable(f"{self.holds} cannot be read or written: {error}") from error
            await asyncio.sleep(RETRY_EVERY)

    async def _find_last(self, connection: Connection) -> tuple[int, float] | None:
        last = await _last_entry(connection, self.name) if await self.exists(connection) else None
        self.made = last is not None
        return last

    async def _follow(self, connection: Connection, on_record: Callable[[Record], None]) -> "Follower | None":
        if not await self.exists(connection):
            return None
        channel = await connection.channel()
        follower = Follower(channel, on_record)
        try:
            # Concurrently, because RabbitMQ takes milliseconds to open a stream for a consumer.
            last, _ = await together(self._find_last(connection), follower.start(self.name))
            if last is not None:
                if await follower.has_come_to(last[0], patience=CALL_TIMEOUT):
                    return follower
                raise channel.error or BrokerUnavailable(f"{self.name} did not answer within {CALL_TIMEOUT:g} s.")
        except NotFound:  # it was deleted
            self.made = False
        except BaseException:
            channel.abandon()
            raise
        channel.abandon()
        return None

    async def _publish(self, publisher: Publisher, entries: Sequence[Entry]) -> None:
        sent = [publisher.send("", self.name, properties, body) for properties, body in entries]
        await asyncio.gather(*sent)


class Follower:
    """Reads a stream continuously, on its own channel."""

    def __init__(self, channel: Channel, on_record: Callable[[Record], None]) -> None:
        self._channel = channel
        self._on_record = on_record
        self._stream = ""
        self._caught_up = asyncio.Event()
        #: The offset at which it has caught up, once that is known, and that of the last entry read.
        self._end, self._read = math.inf, -1
        channel.on_close(self._caught_up.set)
        # The stream was deleted or its node is down, so there is nothing left to read.
        channel.raw.add_on_cancel_callback(lambda _: channel.abandon())

    @property
    def is_open(self) -> bool:
        """Whether it is still reading."""
        return self._channel.is_open

    async def start(self, stream: str) -> None:
        """Read from the first entry on."""
        self._stream = stream
        await _read(self._channel, stream, "first", self._on_message)

    async def has_come_to(self, end: int, *, patience: float) -> bool:
        """Wait until the reader has read the entry at this offset.

        Returns False after `patience` seconds without an entry (see `come_to_end`), or if the reader has ended. Only
        one caller at a time.
        """
        if self._read < end and self.is_open:
            self._end = end
            self._caught_up.clear()
            await come_to_end(
                self._channel.connection, self._stream, self._caught_up, lambda: self._read, patience=patience
            )
        return self._read >= end and self.is_open

    def on_close(self, callback: Callable[[], None]) -> None:
        """Call this once when the reader has ended, for any reason."""
        self._channel.on_close(callback)

    async def close(self) -> None:
        await self._channel.close()

    def _on_message(self, _: object, method: Any, properties: spec.BasicProperties, body: bytes) -> None:
        self._channel.raw.basic_ack(method.delivery_tag)
        self._channel.connection.unreadable.take(self._stream, body, self._on_record)
        self._read = offset_of(properties)
        if self._read >= self._end:
            self._caught_up.set()


async def come_to_end(
    connection: Connection, stream: str, end: asyncio.Event, read: Callable[[], int], *, patience: float
) -> bool:
    """Wait until a reader has reached its end. False if its offset `read` doesn't change for `patience` seconds.

    That happens if the stream was recreated after its end was queried, and has fewer entries.
    """
    clock = asyncio.get_running_loop().time
    since = clock()
    while not end.is_set() and clock() - since < patience:
        before = read()
        await wait_for_any(end, timeout=ANSWERED_WITHIN)
        if read() != before:
            since = clock()
        elif not end.is_set():
            with suppress(PalermoError):
                await connection.probe(stream)  # the session ends if RabbitMQ is frozen
    return end.is_set()


async def _last_entry(connection: Connection, stream: str) -> tuple[int, float] | None:
    """The offset and the time of the newest entry; None if the stream doesn't exist."""
    channel = await connection.channel()
    seen: list[tuple[int, float]] = []
    first = asyncio.Event()
    channel.on_close(first.set)

    def on_record(_: object, method: Any, properties: spec.BasicProperties, body: bytes) -> None:
        seen.append((offset_of(properties), float(properties.timestamp or 0)))
        first.set()

    try:
        await _read(channel, stream, "last", on_record)
        # The session that created the stream may have died before the first record, and an empty stream never answers.
        await wait_for_any(first, timeout=_EMPTY_AFTER)
        if channel.error is not None:
            raise channel.error
        if not seen:
            return None
        # RabbitMQ delivers a chunk as a whole, so this answer comes after all records of the last one.
        if not (await channel.probe(stream)).exists:
            return None
        return max(seen)
    except PalermoError:
        if channel.missing:
            return None
        raise
    finally:
        channel.abandon()


async def _read(channel: Channel, stream: str, offset: str, callback: Callable[..., None]) -> None:
    await channel.call(channel.raw.basic_qos, prefetch_count=_CREDIT)
    await channel.call(channel.raw.basic_consume, stream, callback, arguments={"x-stream-offset": offset})


async def _is_sound(connection: Connection, stream: str) -> bool:
    """Whether RabbitMQ serves the stream; False if it is empty. Raises BrokerUnavailable if the stream is down.

    Uses another connection if the server's version ends the connection because of a broken stream.
    """
    if not versions.ends_connections(connection.version):
        return (await connection.probe(stream)).exists
    scout = await connection.another("checking a stream")
    try:
        return await _last_entry(scout, stream) is not None
    finally:
        await scout.close()


async def exists(connection: Connection, stream: str) -> bool:
    """Whether the stream exists, even if it is broken or its node is down."""
    try:
        return (await connection.probe(stream)).exists
    except BrokerUnavailable:
        if not connection.raw.is_open:
            raise
        return True


def offset_of(properties: spec.BasicProperties) -> int:
    """The offset of an entry in its stream."""
    return int((properties.headers or {}).get("x-stream-offset", 0))


def record_entry(record: Record) -> Entry:
    """The entry that stores a record."""
    return spec.BasicProperties(delivery_mode=PERSISTENT, content_type="application/json"), write_record(record)
