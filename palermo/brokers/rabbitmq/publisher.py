"""Publishing that knows: every message is mandatory and confirmed, and its future says how it ended."""

import asyncio
import struct
from typing import Any

from pika import exceptions, spec

from palermo.brokers.rabbitmq.link import Channel, Link
from palermo.errors import PalermoError, PublishRefused


class Unroutable(PublishRefused):
    """No queue is bound for the message: it was deleted since we declared it."""


class Nacked(PublishRefused):
    """The queue would not store it: it is full, or a quorum queue whose leader, or majority, is away."""


class _Pending:
    """A publish that the broker has not answered yet."""

    __slots__ = ("future", "key", "returned")

    def __init__(self, future: asyncio.Future[None], key: tuple[str, str | None]) -> None:
        self.future = future
        self.key = key
        self.returned = ""


class Publisher:
    """A channel in confirm mode. It dies with its channel; whoever owns it makes another.

    It also counts as closed from its first nack on: a channel that published to a quorum queue while
    its leader died goes on to refuse all for that queue, long after there is a new leader (3.10.8).
    """

    def __init__(self, channel: Channel) -> None:
        self.channel = channel
        self._pending: dict[int, _Pending] = {}
        self._published = 0
        self._nacked = False
        self._loop = asyncio.get_running_loop()
        channel.on_close(self._on_close)
        channel.raw.add_on_return_callback(self._on_return)

    @classmethod
    async def open(cls, link: Link) -> "Publisher":
        channel = await link.channel()
        publisher = cls(channel)
        await channel.call(channel.raw.confirm_delivery, publisher._on_confirm)
        return publisher

    @property
    def is_open(self) -> bool:
        return self.channel.is_open and not self._nacked

    def send(
        self, exchange: str, routing_key: str, properties: spec.BasicProperties, body: bytes
    ) -> asyncio.Future[None]:
        """Send one message; the future is done when the broker has stored it.

        It raises Unroutable when no queue is bound, PublishRefused when the broker says no
        (a full queue that rejects), and the session's error when that is lost first.
        """
        future: asyncio.Future[None] = self._loop.create_future()
        try:
            self.channel.raw.basic_publish(exchange, routing_key, body, properties, mandatory=True)
        except (ValueError, struct.error) as error:
            # Nothing has been written: pika encodes the whole message first.
            future.set_exception(
                PublishRefused(f"job {properties.message_id} has a header AMQP cannot carry: {error}.")
            )
            return future
        except exceptions.AMQPError as error:
            future.set_exception(self.channel.error or self.channel.link.translated(error))
            return future
        self._published += 1
        self._pending[self._published] = _Pending(future, (routing_key, properties.message_id))
        return future

    def _on_confirm(self, frame: Any) -> None:
        self._settle_all(frame.method)
        if self._nacked and not self._pending and self.channel.is_open:
            self.channel.raw.close()

    def _settle_all(self, method: Any) -> None:
        if not method.multiple:
            pending = self._pending.pop(method.delivery_tag, None)
            if pending is not None:
                self._settle(pending, method)
            return
        while self._pending:
            tag = next(iter(self._pending))
            if tag > method.delivery_tag:
                break
            self._settle(self._pending.pop(tag), method)

    def _settle(self, pending: _Pending, method: Any) -> None:
        future = pending.future
        self._nacked = self._nacked or isinstance(method, spec.Basic.Nack)
        if future.done():
            return
        if pending.returned:
            future.set_exception(Unroutable(f"RabbitMQ has no queue for {pending.key[0]!r}: {pending.returned}."))
        elif isinstance(method, spec.Basic.Nack):
            future.set_exception(
                Nacked(
                    f"RabbitMQ refused job {pending.key[1]} for queue {pending.key[0]!r}: the queue is full, or most of"
                    " its nodes are away."
                )
            )
        else:
            future.set_result(None)

    def _on_return(self, _: object, method: Any, properties: spec.BasicProperties, body: bytes) -> None:
        # A return comes before its confirm, and in the order of publishing; two unanswered copies of one id
        # to one queue are returned both or neither, so which of them is marked first does not matter.
        key = (method.routing_key, properties.message_id)
        for pending in self._pending.values():
            if pending.key == key and not pending.returned:
                pending.returned = str(method.reply_text or "no route")
                return

    def _on_close(self) -> None:
        error: PalermoError = self.channel.error or PublishRefused("the channel was closed")
        pending, self._pending = self._pending, {}
        for one in pending.values():
            if not one.future.done():
                one.future.set_exception(error)
                # Many may be unanswered and only the first be awaited; the others are told by the same error.
                one.future.exception()
