"""The tools of the contract tests: messages, workers, and patience."""

import asyncio
import uuid
from collections import Counter
from collections.abc import Awaitable, Callable, Coroutine
from inspect import isawaitable
from typing import Any

import pytest
from msgspec.structs import replace

from palermo.brokers.redis.broker import RedisBroker
from palermo.brokers.redis.jobs import id_in
from palermo.brokers.redis.workers import LEASE
from palermo.contract.broker import Broker, Consumer, Delivery, QueueInfo
from palermo.contract.sweep import Keep, SweepDecision
from palermo.contract.worker_info import OnCommand, RunningJob, WorkerInfo, ignore_command
from palermo.core.failure import Failure
from palermo.core.lifecycle import Ack, Fail, Settlement, fail
from palermo.core.limits import demand_of
from palermo.core.message import Message
from palermo.core.queue_selection import QueueSelection
from palermo.errors import NotBrowsable
from tests.helpers import HANGS, Stopwatch

Open = Callable[[], Coroutine[Any, Any, Broker]]
OpenRedis = Callable[..., Coroutine[Any, Any, RedisBroker]]

#: Seconds that a session may take for one call: this is about what is done, and not about how quickly.
PATIENT = 60.0

FAILURE = Failure(
    exception_class="builtins.ValueError",
    message="wrong: ü",
    stack_trace="Traceback …\nValueError",
    failed_at=1_700_000_000,
)


def message(id: str = "", queue: str = "jobs", **more: Any) -> Message:
    return Message(**{"id": id or str(uuid.uuid4()), "queue": queue, "job": "shop.mail.send", "body": b"[1]"} | more)


def messages(count: int, queue: str = "jobs") -> list[Message]:
    return [message(f"{queue}-{number}", queue) for number in range(count)]


class Report:
    """What a worker says of itself; a test may change it."""

    def __init__(self, queues: str, *, slots: int = 1, pid: int = 4711) -> None:
        place = {"id": f"pid:{pid}@example", "host": "example", "pid": pid, "started_at": 1_700_000_000.5}
        self.info = WorkerInfo(**place, queues=tuple(queues.split(",")), slots=slots, state="idle")

    def __call__(self) -> WorkerInfo:
        return self.info


class Worker:
    """A consumer whose report tells the truth: what is taken and not yet settled is running."""

    def __init__(self, consumer: Consumer, report: Report) -> None:
        self._consumer = consumer
        self._report = report

    async def receive(self, slot: int) -> Delivery:
        delivery = await self._consumer.receive(slot)
        found = delivery.message
        now = RunningJob(id=found.id, job=found.job, queue=found.queue, slot=slot, started_at=1_700_000_001.5)
        self._running(*self._report.info.jobs, now)
        return delivery

    async def admit(self, delivery: Delivery, *, copy: bool = False) -> Delivery | None:
        admitted = await self._consumer.admit(delivery, copy=copy)
        if admitted is None:
            self._running(*(job for job in self._report.info.jobs if job.slot != delivery.slot))
        return admitted

    async def permit(self, delivery: Delivery) -> float | None:
        demand = demand_of(delivery.message)
        asked = () if demand is None else ((demand.key, delivery.message.id),)
        before = self._report.info
        self._report.info = replace(before, asks=(*before.asks, *asked))
        try:
            wait = await self._consumer.permit(delivery)
        finally:
            now = self._report.info
            self._report.info = replace(now, asks=tuple(one for one in now.asks if one not in asked))
        if wait is None:
            self._ended(delivery)
        else:
            self._report.info = replace(self._report.info, permits=(*self._report.info.permits, *asked))
        return wait

    async def settle(self, delivery: Delivery, settlement: Settlement) -> None:
        await self._consumer.settle(delivery, settlement)
        self._ended(delivery)

    def _ended(self, delivery: Delivery) -> None:
        permits = tuple(one for one in self._report.info.permits if one[1] != delivery.message.id)
        self._report.info = replace(self._report.info, permits=permits)
        self._running(*(job for job in self._report.info.jobs if job.slot != delivery.slot))

    async def next_for_batch(self, delivery: Delivery, *, wait: float) -> Delivery | None:
        return await self._consumer.next_for_batch(delivery, wait=wait)

    async def free_slot(self, delivery: Delivery) -> None:
        await self._consumer.free_slot(delivery)

    async def pause_slot(self, slot: int) -> None:
        await self._consumer.pause_slot(slot)

    async def close(self) -> None:
        await self._consumer.close()

    def _running(self, *jobs: RunningJob) -> None:
        self._report.info = replace(self._report.info, state="working" if jobs else "idle", jobs=jobs)


async def consume(
    broker: Broker,
    queues: str = "jobs",
    *,
    slots: int = 1,
    report: Report | None = None,
    on_command: OnCommand = ignore_command,
) -> Worker:
    report = report or Report(queues, slots=slots)
    selection = QueueSelection.parse(queues)
    tag = report.info.id
    return Worker(await broker.consume(selection, slots=slots, tag=tag, report=report, on_command=on_command), report)


async def take(consumer: Consumer, slot: int = 1, *, within: float = HANGS) -> Delivery:
    async with asyncio.timeout(within):
        return await consumer.receive(slot)


async def take_and_ack(consumer: Consumer, slot: int = 1) -> Message:
    delivery = await take(consumer, slot)
    await consumer.settle(delivery, Ack())
    return delivery.message


async def nothing_for(consumer: Consumer, slot: int = 1, *, within: float = 0.2) -> None:
    with pytest.raises(TimeoutError):
        await take(consumer, slot, within=within)


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


async def until(probe: Callable[[], object], wanted: object) -> None:
    """Wait for the probe, which may be a coroutine, to give what is wanted; some brokers count a moment late."""
    watch = Stopwatch()
    while (found := await result if isawaitable(result := probe()) else result) != wanted:
        assert not watch.is_over(HANGS), f"still {found!r} and not {wanted!r} after {HANGS} s"
        await asyncio.sleep(0.02)


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
