"""Huey on SQLite, each commit on the disk, or on redis. It removes a job before it runs it: at most once."""

from typing import Any

from huey import RedisHuey, SqliteHuey

from benchmarks.peers import marks
from benchmarks.peers.setup import Setup

SETUP = Setup.here()

huey = (
    RedisHuey(SETUP.queues[0], url=SETUP.url, results=False)
    if SETUP.url.startswith("redis")
    else SqliteHuey("bench", filename=SETUP.url, fsync=SETUP.confirm, results=False)
)


@huey.task()
def job(order: dict[str, Any]) -> None:
    marks.run(order)


class Producer:
    """Enqueues one by one: Huey has nothing for many."""

    awaits = False

    async def open(self) -> None:
        pass

    async def enqueue(self, order: dict[str, Any], queue: str) -> None:
        job(order)

    async def enqueue_many(self, orders: list[dict[str, Any]], queue: str) -> None:
        for order in orders:
            job(order)

    async def close(self) -> None:
        pass
