"""A process that enqueues by one system as it is told: `python -m benchmarks.peers.producer SYSTEM`.

Reads orders from its standard input, one JSON object a line, and answers each by a line on its standard output.
"""

import asyncio
import json
import os
import sys
import time
from collections.abc import Callable, Coroutine
from importlib import import_module
from typing import Any, Protocol, TextIO

from benchmarks.peers.order import order
from benchmarks.peers.setup import Setup


class Producer(Protocol):
    """A producer of an app. Each method returns once the jobs are stored."""

    #: Whether its methods need an event loop.
    awaits: bool

    async def open(self) -> None: ...
    async def enqueue(self, order: dict[str, Any], queue: str) -> None: ...
    async def enqueue_many(self, orders: list[dict[str, Any]], queue: str) -> None: ...
    async def close(self) -> None: ...


async def one_by_one(producer: Producer, queues: tuple[str, ...], *, jobs: int, sleep: float, every: float) -> None:
    """Enqueue so many to the queues in turn, one each `every` seconds or as fast as can be."""
    due = time.monotonic()
    for number in range(jobs):
        if every:
            due += every
            pause = max(0.0, due - time.monotonic())
            if producer.awaits:
                await asyncio.sleep(pause)
            else:
                time.sleep(pause)  # noqa: ASYNC251 -- this coroutine has no loop
        await producer.enqueue(order(sleep), queues[number % len(queues)])


async def many(producer: Producer, queues: tuple[str, ...], *, jobs: int, sleep: float, block: int) -> None:
    """Enqueue so many, a block at a time to the queues in turn."""
    for number, begun in enumerate(range(0, jobs, block)):
        orders = [order(sleep) for _ in range(min(block, jobs - begun))]
        await producer.enqueue_many(orders, queues[number % len(queues)])


async def serve(producer: Producer, answers: TextIO) -> None:
    """Do what the lines of the standard input say, until it ends."""
    queues = Setup.here().queues
    await producer.open()
    print("{}", file=answers, flush=True)
    works: dict[str, Callable[..., Coroutine[Any, Any, None]]] = {"one_by_one": one_by_one, "many": many}
    while line := await asyncio.to_thread(sys.stdin.readline) if producer.awaits else sys.stdin.readline():
        told = json.loads(line)
        work = works[told.pop("do")]
        worked, began = time.process_time(), time.perf_counter()
        await work(producer, queues, **told)
        spent = {"seconds": time.perf_counter() - began, "cpu": time.process_time() - worked}
        print(json.dumps(spent), file=answers, flush=True)
    await producer.close()


def finish(coroutine: Coroutine[Any, Any, None]) -> None:
    """Run one that waits for nothing, without a loop."""
    try:
        coroutine.send(None)
    except StopIteration:
        return
    raise RuntimeError("this producer waits for something: let it say so by `awaits`.")


def main() -> None:
    # Output of libraries must not be mistaken for an answer.
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    producer: Producer = import_module(f"benchmarks.peers.apps.{sys.argv[1]}").Producer()
    work = serve(producer, answers)
    if producer.awaits:
        asyncio.run(work)
    else:
        finish(work)


if __name__ == "__main__":
    main()
