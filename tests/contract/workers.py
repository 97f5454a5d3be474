"""Workers of the contract tests, and what their slots take."""

import asyncio
from typing import Any

import pytest
from msgspec.structs import replace

from palermo.contract.broker import Broker, Consumer, Delivery
from palermo.contract.worker_info import RunningJob, WorkerInfo
from palermo.core.lifecycle import Ack, Settlement
from palermo.core.limits import demand_of
from palermo.core.message import Message
from palermo.core.queue_selection import QueueSelection
from tests.helpers import HANGS


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

    def __getattr__(self, name: str) -> Any:
        """All else is the consumer's own."""
        return getattr(self._consumer, name)

    def _running(self, *jobs: RunningJob) -> None:
        self._report.info = replace(self._report.info, state="working" if jobs else "idle", jobs=jobs)


async def consume(
    broker: Broker, queues: str = "jobs", *, slots: int = 1, report: Report | None = None, **more: Any
) -> Worker:
    """A consumer of these queues; `more` are arguments of `Broker.consume`."""
    report = report or Report(queues, slots=slots)
    selection = QueueSelection.parse(queues)
    return Worker(await broker.consume(selection, slots=slots, tag=report.info.id, report=report, **more), report)


async def take(consumer: Consumer, slot: int = 1, *, within: float = HANGS) -> Delivery:
    async with asyncio.timeout(within):
        return await consumer.receive(slot)


async def at_work(broker: Broker, job: Message, *, on: Broker | None = None, **more: Any) -> tuple[Worker, Delivery]:
    """Publish a job, and have a worker of its queue take it, on another session if one is given."""
    await broker.publish(job)
    worker = await consume(on or broker, job.queue, **more)
    return worker, await take(worker)


async def take_and_ack(consumer: Consumer, slot: int = 1) -> Message:
    delivery = await take(consumer, slot)
    await consumer.settle(delivery, Ack())
    return delivery.message


async def nothing_for(consumer: Consumer, slot: int = 1, *, within: float = 0.2) -> None:
    with pytest.raises(TimeoutError):
        await take(consumer, slot, within=within)
