"""taskiq with taskiq-aio-pika, which waits for confirms and acknowledges after the job."""

import asyncio
from typing import Any

from taskiq_aio_pika import AioPikaBroker, Exchange, Queue, QueueType

from benchmarks.peers import marks
from benchmarks.peers.setup import Setup

SETUP = Setup.here()

broker = AioPikaBroker(
    SETUP.url,
    exchange=Exchange(name=f"{SETUP.queues[0]}.exchange"),
    dead_letter_queue=Queue(name=f"{SETUP.queues[0]}.dead", type=QueueType.CLASSIC),
    qos=1 if SETUP.pool == "process" else SETUP.slots,
)
_TYPE = QueueType.QUORUM if SETUP.quorum else QueueType.CLASSIC
broker.with_queues(*[Queue(name=queue, type=_TYPE, routing_key=queue) for queue in SETUP.queues])


@broker.task(task_name="bench.job")
async def job(order: dict[str, Any]) -> None:
    await marks.run_async(order)


class Producer:
    """Enqueues from a coroutine; many at once by gathering."""

    awaits = True

    async def open(self) -> None:
        await broker.startup()
        self._labelled = len(SETUP.queues) > 1

    async def enqueue(self, order: dict[str, Any], queue: str) -> None:
        if self._labelled:
            await job.kicker().with_labels(queue_name=queue).kiq(order)
        else:
            await job.kiq(order)

    async def enqueue_many(self, orders: list[dict[str, Any]], queue: str) -> None:
        await asyncio.gather(*[self.enqueue(order, queue) for order in orders])

    async def close(self) -> None:
        await broker.shutdown()
