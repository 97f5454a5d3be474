"""An idle worker's subscriptions to its empty queues, which deliver the next job without polling.

A polling worker (poll.py) is subscribed only while one of its slots waits.
"""

import asyncio
from collections.abc import Callable, Collection
from functools import partial
from typing import Any

from msgspec import Struct, field

from palermo.brokers.rabbitmq.amqp.connection import Channel, Connection
from palermo.brokers.rabbitmq.amqp.messages import Got, delivered
from palermo.brokers.rabbitmq.consuming.queue_order import QueueOrder
from palermo.core.topology import amqp_queue

#: Number of queues to subscribe to at a time, before checking whether one of them already has a job.
_AT_ONCE = 32

#: Up to this number, subscriptions end while no slot is idle, because renewing them is cheaper than requeueing a job.
_FEW = 32


class SubscriptionChannel(Struct, eq=False):
    """A channel, its subscriptions, and their deliveries."""

    channel: Channel
    #: The queues by consumer tag.
    queues: dict[str, str] = field(default_factory=dict)
    #: Tags of ended subscriptions, for which a delivery may still arrive.
    ended: list[str] = field(default_factory=list)
    #: Number of unsettled deliveries.
    unsettled: int = 0
    #: Whether no subscription may be added.
    retired: bool = False


class IdleSubscriptions:
    """Subscribes an idle worker to its empty queues. A delivery ends only the subscription to its own queue.

    The other subscriptions are kept while the job runs, because RabbitMQ needs a tenth of a second to renew a thousand.
    If another job arrives while no slot is idle, the worker requeues it, and polls its queue when a slot is free. That
    happens at most once per queue.

    A delivery is settled on the channel of its subscription. Until then, new subscriptions use another channel, because
    subscribing to a queue that was just deleted closes the channel, and the running job would be requeued.
    """

    def __init__(
        self,
        connection: Connection,
        exchange: str,
        *,
        tag: str,
        on_message: Callable[[str, Channel, Got], bool],
        on_deleted: Callable[[str], None],
        on_end: Callable[[Channel], None],
        order: QueueOrder,
    ) -> None:
        """`on_message` returns whether an idle slot accepted the delivery; `on_deleted` is called with a deleted queue.

        `on_end` is called with a closed channel; `order` is notified of the subscribed queues.
        """
        self._connection = connection
        self._exchange = exchange
        self._tag = tag
        self._numbers = 0
        self._on_message = on_message
        self._on_deleted = on_deleted
        self._on_end = on_end
        self._order = order
        self._channels: dict[Channel, SubscriptionChannel] = {}
        self._subscribed: dict[str, tuple[SubscriptionChannel, str]] = {}
        self._news = asyncio.Event()

    async def listen(self, queues: tuple[str, ...]) -> None:
        """Subscribe to these queues, except subscribed ones; returns when something arrives or changes."""
        self._news.clear()
        new = [queue for queue in queues if queue not in self._subscribed]
        for start in range(0, len(new), _AT_ONCE):
            await self._subscribe(new[start : start + _AT_ONCE])
            if self._news.is_set():
                break
        await self._news.wait()
        if self._connection.error is not None:
            raise self._connection.error

    def no_slot_idles(self) -> None:
        """Record that no slot is idle any more."""
        if len(self._subscribed) > _FEW:
            self._news.set()
        else:
            self.end()

    def end(self, *, but: Collection[str] = ()) -> None:
        """End all subscriptions except those to the queues in `but`."""
        self._end([queue for queue in self._subscribed if queue not in but])
        self._news.set()

    def settled(self, channel: Channel) -> bool:
        """Record that a delivery on this channel was settled. False if the channel isn't one of this object's."""
        used = self._channels.get(channel)
        if used is None or not used.unsettled:
            return False
        used.unsettled -= 1
        self._tidy(used)
        return True

    async def close(self) -> None:
        """End all subscriptions; returns when no more deliveries can arrive."""
        self.end()
        for channel in [channel for channel, used in self._channels.items() if used.ended and channel.is_open]:
            await _answered(channel)

    async def _open(self) -> SubscriptionChannel:
        for used in self._channels.values():
            if used.channel.is_open and not used.unsettled and not used.retired:
                return used
        channel = await self._connection.channel()
        used = self._channels[channel] = SubscriptionChannel(channel)
        channel.on_close(lambda: self._on_closed(used))
        channel.raw.add_on_cancel_callback(partial(self._on_cancelled_by_broker, used))
        await _answered(channel)  # this also sets a prefetch of one for each consumer
        return used

    async def _subscribe(self, queues: list[str]) -> None:
        used = await self._open()
        names = {}
        for queue in queues:
            # Tags are never reused, because deliveries for an earlier one may still arrive.
            self._numbers += 1
            tag = f"{self._tag}:{self._numbers}:{queue}"
            used.queues[tag], self._subscribed[queue] = queue, (used, tag)
            names[tag] = amqp_queue(self._exchange, queue)
        before = len(used.ended)
        self._connection.raw.listen(used.channel.raw, names, partial(self._on_delivery, used))
        await _answered(used.channel)
        self._connection.raw.forget_listening(used.channel.raw, used.ended[:before])
        del used.ended[:before]
        self._order.watch([queue for queue in queues if queue in self._subscribed])

    def _end(self, queues: Collection[str]) -> None:
        """End the subscriptions to these queues. pika rejects late deliveries, so they are requeued."""
        ended: dict[SubscriptionChannel, list[str]] = {}
        for queue in queues:
            used, tag = self._subscribed.pop(queue)
            del used.queues[tag]
            ended.setdefault(used, []).append(tag)
        for used, tags in ended.items():
            if used.channel.is_open:
                self._connection.raw.listen_no_more(used.channel.raw, tags)
                used.ended += tags
        self._order.unwatch(queues)

    def _tidy(self, used: SubscriptionChannel) -> None:
        """Close a channel that is no longer needed."""
        if used.unsettled or used.queues or not (used.retired or len(self._channels) > 1):
            return
        # It may be closed already, since RabbitMQ reports the end of a subscription for each deleted queue.
        if self._channels.pop(used.channel, None) is not None:
            used.channel.abandon()

    def _on_delivery(self, used: SubscriptionChannel, raw: Any, method: Any, properties: Any, body: bytes) -> None:
        queue = used.queues.get(method.consumer_tag)
        if queue is None:
            raw.basic_nack(method.delivery_tag)
            return
        # End the subscription first, or the requeued job would come right back.
        self._end((queue,))
        self._news.set()
        used.unsettled += 1
        got = delivered(method, properties, body)
        if not self._on_message(queue, used.channel, got):
            used.channel.requeue(got.tag)
            self.settled(used.channel)

    def _on_cancelled_by_broker(self, used: SubscriptionChannel, frame: Any) -> None:
        # A second consumer on this channel may get no deliveries: see docs/internals/rabbitmq-versions.md.
        used.retired = True
        queue = used.queues.pop(frame.method.consumer_tag, None)
        if queue is not None:
            del self._subscribed[queue]
            self._order.unwatch((queue,))
            self._on_deleted(queue)
        self._end(list(used.queues.values()))
        self._news.set()
        self._tidy(used)

    def _on_closed(self, used: SubscriptionChannel) -> None:
        self._channels.pop(used.channel, None)
        self._end(list(used.queues.values()))
        self._news.set()
        self._on_end(used.channel)


async def _answered(channel: Channel) -> None:
    """Wait until RabbitMQ has processed everything sent on this channel; sets a prefetch of one."""
    await channel.prefetch(1)
