"""Takes several messages of one queue at once, without a subscription: it sends several basic.get in one write."""

import asyncio
from typing import Any

from palermo.brokers.rabbitmq.amqp.connection import Channel, Connection, delivered, fulfil
from palermo.brokers.rabbitmq.amqp.delivery_frames import Delivered
from palermo.brokers.rabbitmq.amqp.messages import read, read_delivered
from palermo.brokers.rabbitmq.amqp.properties import Properties
from palermo.contract.broker import Delivery
from palermo.core.message import Message


class BulkGet:
    """Takes messages for one slot, on its own channel: asking a queue that does not exist closes the channel."""

    def __init__(self, connection: Connection, slot: int) -> None:
        self._connection = connection
        self._slot = slot
        self._channel: Channel | None = None
        #: The queue that is being asked, how many answers are still to come, and the deliveries so far.
        self._queue = ""
        self._left = 0
        self._found: list[Delivery] = []
        self._done: asyncio.Future[None] | None = None

    async def take(self, queue: str, name: str, count: int) -> list[Delivery]:
        """The first `count` messages of this queue or fewer, unacknowledged; `name` is the queue's name in RabbitMQ.

        One call at a time, which must not be cancelled. Raises NotFound, or any other error that closed the channel.
        """
        channel = await self._open()
        self._queue, self._found = queue, []
        # With a version of pika that this was not tested with, one message in each call.
        self._left = count if self._connection.raw.quick else 1
        self._done = asyncio.get_running_loop().create_future()
        self._connection.raw.get(channel.raw, name, self._on_got, count=self._left)
        await self._done
        return self._found

    async def _open(self) -> Channel:
        channel = self._channel
        if channel is None or not channel.is_open:
            made = channel = self._channel = await self._connection.channel()
            made.on_close(lambda: self._on_end(made))
            made.on_get_empty(self._on_get_empty)
            self._connection.raw.answers_to(made.raw, self._on_read)
        return channel

    def _on_read(self, found: Delivered, data: bytes) -> None:
        if found.tag:
            self._take(read_delivered(found, data, self._queue), found.tag, found.redelivered)
        else:
            self._answered()

    def _on_got(self, raw: Any, method: Any, properties: Properties, body: bytes) -> None:
        # pika forgets this callback with each answer that it reads.
        raw._on_getok_callback = self._on_got
        message = read(delivered(method, properties, body), self._queue)
        self._take(message, method.delivery_tag, method.redelivered)

    def _on_get_empty(self) -> None:
        self._answered()

    def _take(self, message: Message, tag: int, redelivered: bool) -> None:
        token = (self._channel, tag)
        self._found.append(Delivery(message=message, slot=self._slot, token=token, redelivered=redelivered))
        self._answered()

    def _answered(self) -> None:
        self._left -= 1
        if not self._left and self._done is not None:
            fulfil(self._done, None)

    def _on_end(self, channel: Channel) -> None:
        self._connection.raw.deliver_no_more(channel.raw)
        if self._done is not None and not self._done.done():
            assert channel.error is not None
            self._done.set_exception(channel.error)
