"""The names of all queues, kept in a stream: AMQP itself cannot list them.

A record is written before its queue is made, and one when it is deleted, so the stream stays
as short as the number of queues that ever were. The first record only makes it non-empty,
since the end of an empty stream cannot be told from a slow one.

Streams are read over AMQP 0-9-1 on a channel of their own that is closed, never cancelled:
RabbitMQ answers the rejects of a cancelled stream consumer by closing the connection.
"""

import asyncio
import json
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Any

from pika import spec

from palermo.brokers.rabbitmq.link import Channel, Link
from palermo.brokers.rabbitmq.publisher import Publisher
from palermo.brokers.rabbitmq.wire import PERSISTENT
from palermo.core.topology import internal
from palermo.errors import BrokerUnavailable, PalermoError

_CREDIT = 1_000

#: Seconds between two attempts to read a stream that is down.
_AGAIN = 0.2

#: Seconds without a record after which a stream counts as empty.
_EMPTY_AFTER = 2.0


class Registry:
    """The registry of one exchange, as one session sees it."""

    def __init__(self, exchange: str, publisher: Callable[[], Awaitable[Publisher]], *, patience: float) -> None:
        """`patience` is how many seconds reading waits for a stream that is down: RabbitMQ starts its queues first."""
        self._patience = patience
        self._stream = internal(exchange, "registry")
        self._publisher = publisher
        self._made = False

    async def add(self, queue: str) -> None:
        """Make the name known to all; returns once that is stored."""
        await self._write({"queue": queue})

    async def remove(self, queue: str) -> None:
        """Forget the name everywhere."""
        await self._write({"gone": queue})

    async def names(self, link: Link) -> set[str]:
        """All names there are now. Raises BrokerUnavailable if the stream is down and stays so."""
        follower = await self.follow(link, lambda names: None)
        if follower is None:
            return set()
        await follower.close()
        return follower.names

    async def follow(self, link: Link, changed: Callable[[set[str]], None]) -> "Follower | None":
        """A reader that has caught up and goes on; calls `changed` at every later change. None without a stream.

        Raises BrokerUnavailable if the stream is down and stays so.
        """
        loop = asyncio.get_running_loop()
        deadline = loop.time() + self._patience
        while True:
            try:
                return await self._follow(link, changed)
            except BrokerUnavailable as error:
                if link.error is not None:
                    raise
                if loop.time() > deadline:
                    raise BrokerUnavailable(
                        f"the names of the queues cannot be read: {error} If the stream stays down, delete it"
                        f" (rabbitmqctl delete_queue '{self._stream}'): it is made anew, with the queues then in use."
                    ) from error
            await asyncio.sleep(_AGAIN)

    async def _follow(self, link: Link, changed: Callable[[set[str]], None]) -> "Follower | None":
        end = await _last_offset(link, self._stream)
        if end is None:
            return None
        follower = Follower(await link.channel(), changed)
        await follower.start(self._stream, end)
        return follower

    async def make(self) -> None:
        """Make the stream if it is not there."""
        if self._made:
            return
        publisher = await self._publisher()
        channel = await publisher.channel.link.channel()
        try:
            await channel.call(channel.raw.queue_declare, self._stream, passive=True)
        except PalermoError:
            if not channel.missing:
                raise
            channel = await publisher.channel.link.channel()
            arguments = {"x-queue-type": "stream"}
            await channel.call(channel.raw.queue_declare, self._stream, durable=True, arguments=arguments)
            await self._publish(publisher, {"version": 1})
        await channel.close()
        self._made = True

    async def _write(self, record: dict[str, Any]) -> None:
        await self.make()
        await self._publish(await self._publisher(), record)

    async def _publish(self, publisher: Publisher, record: dict[str, Any]) -> None:
        properties = spec.BasicProperties(delivery_mode=PERSISTENT, content_type="application/json")
        await publisher.send("", self._stream, properties, json.dumps(record).encode())


class Follower:
    """A reader of the registry, on its own channel."""

    def __init__(self, channel: Channel, changed: Callable[[set[str]], None]) -> None:
        self.names: set[str] = set()
        self._channel = channel
        self._changed = changed
        self._caught_up = asyncio.Event()
        self._end = 0
        channel.on_close(self._caught_up.set)

    async def start(self, stream: str, end: int) -> None:
        self._end = end
        await _read(self._channel, stream, "first", self._on_record)
        await self._caught_up.wait()
        if self._channel.error is not None:
            raise self._channel.error

    async def close(self) -> None:
        await self._channel.close()

    def _on_record(self, _: object, method: Any, properties: spec.BasicProperties, body: bytes) -> None:
        self._channel.raw.basic_ack(method.delivery_tag)
        record = _record(body)
        if "queue" in record:
            self.names.add(str(record["queue"]))
        self.names.discard(str(record.get("gone", "")))
        if self._caught_up.is_set():
            # A known name written again is a queue made again, after someone deleted it without a record.
            self._changed(self.names)
        elif _offset(properties) >= self._end:
            self._caught_up.set()


async def _last_offset(link: Link, stream: str) -> int | None:
    """The offset of the newest record; None if there is no stream."""
    channel = await link.channel()
    seen: list[int] = []
    first = asyncio.Event()
    channel.on_close(first.set)

    def on_record(_: object, method: Any, properties: spec.BasicProperties, body: bytes) -> None:
        seen.append(_offset(properties))
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


def _offset(properties: spec.BasicProperties) -> int:
    return int((properties.headers or {}).get("x-stream-offset", 0))


def _record(body: bytes) -> dict[str, Any]:
    """A record as written; {} for what a later version or a stranger wrote."""
    try:
        record = json.loads(body)
    except ValueError:
        return {}
    return record if isinstance(record, dict) else {}
