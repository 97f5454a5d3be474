"""Publishing that knows: every message is mandatory and confirmed, and whoever sent it is told how it ended."""

import asyncio
import struct
from typing import Any

from pika import exceptions, spec

from palermo.brokers.rabbitmq import frames
from palermo.brokers.rabbitmq.link import Channel, Link
from palermo.errors import PalermoError, PublishRefused
from palermo.posting import Ended


class Unroutable(PublishRefused):
    """No queue is bound for the message: it was deleted since we declared it."""


class Nacked(PublishRefused):
    """The queue would not store it: it is full, or a quorum queue whose leader, or majority, is away."""


class Told:
    """An Ended that a coroutine can wait for."""

    __slots__ = ("future",)

    def __init__(self) -> None:
        self.future: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def __call__(self, error: PalermoError | None) -> None:
        if self.future.done():
            return
        if error is None:
            self.future.set_result(None)
        else:
            self.future.set_exception(error)
            # Many may be unanswered and only the first be awaited; the others are told by the same error.
            self.future.exception()


class _Pending:
    """A publish that the broker has not answered yet."""

    __slots__ = ("ended", "id", "returned", "routing_key")

    def __init__(self, ended: Ended, routing_key: str, id: str | None) -> None:
        self.ended = ended
        self.routing_key = routing_key
        self.id = id
        self.returned = ""


class Publisher:
    """A channel in confirm mode. It dies with its channel; whoever owns it makes another.

    It also counts as closed from its first nack on: a channel that published to a quorum queue while
    its leader died goes on to refuse all for that queue, long after there is a new leader (3.10.8).
    """

    def __init__(self, channel: Channel) -> None:
        self.channel = channel
        self._number: int = channel.raw.channel_number
        self._wire = channel.link.raw
        self._frame_max: int = self._wire.params.frame_max
        #: By delivery tag, which rises from 1 by one with each message.
        self._pending: dict[int, _Pending] = {}
        self._published = 0
        #: No tag below this one is pending.
        self._first = 1
        self._nacked = False
        channel.on_close(self._on_close)
        channel.raw.add_on_return_callback(self._on_return)

    @classmethod
    async def open(cls, link: Link) -> "Publisher":
        channel = await link.channel()
        publisher = cls(channel)
        await channel.call(channel.raw.confirm_delivery, publisher._on_confirm)
        publisher._wire.acks_to(channel.raw, publisher._on_ack)
        return publisher

    @property
    def is_open(self) -> bool:
        return not self._nacked and self.channel.is_open

    def send(
        self, exchange: str, routing_key: str, properties: spec.BasicProperties, body: bytes
    ) -> asyncio.Future[None]:
        """Send one message; the future is done when the broker has stored it.

        It raises Unroutable when no queue is bound, PublishRefused when the broker says no
        (a full queue that rejects), and the session's error when that is lost first.
        """
        ended = Told()
        try:
            written = b"".join(properties.encode())
        except (ValueError, struct.error) as error:
            ended(unfit(properties.message_id, error))
        else:
            self.post(exchange, routing_key, written, body, ended, properties.message_id)
        return ended.future

    def post(
        self, exchange: str, routing_key: str, properties: bytes, body: bytes, ended: Ended, id: str | None
    ) -> None:
        """Send one message, and tell `ended` the same as the future of `send`, perhaps before this returns.

        `properties` are as they go over the wire; `id` is that of the message.
        """
        try:
            pieces = frames.message(self._number, exchange, routing_key, properties, body, frame_max=self._frame_max)
        except (ValueError, struct.error) as error:
            ended(unfit(id, error))
            return
        # Without the pen the connection is lost, and ends soon if it has not ended yet.
        held = self._wire.pen.take()
        if not held or not self.channel.is_open:
            if held:
                self._wire.pen.give_back()
            else:
                self._wire.abort()
            ended(self.channel.error or self.channel.link.translated(exceptions.ChannelWrongStateError()))
            return
        self._number_next(ended, routing_key, id)
        self._wire.send(pieces)
        self._wire.pen.give_back()

    def post_from_outside(
        self, exchange: str, routing_key: str, properties: bytes, body: bytes, ended: Ended, id: str | None
    ) -> bool:
        """`post` in another thread than the connection's, which is the one to tell `ended`.

        False where something else is being written, or the channel ends: nothing was begun then. Whatever is raised
        in the middle leaves the pen taken, and so ends the connection.
        """
        try:
            pieces = frames.message(self._number, exchange, routing_key, properties, body, frame_max=self._frame_max)
        except (ValueError, struct.error):
            return False
        data = b"".join(pieces)
        wire = self._wire
        if not wire.pen.borrow():
            return False
        if not (self.is_open and wire.idle):
            wire.pen.give_back()
            return False
        self._number_next(ended, routing_key, id)
        wire.send_now(data)
        wire.pen.give_back()
        return True

    def _number_next(self, ended: Ended, routing_key: str, id: str | None) -> None:
        self._published += 1
        self._pending[self._published] = _Pending(ended, routing_key, id)

    def _on_confirm(self, frame: Any) -> None:
        """An ack or a nack that pika has read."""
        method = frame.method
        if isinstance(method, spec.Basic.Nack):
            self._nacked = True
            self._settle(method.delivery_tag, method.multiple, nacked=True)
        else:
            self._on_ack(method.delivery_tag, method.multiple)

    def _on_ack(self, tag: int, multiple: bool) -> None:
        self._settle(tag, multiple, nacked=False)

    def _settle(self, last: int, multiple: bool, *, nacked: bool) -> None:
        first = self._first if multiple else last
        if first <= self._first:
            self._first = last + 1
        for tag in range(first, last + 1):
            pending = self._pending.pop(tag, None)
            if pending is not None:
                pending.ended(_error(pending, nacked) if nacked or pending.returned else None)
        if self._nacked and not self._pending and self.channel.is_open:
            self.channel.raw.close()

    def _on_return(self, _: object, method: Any, properties: spec.BasicProperties, body: bytes) -> None:
        # A return comes before its confirm, and in the order of publishing; two unanswered copies of one id
        # to one queue are returned both or neither, so which of them is marked first does not matter.
        for pending in list(self._pending.values()):
            if (
                pending.id == properties.message_id
                and pending.routing_key == method.routing_key
                and not pending.returned
            ):
                pending.returned = str(method.reply_text or "no route")
                return

    def _on_close(self) -> None:
        self._wire.acks_no_more(self.channel.raw)
        error: PalermoError = self.channel.error or PublishRefused("the channel was closed")
        held = self._wire.pen.take()
        pending, self._pending = self._pending, {}
        if held:
            self._wire.pen.give_back()
        for one in pending.values():
            one.ended(error)


def unfit(id: str | None, error: Exception) -> PublishRefused:
    """The error for a message that cannot be written; nothing of it has been sent, since all is encoded first."""
    return PublishRefused(f"job {id} has a header AMQP cannot carry: {error}.")


def _error(pending: _Pending, nacked: bool) -> PublishRefused:
    if pending.returned:
        return Unroutable(f"RabbitMQ has no queue for {pending.routing_key!r}: {pending.returned}.")
    return Nacked(
        f"RabbitMQ refused job {pending.id} for queue {pending.routing_key!r}: the queue is full, or most of its nodes"
        " are away."
    )
