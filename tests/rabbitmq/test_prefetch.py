"""The jobs that a slot holds behind the running one: how many, in which order, and when they go back."""

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Iterator
from typing import Any

import pytest
import uvloop

from palermo.brokers.rabbitmq import RabbitmqBroker
from palermo.brokers.rabbitmq.consuming.prefetch_buffer import PrefetchBuffer
from palermo.contract.broker import Consumer, Delivery
from palermo.core.lifecycle import Ack
from palermo.core.message import Message
from palermo.core.prefetch import MAX_WAIT_BEHIND, Prefetch
from palermo.core.queue_selection import QueueSelection
from palermo.core.topology import QUORUM
from tests.contract.tools import Report, until
from tests.rabbitmq.conftest import Open, becomes


class Worker:
    """One that takes jobs and has them run for as long as the test says."""

    def __init__(self, broker: RabbitmqBroker, consumer: Any) -> None:
        self.broker = broker
        self.consumer = consumer

    async def put(self, count: int) -> list[str]:
        ids = [f"{number:04}" for number in range(count)]
        await self.broker.publish_many(Message(id=id, queue="mail", job="shop.send", body=b"[]") for id in ids)
        return ids

    async def pending(self) -> int:
        (queue,) = [one for one in await self.broker.queues() if one.name == "mail"]
        return queue.pending

    async def end(self, delivery: Delivery) -> str:
        await self.consumer.settle(delivery, Ack())
        return delivery.message.id

    async def run(self) -> str:
        """One job, which takes no time."""
        return await self.end(await self.consumer.receive(1))


Start = Callable[..., Awaitable[Worker]]


@pytest.fixture
def work(runner: asyncio.Runner, another: Open) -> Iterator[Start]:
    """Starts a worker that holds this many jobs a slot."""
    consumers = list[Consumer]()

    async def work(prefetch: str, **changes: Any) -> Worker:
        broker, report = await another(**changes), Report("mail")
        mail, held = QueueSelection.parse("mail"), Prefetch.parse(prefetch)
        consumers.append(await broker.consume(mail, slots=1, tag=report.info.id, report=report, prefetch=held))
        return Worker(broker, consumers[-1])

    yield work
    for consumer in consumers:
        runner.run(consumer.close())


async def test_what_waits_behind_a_job_that_runs_long_goes_back_in_its_place(work: Start) -> None:
    at = await work("5")
    ids = await at.put(8)
    first = await at.consumer.receive(1)
    # Seven: all but the one that runs.
    await until(at.pending, 7)
    assert list(at.consumer.held()) == [first]
    assert [await at.end(first), *[await at.run() for _ in range(7)]] == ids
    assert await at.pending() == 0


async def test_auto_holds_more_than_one_only_while_jobs_are_short(work: Start) -> None:
    at = await work("auto")
    ids = await at.put(2_000)
    first = await at.consumer.receive(1)
    await until(at.pending, 1_999)
    ran = [await at.end(first)]
    slot = at.consumer._source.slots[0]
    # On a machine that has much else to do even these may be slow for a while.
    while slot._count == 1:
        ran.append(await at.run())
    slow = await at.consumer.receive(1)
    await until(at.pending, 2_000 - len(ran) - 1)
    assert not slot._backlog.waiting
    ran += [await at.end(slow), await at.run()]
    assert slot._count == 1
    ran += [await at.run() for _ in range(50)]
    assert ran == ids[: len(ran)]


@pytest.mark.parametrize("event", ["rest", "pause", "park", "end"])
async def test_what_is_held_goes_back_to_its_place_when_the_slot_takes_no_more(work: Start, event: str) -> None:
    at = await work("6")
    ids = await at.put(8)
    held = await at.consumer.receive(1)
    match event:
        case "rest":
            await at.end(held)
            await at.consumer.pause_slot(1)
        case "pause":
            await at.broker.pause("mail")
            await at.end(held)
        case "park":
            await at.consumer.free_slot(held)
        case "end":
            await at.consumer.close()
    await until(at.pending, 8 if event == "end" else 7)

    if event == "pause":
        await at.broker.resume("mail")
    if event != "end":
        assert [await at.run() for _ in range(7)] == ids[1:]


async def test_a_quorum_queue_counts_what_is_given_back_so_nothing_is_held(
    work: Start, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "palermo.rabbitmq")
    at = await work("8", queue_type=QUORUM)
    ids = await at.put(20)
    first = await at.consumer.receive(1)
    await until(at.pending, 19)
    assert [await at.end(first), *[await at.run() for _ in range(19)]] == ids
    assert at.consumer._source.slots[0]._count == 1
    assert caplog.text.count("prefetch is 1") == 1


@pytest.mark.parametrize("loop", [asyncio.new_event_loop, uvloop.new_event_loop])
def test_a_process_that_stood_still_is_excused_once(
    loop: Callable[[], asyncio.AbstractEventLoop],
) -> None:
    told: list[str] = []

    async def work() -> None:
        backlog = PrefetchBuffer(Prefetch(5), slow=lambda: told.append("slow"), resize=lambda: told.append("resize"))
        backlog.began()
        backlog.add(Delivery(message=Message(id="1", queue="mail", job="shop.send"), slot=1))
        _stand_still()
        backlog.ended()
        assert (backlog.wanted, told) == (5, [])

        backlog.began()
        _stand_still()
        await asyncio.sleep(0)
        assert (backlog.wanted, told) == (5, [])
        await becomes(lambda: told, ["slow"])
        assert backlog.wanted == 1

        backlog.began()
        _stand_still()
        backlog.add(Delivery(message=Message(id="2", queue="mail", job="shop.send"), slot=1))
        await becomes(lambda: told, ["slow", "slow"])

    with asyncio.Runner(loop_factory=loop) as runner:
        runner.run(work())


def _stand_still() -> None:
    """As under SIGSTOP: no timer of this process fires in its time."""
    time.sleep(5 * MAX_WAIT_BEHIND)
