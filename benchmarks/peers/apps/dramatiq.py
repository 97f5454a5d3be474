"""Dramatiq: an actor for each queue. It acknowledges after the job by itself."""

from typing import Any

import dramatiq
from dramatiq.brokers.rabbitmq import RabbitmqBroker
from dramatiq.brokers.redis import RedisBroker

from benchmarks.peers import marks
from benchmarks.peers.setup import Setup

SETUP = Setup.here()

on_redis = SETUP.url.startswith("redis")
broker = RedisBroker(url=SETUP.url) if on_redis else RabbitmqBroker(url=SETUP.url, confirm_delivery=SETUP.confirm)
dramatiq.set_broker(broker)


def job(order: dict[str, Any]) -> None:
    marks.run(order)


actors = {queue: dramatiq.actor(job, actor_name=f"job_{queue}", queue_name=queue) for queue in SETUP.queues}


class Producer:
    """Enqueues one by one: Dramatiq has nothing for many."""

    awaits = False

    async def open(self) -> None:
        for queue in () if on_redis else SETUP.queues:
            broker.declare_queue(queue, ensure=True)

    async def enqueue(self, order: dict[str, Any], queue: str) -> None:
        actors[queue].send(order)

    async def enqueue_many(self, orders: list[dict[str, Any]], queue: str) -> None:
        for order in orders:
            actors[queue].send(order)

    async def close(self) -> None:
        broker.close()
