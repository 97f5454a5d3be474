"""FastStream: a subscriber for each queue, acknowledged after it returned. Published persistent and confirmed."""

import asyncio
from typing import Any

from faststream import AckPolicy, FastStream
from faststream.rabbit import Channel, QueueType, RabbitBroker, RabbitQueue

from benchmarks.peers import marks
from benchmarks.peers.setup import Setup

SETUP = Setup.here()

QUEUES = {
    queue: RabbitQueue(queue, durable=True, queue_type=QueueType.QUORUM if SETUP.quorum else QueueType.CLASSIC)
    for queue in SETUP.queues
}

broker = RabbitBroker(
    SETUP.url, logger=None, default_channel=Channel(prefetch_count=1 if SETUP.pool == "process" else SETUP.slots)
)
app = FastStream(broker, logger=None)


async def job(order: dict[str, Any]) -> None:
    await marks.run_async(order)


for _queue in QUEUES.values():
    broker.subscriber(_queue, ack_policy=AckPolicy.REJECT_ON_ERROR)(job)


class Producer:
    """Publishes from a coroutine; many at once by gathering."""

    awaits = True

    async def open(self) -> None:
        self._broker = RabbitBroker(SETUP.url, logger=None)
        await self._broker.start()
        for queue in QUEUES.values():
            await self._broker.declare_queue(queue)

    async def enqueue(self, order: dict[str, Any], queue: str) -> None:
        await self._broker.publish(order, QUEUES[queue], persist=True)

    async def enqueue_many(self, orders: list[dict[str, Any]], queue: str) -> None:
        await asyncio.gather(*[self._broker.publish(order, QUEUES[queue], persist=True) for order in orders])

    async def close(self) -> None:
        await self._broker.stop()
