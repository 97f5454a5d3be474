"""A process that enqueues jobs with one system, on request: `python -m benchmarks.peers.producer SYSTEM`.

Reads requests from its standard input, one JSON object per line, and answers each with a line on its standard output.
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
    """Enqueue this number of jobs to the queues in turn, one every `every` seconds; 0 means without pauses."""
    due = time.monotonic()
    for number in range(jobs):
        if every:
            due += every
            pause = max(0.0, due - time.monotonic())
            if producer.awaits:
                await asyncio.sleep(pause)
            else:
                time.sleep(pause)  # noqa: ASYNC251 -- this coroutine runs without a loop
        await producer.enqueue(order(sleep), queues[number % len(queues)])


async def many(producer: Producer, queues: tuple[str, ...], *, jobs: int, sleep: float, block: int) -> None:
    """Enqueue this number of jobs, one block at a time, to the queues in turn."""
    for number, begun in enumerate(range(0, jobs, block)):
        orders = [order(sleep) for _ in range(min(block, jobs - begun))]
        await producer.enqueue_many(orders, queues[number % len(queues)])


async def serve(producer: Producer, answers: TextIO) -> None:
    """Execute the requests from the standard input until it ends."""
    queues = Setup.here().queues
    await producer.open()
    print("{}", file=answers, flush=True)
    works: dict[str, Callable[..., Coroutine[Any, Any, None]]] = {"one_by_one": one_by_one, "many": many}
    while line := await asyncio.to_thread(sys.stdin.readline) if producer.awaits else sys.stdin.readline():
        request = json.loads(line)
        work = works[request.pop("do")]
        worked, began = time.process_time(), time.perf_counter()
        await work(producer, queues, **request)
        spent = {"seconds": time.perf_counter() - began, "cpu": time.process_time() - worked}
        print(json.dumps(spent), file=answers, flush=True)
    await producer.close()


def finish(coroutine: Coroutine[Any, Any, None]) -> None:
    """Run a coroutine that never waits, without an event loop."""
    try:
        coroutine.send(None)
    except StopIteration:
        return
    raise RuntimeError("this producer waits for something. Set its `awaits` to True.")


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
