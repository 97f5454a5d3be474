"""arq: a coroutine. It removes a job from redis after its run by itself, and keeps no result here."""

import asyncio
from typing import Any

from arq import create_pool, func
from arq.connections import RedisSettings

from benchmarks.peers import marks
from benchmarks.peers.setup import Setup

SETUP = Setup.here()
REDIS = RedisSettings.from_dsn(SETUP.url)


async def job(_context: dict[str, Any], order: dict[str, Any]) -> None:
    await marks.run_async(order)


class WorkerSettings:
    """The settings class that `arq` reads."""

    functions = (func(job, name="job", keep_result=0),)
    redis_settings = REDIS
    queue_name = SETUP.queues[0]
    max_jobs = SETUP.slots
    log_results = False
    # Not half a second: each look takes as many jobs as there are slots.
    poll_delay = 0.001


class Producer:
    """Enqueues from a coroutine; many at once by gathering."""

    awaits = True

    async def open(self) -> None:
        self._pool = await create_pool(REDIS)

    async def enqueue(self, order: dict[str, Any], queue: str) -> None:
        await self._pool.enqueue_job("job", order, _queue_name=queue)

    async def enqueue_many(self, orders: list[dict[str, Any]], queue: str) -> None:
        await asyncio.gather(*[self.enqueue(order, queue) for order in orders])

    async def close(self) -> None:
        await self._pool.aclose()
