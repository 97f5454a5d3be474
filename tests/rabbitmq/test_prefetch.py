"""The jobs that a slot holds while another one runs in it: how many, in which order, and when they are returned."""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterator

import pytest

from palermo.brokers.rabbitmq import RabbitmqBroker
from palermo.contract.broker import Consumer, Delivery
from palermo.core.lifecycle import Ack
from palermo.core.message import Message
from palermo.core.queue_selection import QueueSelection
from palermo.core.topology import QUORUM
from tests.contract.tools import until
from tests.contract.workers import Report
from tests.rabbitmq.conftest import Open


class Worker:
    def __init__(self, broker: RabbitmqBroker, consumer: Consumer) -> None:
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

    async def run(self, count: int) -> list[str]:
        return [await self.end(await self.consumer.receive(1)) for _ in range(count)]


Start = Callable[..., Awaitable[Worker]]


@pytest.fixture
def work(runner: asyncio.Runner, another: Open) -> Iterator[Start]:
    """Starts a worker whose slot holds this number of jobs."""
    consumers = list[Consumer]()

    async def work(prefetch: int, queue_type: str) -> Worker:
        broker, report = await another(queue_type=queue_type), Report("mail")
        mail = QueueSelection.parse("mail")
        consumers.append(await broker.consume(mail, slots=1, tag=report.info.id, report=report, prefetch=prefetch))
        return Worker(broker, consumers[-1])

    yield work
    for consumer in consumers:
        runner.run(consumer.close())


@pytest.mark.parametrize("event", ["rest", "pause", "adopt", "end"])
async def test_what_a_slot_holds_is_returned_to_its_place_when_it_takes_no_more(work: Start, event: str) -> None:
    at = await work(6, "classic")
    ids = await at.put(8)
    running = await at.consumer.receive(1)
    # RabbitMQ has sent five more, which wait in the slot.
    if event != "end":
        ran = await at.end(running)
        running = await at.consumer.receive(1)
        assert [ran, running.message.id] == ids[:2]
    match event:
        case "rest":
            await at.end(running)
            await at.consumer.pause_slot(1)
        case "pause":
            await at.broker.pause("mail")
            await at.end(running)
        case "adopt":
            await at.consumer.free_slot(running)
        case "end":
            await at.consumer.close()
    await until(at.pending, 8 if event == "end" else 6)

    if event == "pause":
        await at.broker.resume("mail")
    if event != "end":
        assert await at.run(6) == ids[2:]


@pytest.mark.parametrize(("queue_type", "held"), [("classic", 5), (QUORUM, 1)])
async def test_a_slot_holds_as_many_jobs_as_its_prefetch_but_one_of_a_quorum_queue(
    work: Start, caplog: pytest.LogCaptureFixture, queue_type: str, held: int
) -> None:
    caplog.set_level(logging.INFO, "palermo.rabbitmq")
    at = await work(5, queue_type)
    ids = await at.put(20)
    assert await at.run(1) == ids[:1]
    running = await at.consumer.receive(1)
    await until(at.pending, 19 - held)
    assert list(at.consumer.held()) == [running]  # type: ignore[attr-defined]
    assert [await at.end(running), *await at.run(18)] == ids[1:]
    assert caplog.text.count("prefetch is 1") == (queue_type == QUORUM)
