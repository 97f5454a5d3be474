"""The quick way of plain jobs, the jobs a slot holds beside the one that runs, and the queue that is asked next."""

import asyncio
import logging
import random
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator
from functools import partial
from typing import Any

import pytest

from palermo.brokers.rabbitmq import RabbitmqBroker
from palermo.brokers.rabbitmq.amqp.connection import Connection
from palermo.brokers.rabbitmq.amqp.many_queues import probe_all
from palermo.brokers.rabbitmq.consuming.queue_order import QueueOrder
from palermo.contract.broker import Delivery
from palermo.core.lifecycle import Ack
from palermo.core.message import Message
from palermo.core.queue_selection import QueueSelection
from palermo.core.topology import QUORUM, amqp_queue
from palermo.errors import DeliveryLost
from tests.contract.tools import counts, empty_looks_are_forgotten, message, messages, stopped, until
from tests.contract.workers import Report, Worker, consume, take, take_and_ack
from tests.rabbitmq.conftest import Open


def jobs(count: int, queue: str, **fields: Any) -> list[Message]:
    return [message(f"{queue}-{number}", queue, **fields) for number in range(count)]


class Served:
    """A consumer with one slot that takes plain jobs as they come, and whose task waits in `receive` all the time."""

    def __init__(self, publisher: RabbitmqBroker, asking: Connection, consumer: Any) -> None:
        self.publisher = publisher
        self.consumer = consumer
        self.wants = True
        self.shown: asyncio.Queue[Delivery] = asyncio.Queue()
        self.waiting: asyncio.Future[Delivery]
        self._asking = asking
        self.receive()

    def take(self, delivery: Delivery) -> bool:
        self.shown.put_nowait(delivery)
        return self.wants

    def receive(self) -> None:
        self.waiting = asyncio.ensure_future(self.consumer.receive(1, self.take))

    async def put(self, one: Message) -> None:
        """Publish a job once the consumer asks for one."""
        slot = self.consumer._source.slots[0]
        await until(lambda: slot._asked is not None)
        await self.publisher.publish(one)

    async def next(self) -> Delivery:
        """The next job, by the quick way."""
        shown = asyncio.ensure_future(self.shown.get())
        await asyncio.wait({shown, self.waiting}, return_when=asyncio.FIRST_COMPLETED)
        if not shown.done():
            shown.cancel()
            raise AssertionError(f"came by receive: {self.waiting.result()}")
        return shown.result()

    async def run(self, count: int) -> list[str]:
        """Take and acknowledge this many; their ids."""
        found = []
        for _ in range(count):
            delivery = await self.next()
            found.append(delivery.message.id)
            self.consumer.acknowledge(delivery)
        return found

    async def busy(self, *messages: Message) -> Delivery:
        """A job that holds the slot; the others are there before it ends, and known to be."""
        await self.publisher.publish(message("first", messages[-1].queue))
        held = await self.next()
        await self.publisher.publish_many(messages)
        await empty_looks_are_forgotten()
        return held

    async def pending(self) -> int:
        return sum(queue.pending for queue in await self.publisher.queues())

    async def subscribed(self) -> list[str]:
        """The queues to which the worker is subscribed."""
        names = {self.name_of(queue): queue for queue in self.consumer._source.queues}
        probes = await probe_all(self._asking, names)
        return [names[name] for name, probe in probes.items() if probe.subscribed]

    async def waiting_in(self, queue: str) -> int:
        return (await self._asking.probe(self.name_of(queue))).messages

    def name_of(self, queue: str) -> str:
        return amqp_queue(self.publisher._exchange, queue)


Start = Callable[[str], Awaitable[Served]]


@pytest.fixture
def serve(runner: asyncio.Runner, another: Open, connection: Connection) -> Iterator[Start]:
    made = list[Served]()

    async def serve(queues: str) -> Served:
        report = Report(queues)
        selection, session = QueueSelection.parse(queues), await another()
        consumer = await session.consume(selection, slots=1, tag=report.info.id, report=report)
        made.append(Served(await another(), connection, consumer))
        return made[-1]

    async def end() -> None:
        for at in made:
            await stopped(at.waiting)
            await at.consumer.close()

    yield serve
    runner.run(end())


# -- from one queue


