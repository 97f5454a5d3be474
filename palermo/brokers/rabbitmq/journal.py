"""The journal as a stream, `<exchange>.~journal`: each message is one batch.

The session reads the stream on the consuming connection. A reader must acknowledge to get new credit, and during an
alarm RabbitMQ doesn't read from the publishing connection. RabbitMQ deletes whole segments, so the bounds are accurate
to one segment.
"""

import asyncio
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime
from typing import Any

from palermo.brokers.rabbitmq.amqp.alarms import unconfirmed
from palermo.brokers.rabbitmq.amqp.connection import CALL_TIMEOUT, Channel, Connection
from palermo.brokers.rabbitmq.amqp.messages import PERSISTENT, Got, Properties
from palermo.brokers.rabbitmq.amqp.publisher import OwnPublisher
from palermo.brokers.rabbitmq.amqp.stream import OPENING, Stream, come_to_end, offset_of
from palermo.brokers.rabbitmq.seconds import SKEW
from palermo.contract import clock
from palermo.contract.broker import SessionParameters
from palermo.contract.journal import FROM_START, OnBatch, ReadFrom, Wants
from palermo.contract.tasks import wait_for_any
from palermo.core.journal_records import decode
from palermo.core.topology import internal
from palermo.errors import BrokerUnavailable

#: The prefetch of a reader, in batches of up to about 100 kB, and the number of batches acknowledged together.
_CREDIT, _ACK_EVERY = 100, 25

#: Number of segments of a stream, of which RabbitMQ deletes one at a time, and the minimum and maximum size of a
#: segment in bytes.
_SEGMENTS, _SMALLEST_SEGMENT, _LARGEST_SEGMENT = 16, 1024**2, 64 * 1024**2

#: Number of newest batches that `examine` reads.
_EXAMINED = 1_000


def stream_bounds(size: int, age: float) -> dict[str, Any]:
    """The arguments of a stream with this maximum size in bytes and age in seconds."""
    return {
        "x-max-length-bytes": size,
        "x-max-age": f"{max(1, round(age))}s",
        "x-stream-max-segment-size-bytes": max(_SMALLEST_SEGMENT, min(_LARGEST_SEGMENT, size // _SEGMENTS)),
    }


class StreamJournal:
    """One session's access to the journal of an exchange. See palermo.contract.journal.Journal."""

    def __init__(
        self,
        session: SessionParameters,
        connection: Connection,
        reading: Callable[[], Awaitable[Connection]],
    ) -> None:
        """`connection` is for writing; `reading` returns the connection for reading."""
        self._session = session
        self._connection = connection
        self._reading = reading
        self._publisher = OwnPublisher(connection)
        self._stream = Stream(
            internal(session.exchange, "journal"),
            self._publisher.open,
            patience=session.timeout,
            holds="the journal",
            arguments=stream_bounds(session.journal_bytes, session.journal_age),
        )

    async def append(self, batch: bytes) -> None:
        properties = Properties(delivery_mode=PERSISTENT, content_type="application/json", timestamp=int(clock.now()))
        try:
            async with asyncio.timeout(self._session.timeout):
                await self._stream.append([(properties, batch)])
        except TimeoutError:
            self._publisher.give_up()
            raise unconfirmed(self._connection, "a batch of the journal", self._session.timeout) from None

    async def read(self, on_batch: OnBatch, start: ReadFrom = FROM_START, wants: Wants | None = None) -> "StreamReader":
        connection = await self._reading()
        last = await self._stream.last(connection)
        if last is None:
            await self._stream.make()
            last = await self._stream.last(connection)
        if last is None:
            raise BrokerUnavailable(f"{self._stream.name} was deleted while it was being opened. Try again.")
        end, stored_at = last
        reader = StreamReader(await connection.channel(), on_batch, end, wants)
        await reader.start(self._stream.name, start, stored_at)
        return reader

    async def examine(self) -> None:
        """Read the newest batches to count unreadable ones."""
        if await self._stream.exists(await self._reading()):
            reader = await self.read(lambda _: None, ReadFrom(last=_EXAMINED))
            await wait_for_any(reader.caught_up, reader.ended)
            await reader.close()


class StreamReader:
    """See palermo.contract.journal.JournalReader."""

    def __init__(self, channel: Channel, on_batch: OnBatch, end: int, wants: Wants | None) -> None:
        self._channel = channel
        self._on_batch = on_batch
        self._wants = wants
        self.begin = 0
        self.end = end
        self.deleted = False
        self.caught_up = asyncio.Event()
        self.ended = asyncio.Event()
        self._stream = ""
        #: The position of the last received batch.
        self._read = -1
        channel.on_close(self.ended.set)
        channel.raw.add_on_cancel_callback(self._on_cancelled)

    async def start(self, stream: str, start: ReadFrom, stored_at: float) -> None:
        """Start reading. `stored_at` is when the last batch was stored, according to its writer."""
        self._stream = stream
        at: Any = "first"
        if start.last is not None:
            at = self.begin = max(0, self.end + 1 - start.last)
        elif start.since is not None:
            # A reader that starts after the last batch would wait for the next one, and not count as caught up.
            past = start.since > stored_at
            at = self.end if past else datetime.fromtimestamp(max(0.0, start.since - SKEW), UTC).replace(tzinfo=None)
        elif start.position is not None and start.position <= self.end + 1:
            at = self.begin = start.position
        if self.begin > self.end:
            self.caught_up.set()
        await self._channel.prefetch(_CREDIT)
        await self._channel.consume(stream, self._on_message, arguments={"x-stream-offset": at}, late=True)
        watch = asyncio.ensure_future(self._end_if_silent())
        self._channel.on_close(watch.cancel)

    async def close(self) -> None:
        await self._channel.close()

    def _on_cancelled(self, _: object) -> None:
        self.deleted = True
        if self._channel.is_open:
            self._channel.raw.close()

    async def _end_if_silent(self) -> None:
        connection = self._channel.connection
        if not await come_to_end(connection, self._stream, self.caught_up, lambda: self._read, patience=CALL_TIMEOUT):
            self._channel.abandon()

    def _take(self, position: int, body: bytes) -> None:
        batch = decode(position, body)
        if batch.unreadable and body != OPENING:
            self._channel.connection.unreadable.skip(self._stream, body, f"{batch.unreadable} of its records")
        self._on_batch(batch)

    def _on_message(self, got: Got) -> None:
        if self.ended.is_set():
            return
        if got.tag % _ACK_EVERY == 0:
            self._channel.ack(got.tag, multiple=True)
        position = self._read = offset_of(got.properties)
        if position >= self.begin and (self._wants is None or self._wants(got.body)):
            self._channel.connection.unreadable.attempt(self._stream, got.body, lambda: self._take(position, got.body))
        if position >= self.end:
            self.caught_up.set()
