"""Kills a broker with delayed jobs: publishes all of them first, then kills it, and looks for every id."""

import asyncio
import random
import time
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass

from palermo.contract.broker import Broker, SessionParameters, open_broker
from palermo.contract.scheduled import ScheduledFilter
from palermo.contract.worker_info import WorkerInfo
from palermo.core.address import parse_url
from palermo.core.lifecycle import Ack
from palermo.core.message import Message
from palermo.core.queue_selection import QueueSelection
from palermo.errors import PalermoError
from palermo.worker.handle import start_worker
from tests.helpers import Stopwatch
from tests.rabbitmq_node import Node, url_of

SLOTS = 50


@dataclass(frozen=True, slots=True, kw_only=True)
class Survival:
    """The results of killing a broker with delayed jobs."""

    lost: int
    early: int
    doubled: int
    #: Number of late jobs, and where they are: still scheduled, or in their queue.
    missing: int
    scheduled: int
    waiting: int
    #: Seconds by which the last job was late, counted from its due time or the broker's restart, whichever is later.
    #: Doesn't count time stolen by other programs on the machine.
    last: float


class Receiver:
    """Takes jobs, reconnecting as needed, and records when each arrived first."""

    def __init__(self, session: SessionParameters) -> None:
        self.came: Counter[str] = Counter()
        self.early = 0
        self.late: list[float] = []
        #: When the last new id arrived.
        self.first_at = 0.0
        self._session = session

    async def run(self) -> None:
        while True:
            try:
                broker = await open_broker(self._session)
            except PalermoError:
                await asyncio.sleep(0.1)
                continue
            try:
                await self._serve(broker)
            except PalermoError:
                pass
            finally:
                with suppress(PalermoError, TimeoutError):
                    async with asyncio.timeout(2):
                        await broker.close()

    async def _serve(self, broker: Broker) -> None:
        info = WorkerInfo(
            id="pid:1@receiver", host="receiver", pid=1, queues=("jobs",), slots=SLOTS, state="idle", started_at=1.0
        )
        consumer = await broker.consume(QueueSelection(("jobs",)), slots=SLOTS, tag=info.id, report=lambda: info)

        async def slot(number: int) -> None:
            while True:
                delivery = await consumer.receive(number)
                self._note(delivery.message)
                await consumer.settle(delivery, Ack())

        slots = [asyncio.ensure_future(slot(number)) for number in range(1, SLOTS + 1)]
        try:
            await asyncio.gather(*slots)
        finally:
            for task in slots:
                task.cancel()

    def _note(self, message: Message) -> None:
        now = time.time()
        self.early += now < (message.run_at or 0)
        if not self.came[message.id]:
            self.first_at = now
            self.late.append(now - (message.run_at or 0))
        self.came[message.id] += 1


async def until(probe: Callable[[], object], *, within: float = 600.0) -> None:
    """Wait until the probe is true, at most `within` seconds."""
    deadline = time.monotonic() + within
    while not probe() and time.monotonic() < deadline:  # noqa: ASYNC110 - nobody tells
        await asyncio.sleep(0.05)


async def survive(node: Node, exchange: str, *, jobs: int, spread: float, kill_after: float, seed: int) -> Survival:
    """Publish jobs that are due within 0.5 to `spread` seconds, kill and restart the broker, and count."""
    session = SessionParameters(address=parse_url(url_of(node)), exchange=exchange, timeout=30.0)
    chance = random.Random(seed)
    receiver = Receiver(session)
    with start_worker(["string"], queues="idle", url=url_of(node), exchange=exchange, log_level="error"):
        broker = await open_broker(session)
        begun = time.time()
        sent = [
            Message(
                id=f"{seed}-{number}",
                queue="jobs",
                job="nobody.runs.it",
                body=b"[" + b" " * 1_000 + b"]",
                run_at=begun + 3 + chance.uniform(0.5, spread),
            )
            for number in range(jobs)
        ]
        await broker.publish_many(sent)
        receiving = asyncio.ensure_future(receiver.run())
        await asyncio.sleep(max(0.0, begun + 3 + kill_after - time.time()))
        await asyncio.to_thread(node.kill9)
        await asyncio.to_thread(node.start)
        back, watch = time.time(), Stopwatch()
        due = max(back, begun + 3 + spread)
        await until(lambda: len(receiver.came) == jobs, within=due + 120 - time.time())
        missing, last = jobs - len(receiver.came), receiver.first_at - due - watch.stalled()
        # Duplicates may arrive late.
        await asyncio.sleep(1.0)
        receiving.cancel()
        await asyncio.wait({receiving})
        with suppress(PalermoError):
            await broker.close()
    looking = await open_broker(session)
    scheduled = (await looking.scheduled(ScheduledFilter(), limit=0)).total
    waiting = sum(info.pending for info in await looking.queues() if info.name == "jobs")
    if missing:
        left = {one.id for one in (await looking.browse("jobs", limit=jobs)).messages}
        left |= {one.id for one in (await looking.scheduled(ScheduledFilter(), limit=jobs)).messages}
        receiver.came.update(dict.fromkeys(left - receiver.came.keys(), 1))
    await looking.close()
    doubled = sum(count > 1 for count in receiver.came.values())
    return Survival(
        lost=jobs - len(receiver.came),
        early=receiver.early,
        doubled=doubled,
        missing=missing,
        scheduled=scheduled,
        waiting=waiting,
        last=last,
    )