async def test_a_taken_job_outlives_rest_and_a_pause_and_then_jobs_come_again(serve: Start) -> None:
    at = await serve("jobs")
    await at.put(message("first"))
    delivery = await at.next()
    await at.consumer.pause_slot(1)
    await at.publisher.publish(message("second"))
    await at.publisher.pause("jobs")
    await at.publisher.resume("jobs")
    assert await at.pending() == 1
    at.consumer.acknowledge(delivery)

    # The first of a subscription may be there before anybody waits.
    shown = asyncio.ensure_future(at.shown.get())
    await asyncio.wait({shown, at.waiting}, return_when=asyncio.FIRST_COMPLETED)
    second = shown.result() if shown.done() else at.waiting.result()
    shown.cancel()
    assert second.message.id == "second"
    await at.consumer.settle(second, Ack())
    assert await at.pending() == 0


@pytest.mark.parametrize("queues", ["jobs", "a,jobs"])
async def test_a_taken_job_whose_channel_ends_is_lost_and_comes_again_first(serve: Start, queues: str) -> None:
    at = await serve(queues)
    await at.put(message("first"))
    delivery = await at.next()
    channel, tag = delivery.token
    channel.raw.basic_ack(tag + 100)  # which the broker answers by closing the channel
    await until(lambda: channel.is_open, False)
    await at.publisher.publish(message("second"))
    await until(at.pending, 2)
    assert not at.waiting.done()
    assert at.shown.empty()

    with pytest.raises(DeliveryLost):
        at.consumer.acknowledge(delivery)

    again = await at.waiting
    assert (again.message.id, again.redelivered) == ("first", True)
    await at.consumer.settle(again, Ack())


# -- from several queues


async def test_a_queue_that_fills_while_another_is_served_has_its_turn(serve: Start) -> None:
    at = await serve("high,empty,low")
    at.consumer.acknowledge(await at.busy(*jobs(30, "low")))
    await at.run(5)
    held = await at.next()
    await at.publisher.publish_many(jobs(2, "high"))
    await empty_looks_are_forgotten()
    at.consumer.acknowledge(held)
    assert await at.run(3) == ["high-0", "high-1", "low-6"]

    # And while it goes on without a pause, soon.
    await at.publisher.publish_many(jobs(1, "high"))
    assert sorted(await at.run(24)) == sorted(["high-0", *[f"low-{number}" for number in range(7, 30)]])


async def test_a_job_that_was_asked_for_too_many_goes_back_to_its_place(serve: Start) -> None:
    at = await serve("a,b")
    at.consumer.acknowledge(await at.busy(*jobs(5, "b")))
    assert await at.run(1) == ["b-0"]
    await stopped(at.waiting)  # with the next question on its way
    assert at.waiting.cancelled()
    await until(at.pending, 4)

    at.wants = False
    found = []
    for _ in range(4):
        delivery = await at.consumer.receive(1, at.take)
        found.append((delivery.message.id, delivery.redelivered))
        await at.consumer.settle(delivery, Ack())
    # Only the first may have been asked for before.
    assert [id for id, _ in found] == ["b-1", "b-2", "b-3", "b-4"]
    assert not any(again for _, again in found[1:])


async def test_a_slot_that_rests_asks_for_nothing_after_its_job(serve: Start) -> None:
    at = await serve("a,b")
    first = await at.busy(*jobs(2, "b"))
    await at.consumer.pause_slot(1)
    at.consumer.acknowledge(first)
    await stopped(at.waiting)
    assert await at.pending() == 2
    at.receive()
    delivery = await at.next()
    assert (delivery.message.id, delivery.redelivered) == ("b-0", False)
    # A worker that goes on before its job is over has not cancelled who waits.
    await at.consumer.pause_slot(1)
    at.consumer.acknowledge(delivery)
    assert await at.run(1) == ["b-1"]


# -- from so many that a worker keeps its subscriptions while a job runs

MANY = [f"q{number:02}" for number in range(64)]


async def begun(at: Served, queue: str) -> Delivery:
    """A job for the idle worker, which is subscribed to all its queues again."""
    await until(at.subscribed, MANY)
    await at.publisher.publish_many(jobs(1, queue))
    return await at.next()


