"""RQ on a redis that writes each command to the disk before it answers."""

from typing import Any

from redis import Redis
from rq import Queue

from benchmarks.peers import marks
from benchmarks.peers.setup import Setup

SETUP = Setup.here()


def job(order: dict[str, Any]) -> None:
    marks.run(order)


class Producer:
    """Enqueues by RQ's queues; `enqueue_many` where there are many."""

    awaits = False

    async def open(self) -> None:
        self._redis = Redis.from_url(SETUP.url)
        self._queues = {queue: Queue(queue, connection=self._redis, serializer="json") for queue in SETUP.queues}

    async def enqueue(self, order: dict[str, Any], queue: str) -> None:
        self._queues[queue].enqueue(job, order, result_ttl=0)

    async def enqueue_many(self, orders: list[dict[str, Any]], queue: str) -> None:
        self._queues[queue].enqueue_many([Queue.prepare_data(job, args=(order,), result_ttl=0) for order in orders])

    async def close(self) -> None:
        self._redis.close()
