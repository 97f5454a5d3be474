"""A worker's claim on jobs: where they come from, how they are settled, and who it says it is."""

import asyncio
from collections.abc import Awaitable, Callable

from palermo.broker import Delivery
from palermo.brokers.rabbitmq.poll import PollSource, give_back
from palermo.brokers.rabbitmq.presence import Presence
from palermo.brokers.rabbitmq.push import PushSource, quietly
from palermo.brokers.rabbitmq.registry import Names
from palermo.core.lifecycle import Ack, Fail, Release, Retry, Settlement
from palermo.core.message import Message
from palermo.errors import DeliveryLost


class RabbitmqConsumer:
    """See palermo.broker.Consumer. Made by RabbitmqBroker.consume."""

    def __init__(
        self,
        source: PushSource | PollSource,
        presence: Presence,
        names: Names | None,
        publish: Callable[[Message, str], Awaitable[None]],
    ) -> None:
        self._source = source
        self._presence = presence
        self._names = names
        self._publish = publish
        self._closed = False
        self._unsettled: dict[int, Delivery] = {}
        self._settled = asyncio.Event()

    async def receive(self, slot: int) -> Delivery:
        while slot in self._unsettled:
            self._settled.clear()
            await self._settled.wait()
        delivery = await self._source.receive(slot)
        self._unsettled[slot] = delivery
        return delivery

    async def settle(self, delivery: Delivery, settlement: Settlement) -> None:
        if self._unsettled.get(delivery.slot) is not delivery:
            raise DeliveryLost(f"job {delivery.message.id} is not, or no longer, this worker's to settle.")
        channel, tag = delivery.token
        match settlement:
            case Ack():
                self._check(delivery)
                channel.raw.basic_ack(tag)
                # The next job comes only after it.
                channel.link.raw.flush()
            case Release():
                self._check(delivery)
                channel.raw.basic_nack(tag, requeue=True)
            case Fail(message, queue):
                # Publish before ack. Dying in between runs the job twice; the other order loses it.
                await self._publish(message, queue)
                self._check(delivery)
                channel.raw.basic_ack(tag)
            case Retry(message):
                await self._publish(message, message.queue)
                self._check(delivery)
                channel.raw.basic_ack(tag)
        self._forget(delivery)

    async def rest(self, slot: int) -> None:
        await self._source.rest(slot)

    async def close(self) -> None:
        if self._closed:
            return
        self._closed = True
        await quietly(self._source.close())
        for delivery in list(self._unsettled.values()):
            give_back(delivery)
            self._forget(delivery)
        if self._names is not None:
            await quietly(self._names.close())
        await quietly(self._presence.end())

    def _check(self, delivery: Delivery) -> None:
        """Never ack on another channel than the one that delivered: its tags mean other messages."""
        channel, _ = delivery.token
        if not channel.is_open:
            self._forget(delivery)
            raise DeliveryLost(
                f"job {delivery.message.id} went back to queue {delivery.message.queue!r}: {channel.error}"
            ) from channel.error

    def _forget(self, delivery: Delivery) -> None:
        self._unsettled.pop(delivery.slot, None)
        self._settled.set()
        if isinstance(self._source, PollSource):
            self._source.settled(delivery)