@pytest.mark.slow
async def test_a_busy_worker_of_many_queues_gets_jobs_in_order(serve: Start) -> None:
    at = await serve(",".join(MANY))
    first = await begun(at, "q20")
    for queue in ("q40", "q03"):
        await at.publisher.publish_many(jobs(2, queue))
        await until(partial(at.waiting_in, queue), 2)
    await until(at.subscribed, [queue for queue in MANY if queue not in ("q03", "q20", "q40")])
    assert list(at.consumer.held()) == [first]

    at.wants = False
    at.consumer.acknowledge(first)
    found = [await at.waiting]
    for _ in range(3):
        await at.consumer.settle(found[-1], Ack())
        found.append(await at.consumer.receive(1))
    assert [delivery.message.id for delivery in found] == ["q03-0", "q03-1", "q40-0", "q40-1"]


@pytest.mark.slow
async def test_queues_among_many_that_are_deleted_do_the_others_no_harm(serve: Start, connection: Connection) -> None:
    at = await serve(",".join(MANY))
    at.consumer.acknowledge(await begun(at, "q20"))
    await until(at.subscribed, MANY)
    await connection.delete(at.name_of("q10"))
    at.consumer.acknowledge(await begun(at, "q21"))
    at.consumer.acknowledge(await begun(at, "q10"))

    held = await begun(at, "q22")
    await connection.delete(at.name_of("q11"))
    at.consumer.acknowledge(held)
    at.consumer.acknowledge(await begun(at, "q11"))

    await until(at.subscribed, MANY)
    # By a channel each: RabbitMQ deletes them side by side, and the last ones when the slot's channel is closing.
    deleted = [f"q{number}" for number in range(10, 58)]
    for channel, queue in [(await connection.channel(), queue) for queue in deleted]:
        channel.raw.queue_delete(at.name_of(queue))
    for queue in ("q60", "q10", "q57"):
        at.consumer.acknowledge(await begun(at, queue))


# -- jobs that wait in a slot


IDS = [f"jobs-{number}" for number in range(20)]


async def end(worker: Worker, delivery: Delivery) -> str:
    await worker.settle(delivery, Ack())
    return delivery.message.id


async def run(worker: Worker, count: int) -> list[str]:
    return [(await take_and_ack(worker)).id for _ in range(count)]


@pytest.mark.parametrize("event", ["rest", "pause", "adopt", "end"])
async def test_what_a_slot_holds_is_returned_to_its_place_when_it_takes_no_more(
    broker: RabbitmqBroker, event: str
) -> None:
    worker = await consume(broker, prefetch=6)
    await broker.publish_many(messages(8))
    running = await take(worker)
    # RabbitMQ has sent five more, which wait in the slot.
    if event != "end":
        ran = await end(worker, running)
        running = await take(worker)
        assert [ran, running.message.id] == IDS[:2]
    match event:
        case "rest":
            await end(worker, running)
            await worker.pause_slot(1)
        case "pause":
            await broker.pause("jobs")
            await end(worker, running)
        case "adopt":
            await worker.free_slot(running)
        case "end":
            await worker.close()
    await until(lambda: counts(broker), (8, 0) if event == "end" else (6, event == "adopt"))

    if event == "pause":
        await broker.resume("jobs")
    if event != "end":
        assert await run(worker, 6) == IDS[2:8]


@pytest.mark.parametrize(("queue_type", "held"), [("classic", 5), (QUORUM, 1)])
async def test_a_slot_holds_as_many_jobs_as_its_prefetch_but_one_of_a_quorum_queue(
    another: Open, caplog: pytest.LogCaptureFixture, queue_type: str, held: int
) -> None:
    caplog.set_level(logging.INFO, "palermo.rabbitmq")
    broker = await another(queue_type=queue_type)
    worker = await consume(broker, prefetch=5)
    await broker.publish_many(messages(20))
    assert await run(worker, 1) == IDS[:1]
    running = await take(worker)
    await until(lambda: counts(broker), (19 - held, 1))
    assert list(worker.held()) == [running]
    assert [await end(worker, running), *await run(worker, 18)] == IDS[1:]
    assert caplog.text.count("prefetch is 1") == (queue_type == QUORUM)


async def test_a_job_that_a_worker_holds_is_not_gone(broker: RabbitmqBroker, another: Open) -> None:
    worker = await consume(broker, prefetch=2)
    await broker.publish_many(messages(2))
    await worker._consumer.receive(1)  # not reported as running, as while a worker reads how a job's last runs ended
    await until(lambda: counts(broker), (0, 0))
    for id in IDS[:2]:
        found = await (await another()).find((id,))
        assert (found.jobs, "holds and has not started" in found.unseen[0]) == ((), True)


