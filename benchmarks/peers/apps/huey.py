"""Huey on SQLite, with each commit written to the disk. It removes a job before it runs it: at most once."""

from typing import Any

from huey import SqliteHuey

from benchmarks.peers import marks
from benchmarks.peers.setup import Setup

SETUP = Setup.here()

huey = SqliteHuey("bench", filename=SETUP.url, fsync=SETUP.confirm, results=False)


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
