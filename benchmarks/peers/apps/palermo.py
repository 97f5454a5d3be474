"""Palermo: one decorated function, or a coroutine for the async pool. Its settings are in the environment."""

from typing import Any

import palermo
from benchmarks.peers import marks
from benchmarks.peers.setup import Setup

SETUP = Setup.here()


@palermo.job(queue=SETUP.queues[0])
def bench(order: dict[str, Any]) -> None:
    marks.run(order)


@palermo.job(queue=SETUP.queues[0])
async def bench_async(order: dict[str, Any]) -> None:
    await marks.run_async(order)


class Producer:
    """Enqueues by the job itself; `enqueue_many` where there are many."""

    awaits = False

    async def open(self) -> None:
        job = bench_async if SETUP.pool == "async" else bench
        self._jobs = {queue: job.options(queue=queue) for queue in SETUP.queues}

    async def enqueue(self, order: dict[str, Any], queue: str) -> None:
        self._jobs[queue].enqueue(order)

    async def enqueue_many(self, orders: list[dict[str, Any]], queue: str) -> None:
        self._jobs[queue].enqueue_many([(order,) for order in orders])

    async def close(self) -> None:
        pass