# -- the queue that is asked next, and how long one that was empty counts as empty


def ranked(text: str, *, chance: float = 0.0) -> QueueOrder:
    """All of them looked at by 0.0 s, and full."""
    made = QueueOrder(lambda: chance)
    made.serve(QueueSelection.parse(text).places(()))
    made.looked(made.empty, began=0.0, ended=0.0)
    return made


def test_what_is_new_is_looked_at_before_anything_is_asked() -> None:
    made = QueueOrder(random.random)
    assert (made.first(), made.stale(0.0)) == (None, False)

    made.serve(QueueSelection.parse("a,b,c").places(()))

    assert (made.empty, made.first(), made.stale(-1e9)) == (("a", "b", "c"), None, True)
    made.looked({"c"}, began=1.0, ended=1.0)
    assert (made.empty, made.first(), made.stale(1.0)) == (("a", "b"), "c", False)


def test_the_first_that_is_not_known_to_be_empty_is_asked() -> None:
    made = ranked("a,b,c")
    asked = []
    while (queue := made.first()) is not None:
        asked.append(queue)
        made.found_empty(queue, 1.0)
    assert asked == ["a", "b", "c"]

    made.found_full(["b", "no such queue"])
    assert made.first() == "b"
    made.forget()
    assert (made.first(), made.empty) == ("a", ())


def test_queues_no_longer_served_are_forgotten_and_others_stay_empty() -> None:
    made = ranked("a,b,c")
    made.found_empty("a", 1.0)
    made.found_empty("b", 1.0)

    made.serve(QueueSelection.parse("b,c").places(()))
    made.found_empty("a", 1.0)

    assert (made.empty, made.first(), made.stale(1.0)) == (("b",), "c", False)


@pytest.mark.parametrize(
    ("took", "due", "stale"),
    [(0.0, 0.005, 0.01), (0.0002, 0.005, 0.01), (0.002, 0.02, 0.04), (0.01, 0.05, 0.1), (1.0, 0.05, 0.1)],
)  # ten times what it took, at least 5 and at most 50 ms; and twice that
def test_empty_queues_are_looked_at_after_ten_times_what_that_takes(took: float, due: float, stale: float) -> None:
    made = ranked("a,b")
    made.found_empty("a", 1.0)
    made.looked((), began=2.0, ended=2.0 + took)
    made.found_empty("b", 2.0 + took + 0.001)  # what is known longest counts

    def at(seconds: float) -> tuple[bool, bool]:
        return made.due(2.0 + took + seconds), made.stale(2.0 + took + seconds)

    assert at(0.9 * due) == (False, False)
    assert at(1.1 * due) == (True, False)
    assert at(1.1 * stale) == (True, True)


def test_queues_that_tell_of_their_jobs_are_not_looked_at() -> None:
    made = ranked("a,b,c")
    for queue in ("a", "b", "c"):
        made.found_empty(queue, 1.0)
    made.watch(["a", "b"])
    assert (made.empty, made.first(), made.stale(2.0)) == (("c",), None, True)

    made.watch(["c"])
    made.found_full(["b"])
    assert (made.empty, made.first(), made.due(2.0)) == ((), "b", False)

    made.found_empty("b", 2.0)
    made.unwatch(["a", "c"])
    assert (made.empty, made.first(), made.stale(2.0)) == (("a", "c"), None, True)
    made.forget()
    assert (made.empty, made.first()) == ((), "a")


def test_shares_hold_among_those_that_have_jobs() -> None:
    chance = random.Random(7)
    made = QueueOrder(chance.random)
    made.serve(QueueSelection.parse("first,a:5,b:3,c:1,last").places(()))
    made.looked({"a", "b", "c", "last"}, began=0.0, ended=0.0)

    drawn = Counter(made.first() for _ in range(9_000))
    assert {queue: round(count / 1_000) for queue, count in drawn.items()} == {"a": 5, "b": 3, "c": 1}

    made.found_empty("a", 0.0)
    drawn = Counter(made.first() for _ in range(4_000))
    assert {queue: round(count / 1_000) for queue, count in drawn.items()} == {"b": 3, "c": 1}
    for queue in ("b", "c"):
        made.found_empty(queue, 0.0)
    assert made.first() == "last"
