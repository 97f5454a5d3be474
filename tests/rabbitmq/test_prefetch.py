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
from tests.rabbitmq.conftest import Open


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

    async def run(self, slot: int = 1) -> str:
        """One job, which takes no time."""
        return await self.end(await self.consumer.receive(slot))


Start = Callable[..., Awaitable[Worker]]


@pytest.fixture
def work(runner: asyncio.Runner, another: Open) -> Iterator[Start]:
    """Starts a worker that holds this many jobs a slot."""
    consumers = list[Consumer]()

    async def work(prefetch: str, slots: int = 1, **changes: Any) -> Worker:
        broker, report = await another(**changes), Report("mail", slots=slots)
        consumers.append(
            await broker.consume(
                QueueSelection.parse("mail"),
                slots=slots,
                tag=report.info.id,
                report=report,
                prefetch=Prefetch.parse(prefetch),
            )
        )
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


async def test_another_slot_takes_what_waited_behind_a_long_job(work: Start) -> None:
    at = await work("4", slots=2)
    ids = await at.put(4)
    first = await at.consumer.receive(1)
    others = [await at.run(slot=2) for _ in range(3)]
    assert sorted([first.message.id, *others]) == ids
    assert await at.end(first) == first.message.id
    assert await at.pending() == 0


async def test_short_jobs_come_from_what_is_held_in_their_order(work: Start) -> None:
    at = await work("16")
    ids = await at.put(300)
    assert [await at.run() for _ in range(300)] == ids


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


async def test_whoever_takes_at_once_is_shown_the_next_job_once_it_is_free(work: Start) -> None:
    at = await work("8")
    shown: list[str] = []

    def take(delivery: Delivery) -> bool:
        shown.append(delivery.message.id)
        asyncio.get_running_loop().call_soon(end, delivery)
        return True

    def end(delivery: Delivery) -> None:
        at.consumer.acknowledge(delivery)

    ids, ordinary = list[str](), list[str]()
    # What comes before anybody waits goes the ordinary way, and so does what was given back on a busy machine.
    while len(shown) <= 3:
        ids += await at.put(100)
        while len(shown) + len(ordinary) < len(ids):
            waiting = asyncio.ensure_future(at.consumer.receive(1, take))
            while not waiting.done() and len(shown) + len(ordinary) < len(ids):
                await asyncio.wait({waiting}, timeout=0.05)
            if waiting.done():
                ordinary.append(await at.end(waiting.result()))
        waiting.cancel()
        await asyncio.wait({waiting})
    assert sorted([*shown, *ordinary]) == sorted(ids)


async def test_what_is_held_goes_back_when_the_slot_rests_or_the_worker_ends(
    work: Start,
) -> None:
    at = await work("6")
    ids = await at.put(10)
    first = await at.end(await at.consumer.receive(1))
    await at.consumer.pause_slot(1)
    await until(at.pending, 9)
    assert [first, await at.run()] == ids[:2]
    last = await at.consumer.receive(1)
    await at.consumer.close()
    await until(at.pending, 8)
    assert last.message.id == ids[2]


async def test_what_is_held_goes_back_when_the_queue_is_paused(work: Start) -> None:
    at = await work("6")
    ids = await at.put(6)
    first = await at.consumer.receive(1)
    await at.broker.pause("mail")
    await until(at.pending, 5)
    await at.end(first)
    await at.broker.resume("mail")
    assert [await at.run() for _ in range(5)] == ids[1:]


async def test_what_is_held_behind_a_parked_job_goes_back(work: Start) -> None:
    at = await work("4")
    ids = await at.put(5)
    parked = await at.consumer.receive(1)
    await at.consumer.free_slot(parked)
    assert [await at.run() for _ in range(4)] == ids[1:]
    assert await at.end(parked) == ids[0]
    assert await at.pending() == 0


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

    async def heard() -> list[str]:
        return told

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
        await until(heard, ["slow"])
        assert backlog.wanted == 1

        backlog.began()
        _stand_still()
        backlog.add(Delivery(message=Message(id="2", queue="mail", job="shop.send"), slot=1))
        await until(heard, ["slow", "slow"])

    with asyncio.Runner(loop_factory=loop) as runner:
        runner.run(work())


def _stand_still() -> None:
    """As under SIGSTOP: no timer of this process fires in its time."""
    time.sleep(5 * MAX_WAIT_BEHIND)
