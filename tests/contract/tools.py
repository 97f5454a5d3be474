"""The tools of the contract tests: messages, what a broker holds, and patience."""

import asyncio
import uuid
from collections import Counter
from collections.abc import Awaitable, Callable, Coroutine
from inspect import isawaitable
from typing import Any

from palermo.brokers.redis.broker import RedisBroker
from palermo.brokers.redis.jobs import id_in
from palermo.brokers.redis.workers import LEASE
from palermo.contract.broker import Broker, QueueInfo
from palermo.contract.sweep import Keep, SweepDecision
from palermo.core.failure import Failure
from palermo.core.lifecycle import Fail, fail
from palermo.core.message import Message
from palermo.errors import NotBrowsable
from tests.contract.workers import consume, take
from tests.helpers import HANGS, Stopwatch

Open = Callable[..., Coroutine[Any, Any, Broker]]
OpenRedis = Callable[..., Coroutine[Any, Any, RedisBroker]]

#: Seconds that a session may take for one call: this is about what is done, and not about how quickly.
PATIENT = 60.0

_TRACE = "Traceback …\nValueError"
FAILURE = Failure(
    exception_class="builtins.ValueError", message="wrong: ü", stack_trace=_TRACE, failed_at=1_700_000_000
)


def message(id: str = "", queue: str = "jobs", **more: Any) -> Message:
    return Message(**{"id": id or str(uuid.uuid4()), "queue": queue, "job": "shop.mail.send", "body": b"[1]"} | more)


def messages(count: int, queue: str = "jobs") -> list[Message]:
    return [message(f"{queue}-{number}", queue) for number in range(count)]


async def put_into_failed(broker: Broker, jobs: list[Message]) -> None:
    """By way of a worker, as there is no other."""
    await broker.publish_many(jobs)
    consumer = await consume(broker, ",".join(dict.fromkeys(job.queue for job in jobs)))
    for _ in jobs:
        delivery = await take(consumer)
        await consumer.settle(delivery, Fail(fail(delivery.message, FAILURE, worker="pid:1@h/worker-1")))
    await consumer.close()


async def queue(broker: Broker, name: str = "jobs") -> QueueInfo | None:
    return next((info for info in await broker.queues() if info.name == name), None)


async def counts(broker: Broker, name: str = "jobs") -> tuple[int, int] | None:
    """Jobs that wait in a queue, and jobs that a worker holds."""
    info = await queue(broker, name)
    return None if info is None else (info.pending, info.in_progress)


async def ids(broker: Broker, name: str = "jobs") -> list[str]:
    return [found.id for found in await look(broker, name)]


async def look(broker: Broker, name: str = "jobs") -> list[Message]:
    """All messages of a queue; of one that may not be browsed by way of a sweep that keeps all."""
    try:
        return list((await broker.browse(name, limit=10_000)).messages)
    except NotBrowsable:
        found: list[Message] = []

        def keep(one: Message) -> SweepDecision:
            found.append(one)
            return Keep()

        await broker.sweep(name, keep)
        return found


async def until(probe: Callable[[], object], wanted: object = True) -> None:
    """Wait for the probe, which may be a coroutine, to give what is wanted; some brokers count a moment late."""
    watch = Stopwatch()
    while (found := await result if isawaitable(result := probe()) else result) != wanted:
        assert not watch.is_over(HANGS), f"still {found!r} and not {wanted!r} after {HANGS} s"
        await asyncio.sleep(0.02)


async def stopped(task: "asyncio.Future[Any]") -> None:
    """Cancel the task, and wait until it has ended."""
    task.cancel()
    await asyncio.wait({task})


async def in_time(measure: Callable[[], Awaitable[float]], *, within: float) -> None:
    """Measure until it took less than so many seconds, five times at most.

    A machine that stands still spoils one measurement, and code that is too slow spoils all.
    """
    took: list[float] = []
    while not took or took[-1] >= within:
        assert len(took) < 5, f"it took {took} s, and is to take less than {within} s"
        took.append(await measure())


async def end_all_leases(broker: RedisBroker) -> None:
    """What the passing of four seconds does to workers on Redis that stand still."""
    leases = broker._store.key("leases")
    for worker in await broker._store.call("ZRANGE", leases, 0, -1):
        await broker._store.call("ZADD", leases, 0, worker)
    # Other workers renew theirs meanwhile: nobody waits for those that stand still to come back.
    await broker._store.call("DEL", broker._store.key("renewals"))
    await broker._store.run("worker", "reap", "", LEASE)


async def places(broker: RedisBroker) -> Counter[str]:
    """In how many places on Redis each job is; "" is a place whose job is not there."""
    store = broker._store
    numbers: list[bytes] = await store.call("ZRANGE", store.key("later"), 0, -1)
    for kind in ("queue", "tenant"):
        for key in await store.call("KEYS", store.key(f"{kind}:*")):
            numbers += await store.call("ZRANGE", key, 0, -1)
    for key in await store.call("KEYS", store.key("held:*")):
        numbers += await store.call("HKEYS", key)
    blobs = [await store.call("HGET", store.key("jobs"), number) for number in numbers]
    return Counter("" if blob is None else id_in(blob) for blob in blobs)


async def empty_looks_are_forgotten() -> None:
    """A queue found empty may count as empty for up to 100 ms; that is the one wait the contract itself grants."""
    await asyncio.sleep(0.11)
