"""Subscribes an idle worker to all its queues until the first delivery comes.

That delivery is settled on the channel of the subscriptions. While it is unsettled, the next round uses another
channel: subscribing to a queue that was just deleted closes the channel, and would give a running job back.
"""

import asyncio
from collections.abc import Callable
from functools import partial
from typing import Any

from palermo.brokers.rabbitmq.amqp.connection import Channel, Connection
from palermo.brokers.rabbitmq.amqp.messages import Got, delivered
from palermo.core.topology import amqp_queue
from palermo.errors import PalermoError

#: Queues that are subscribed to in one go, before the worker checks whether one of them has a job already.
_AT_ONCE = 32


class IdleSubscriptions:
    """The subscriptions of one idle worker. One call of `listen` is one round, which the first delivery ends."""

    def __init__(
        self,
        connection: Connection,
        exchange: str,
        *,
        tag: str,
        on_message: Callable[[str, Channel, Got], bool],
        on_deleted: Callable[[str], None],
        on_end: Callable[[Channel], None],
    ) -> None:
        """`on_message` says whether an idle slot took the delivery; `on_deleted` is called with a queue that is gone.

        `on_end` is called with a channel that has closed.
        """
        self._connection = connection
        self._exchange = exchange
        self._tag = tag
        self._on_message = on_message
        self._on_deleted = on_deleted
        self._on_end = on_end
        self._channel: Channel | None = None
        self._unsettled: dict[Channel, int] = {}
        self._subscribed: dict[str, str] = {}
        self._arrived: list[tuple[str, Got]] = []
        self._round_over = asyncio.Event()

    async def listen(self, queues: tuple[str, ...]) -> None:
        """Subscribe, wait for the first delivery, unsubscribe, and hand on all that came, first queue first."""
        channel = await self._open()
        self._round_over.clear()
        self._arrived.clear()
        try:
            for start in range(0, len(queues), _AT_ONCE):
                await self._subscribe(channel, queues[start : start + _AT_ONCE])
                if self._round_over.is_set():
                    break
            await self._round_over.wait()
        finally:
            await self._unsubscribe(channel)
        if self._connection.error is not None:
            raise self._connection.error
        self._hand_on(channel, queues)
        if channel is not self._channel and channel not in self._unsettled:
            channel.abandon()

    def end_round(self) -> None:
        """End the round, if one is under way, although nothing came: the worker serves other queues, or is not idle."""
        self._round_over.set()

    def settled(self, channel: Channel) -> bool:
        """Note that a delivery on this channel was settled. False if it did not come by these subscriptions."""
        if channel not in self._unsettled:
            return False
        self._unsettled[channel] -= 1
        if not self._unsettled[channel]:
            del self._unsettled[channel]
            if channel is not self._channel and channel.is_open:
                channel.abandon()
        return True

    async def _open(self) -> Channel:
        channel = self._channel
        if channel is None or not channel.is_open or channel in self._unsettled:
            channel = self._channel = await self._connection.channel()
            channel.on_close(self._round_over.set)
            channel.on_close(lambda: self._on_end(channel))
            channel.raw.add_on_cancel_callback(partial(self._on_cancelled_by_broker, channel))
            await _answered(channel)  # this also sets a prefetch of one for each consumer
        return channel

    async def _subscribe(self, channel: Channel, queues: tuple[str, ...]) -> None:
        # One tag for each queue: they share a channel, and a tag is unique on its channel.
        tags = {f"{self._tag}:{queue}": queue for queue in queues}
        names = {tag: amqp_queue(self._exchange, queue) for tag, queue in tags.items()}
        self._subscribed.update(tags)
        self._connection.raw.listen(channel.raw, names, self._on_delivery)
        await _answered(channel)

    async def _unsubscribe(self, channel: Channel) -> None:
        tags, self._subscribed = list(self._subscribed), {}
        try:
            if channel.is_open:
                self._connection.raw.listen_no_more(channel.raw, tags)
                await _answered(channel)
                self._connection.raw.forget_listening(channel.raw, tags)
        except PalermoError:
            return

    def _hand_on(self, channel: Channel, queues: tuple[str, ...]) -> None:
        arrived, self._arrived = self._arrived, []
        if not channel.is_open:
            return
        for queue, got in sorted(arrived, key=lambda item: queues.index(item[0])):
            if self._on_message(queue, channel, got):
                self._unsettled[channel] = self._unsettled.get(channel, 0) + 1
            else:
                channel.requeue(got.tag)

    def _on_delivery(self, raw: Any, method: Any, properties: Any, body: bytes) -> None:
        queue = method.consumer_tag.removeprefix(f"{self._tag}:")
        # Kept until all subscriptions have ended: a delivery that is given back at once would only come again.
        self._arrived.append((queue, delivered(method, properties, body)))
        self._round_over.set()

    def _on_cancelled_by_broker(self, channel: Channel, frame: Any) -> None:
        if channel is self._channel:
            # A second consumer on it may not get what RabbitMQ delivers to it: see docs/internals/rabbitmq-versions.md.
            self._channel = None
        queue = self._subscribed.pop(frame.method.consumer_tag, None)
        if queue is not None:
            self._on_deleted(queue)
        self._round_over.set()


async def _answered(channel: Channel) -> None:
    """Wait until RabbitMQ has done all that was sent on this channel before, and set a prefetch of one."""
    await channel.prefetch(1)
