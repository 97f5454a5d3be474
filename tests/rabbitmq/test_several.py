"""The quick way of plain jobs from several queues: asked for in order, one at a time, given back where it must be."""

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from functools import partial
from typing import Any

import pytest

from palermo.brokers.rabbitmq import RabbitmqBroker
from palermo.brokers.rabbitmq.amqp.many_queues import probe_all
from palermo.brokers.rabbitmq.consuming import idle_subscriptions
from palermo.contract.broker import Delivery, SessionParameters, open_broker
from palermo.contract.worker_info import WorkerInfo
from palermo.core.lifecycle import Ack
from palermo.core.message import Message
from palermo.core.queue_selection import QueueSelection
from palermo.core.topology import amqp_queue
from palermo.errors import DeliveryLost, NotFound
from tests.contract.tools import empty_looks_are_forgotten, until
from tests.rabbitmq.test_express import Taker, answer


def jobs(count: int, queue: str, **fields: Any) -> list[Message]:
    return [
        Message(**{"id": f"{queue}-{number}", "queue": queue, "job": "shop.send", "body": b"[1]", **fields})
        for number in range(count)
    ]


class Several:
    """A consumer with one slot that takes plain jobs as they come, and whose task waits in `receive` all the time."""

    def __init__(self, broker: RabbitmqBroker, publisher: RabbitmqBroker, consumer: Any) -> None:
        self.broker = broker
        self.publisher = publisher
        self.consumer = consumer
        self.take = Taker()
        self.waiting: asyncio.Future[Delivery]
        self.receive()

    def receive(self) -> None:
        self.waiting = asyncio.ensure_future(self.consumer.receive(1, self.take))

    async def next(self) -> Delivery:
        shown = asyncio.ensure_future(self.take.shown.get())
        await asyncio.wait({shown, self.waiting}, return_when=asyncio.FIRST_COMPLETED)
        if not shown.done():
            shown.cancel()
            raise AssertionError(f"came by receive: {self.waiting.result()}")
        return shown.result()

    async def run(self, count: int) -> list[str]:
        """Take and acknowledge so many; their ids."""
        found = []
        for _ in range(count):
            delivery = await self.next()
            found.append(delivery.message.id)
            self.acknowledge(delivery)
        return found

    async def busy(self, *messages: Message) -> Delivery:
        """A job that holds the slot; the others are there before it ends, and known to be."""
        await self.publisher.publish(Message(id="first", queue=messages[-1].queue, job="shop.send", body=b"[1]"))
        held = await self.next()
        await self.publisher.publish_many(messages)
        await empty_looks_are_forgotten()
        return held

    def acknowledge(self, delivery: Delivery) -> None:
        self.consumer.acknowledge(delivery)

    async def pending(self) -> int:
        return sum(queue.pending for queue in await self.publisher.queues())

    async def exists(self, queue: str) -> bool:
        channel = await self.publisher._connection.channel()
        try:
            await channel.call(channel.raw.queue_declare, amqp_queue(self.publisher._exchange, queue), passive=True)
        except NotFound:
            return False
        await channel.close()
        return True

    async def subscribed(self) -> list[str]:
        """The queues to which the worker is subscribed."""
        names = {amqp_queue(self.publisher._exchange, queue): queue for queue in self.consumer._source.queues}
        probes = await probe_all(self.publisher._connection, names)
        return [names[name] for name, probe in probes.items() if probe.subscribed]

    async def waiting_in(self, queue: str) -> int:
        counted = await self.publisher._declarer.count(queue)
        return 0 if counted is None else counted[0]

    async def behind_its_back(self, what: str, queue: str) -> None:
        channel = await self.publisher._connection.channel()
        await channel.call(getattr(channel.raw, what), amqp_queue(self.publisher._exchange, queue))
        await channel.close()


Start = Callable[[str], AbstractAsyncContextManager[Several]]


@pytest.fixture
def several(session: SessionParameters) -> Start:
    @asynccontextmanager
    async def several(queues: str) -> AsyncIterator[Several]:
        brokers = [await open_broker(session) for _ in range(2)]
        broker, publisher = brokers
        assert isinstance(broker, RabbitmqBroker)
        assert isinstance(publisher, RabbitmqBroker)
        now = time.time()
        info = WorkerInfo(id="pid:1@h", host="h", pid=1, queues=(queues,), slots=1, state="idle", started_at=now)
        consumer = await broker.consume(QueueSelection.parse(queues), slots=1, tag="pid:1@h", report=lambda: info)
        made = Several(broker, publisher, consumer)
        try:
            async with asyncio.timeout(100):
                yield made
        finally:
            made.waiting.cancel()
            await asyncio.wait({made.waiting})
            await consumer.close()
            for one in brokers:
                await one.close()

    return several


async def test_plain_jobs_of_all_queues_pass_in_order_while_receive_waits(several: Start) -> None:
    async with several("a,b,c,d") as at:
        large = jobs(1, "d", body=b"x" * 300_000)
        first = await at.busy(*jobs(2, "c"), *jobs(2, "a"), *large, *jobs(2, "b"))
        assert list(at.consumer.held()) == [first]
        assert await at.pending() == 7
        at.acknowledge(first)
        with pytest.raises(DeliveryLost):
            at.acknowledge(first)

        assert await at.run(7) == ["a-0", "a-1", "b-0", "b-1", "c-0", "c-1", "d-0"]
        await until(at.pending, 0)
        assert not at.waiting.done()


async def test_a_queue_that_fills_while_another_is_served_has_its_turn(several: Start) -> None:
    async with several("high,empty,low") as at:
        at.acknowledge(await at.busy(*jobs(30, "low")))
        await at.run(5)
        held = await at.next()
        await at.publisher.publish_many(jobs(2, "high"))
        await empty_looks_are_forgotten()
        at.acknowledge(held)
        assert await at.run(3) == ["high-0", "high-1", "low-6"]

        # And while it goes on without a pause, soon.
        await at.publisher.publish_many(jobs(1, "high"))
        assert sorted(await at.run(24)) == sorted(["high-0", *[f"low-{number}" for number in range(7, 30)]])


async def test_what_is_not_plain_or_not_wanted_comes_by_receive_and_then_jobs_pass_again(several: Start) -> None:
    async with several("a,b") as at:
        at.acknowledge(await at.busy(*jobs(1, "a", extra={"limit": 3}), *jobs(3, "b")))
        limited = await at.waiting
        assert limited.message.id == "a-0"
        await at.consumer.settle(limited, Ack())
        at.take.wants = False
        at.receive()
        declined = await at.waiting
        assert (declined.message.id, at.take.shown.qsize()) == ("b-0", 1)
        await at.consumer.settle(declined, Ack())
        at.take.shown.get_nowait()
        at.take.wants = True
        at.receive()
        assert await at.run(2) == ["b-1", "b-2"]


async def test_a_job_that_was_asked_for_too_many_goes_back_to_its_place(several: Start) -> None:
    async with several("a,b") as at:
        at.acknowledge(await at.busy(*jobs(5, "b")))
        assert await at.run(1) == ["b-0"]
        at.waiting.cancel()  # with the next question on its way
        await asyncio.wait({at.waiting})
        assert at.waiting.cancelled()
        await until(at.pending, 4)

        at.take.wants = False
        found = []
        for _ in range(4):
            delivery = await at.consumer.receive(1, at.take)
            found.append((delivery.message.id, delivery.redelivered))
            await at.consumer.settle(delivery, Ack())
        # Only the first may have been asked for before.
        assert [id for id, _ in found] == ["b-1", "b-2", "b-3", "b-4"]
        assert not any(again for _, again in found[1:])


async def test_a_slot_that_rests_asks_for_nothing_after_its_job(several: Start) -> None:
    async with several("a,b") as at:
        first = await at.busy(*jobs(2, "b"))
        await at.consumer.pause_slot(1)
        at.acknowledge(first)
        at.waiting.cancel()
        await asyncio.wait({at.waiting})
        assert await at.pending() == 2
        at.receive()
        delivery = await at.next()
        assert (delivery.message.id, delivery.redelivered) == ("b-0", False)
        # A worker that goes on before its job is over has not cancelled who waits.
        await at.consumer.pause_slot(1)
        at.acknowledge(delivery)
        assert await at.run(1) == ["b-1"]


async def test_a_paused_queue_is_left_alone_and_then_served_again(several: Start) -> None:
    async with several("a,b") as at:

        def paused() -> bool:
            return "a" in at.consumer._source._paused

        at.acknowledge(await at.busy(*jobs(4, "a"), *jobs(4, "b")))
        assert await at.run(1) == ["a-0"]
        held = await at.next()
        await at.publisher.pause("a")
        await until(answer(paused), True)
        at.acknowledge(held)
        assert [held.message.id, *await at.run(3)] == ["a-1", "b-0", "b-1", "b-2"]
        held = await at.next()
        await at.publisher.resume("a")
        await until(answer(paused), False)
        at.acknowledge(held)
        assert await at.run(2) == ["a-2", "a-3"]


async def test_queues_that_are_emptied_or_deleted_by_others_do_no_harm(several: Start) -> None:
    async with several("a,b") as at:
        at.acknowledge(await at.busy(*jobs(3, "a"), *jobs(3, "b")))
        held = await at.next()
        await at.behind_its_back("queue_purge", "a")
        at.acknowledge(held)
        assert await at.run(1) == ["b-0"]
        held = await at.next()
        for queue in ("a", "b"):
            await at.behind_its_back("queue_delete", queue)
        at.acknowledge(held)
        # It makes both again, as it was told to serve them.
        for queue in ("a", "b"):
            await until(partial(at.exists, queue), True)
        await at.behind_its_back("queue_purge", "b")
        await at.publisher.publish_many(jobs(1, "a"))
        assert await at.run(1) == ["a-0"]


async def test_a_taken_job_whose_channel_ends_is_lost_and_no_other_comes_before_it_is_settled(several: Start) -> None:
    async with several("a,b") as at:
        at.acknowledge(await at.busy(*jobs(2, "b")))
        delivery = await at.next()
        channel, tag = delivery.token
        channel.raw.basic_ack(tag + 100)  # which the broker answers by closing the channel
        await until(answer(lambda: channel.is_open), False)
        await until(at.pending, 2)
        assert not at.waiting.done()
        assert at.take.shown.empty()
        with pytest.raises(DeliveryLost):
            at.acknowledge(delivery)
        again = await at.waiting
        assert (again.message.id, again.redelivered) == ("b-0", True)
        await at.consumer.settle(again, Ack())
        at.receive()
        assert await at.run(1) == ["b-1"]


#: So many that a worker keeps its subscriptions while a job runs.
MANY = [f"q{number:02}" for number in range(64)]


async def begun(at: Several, queue: str) -> Delivery:
    """A job for the idle worker, which is subscribed to all its queues again."""
    await until(at.subscribed, MANY)
    await at.publisher.publish_many(jobs(1, queue))
    return await at.next()


async def test_a_job_for_an_idle_worker_of_many_queues_leaves_the_subscriptions_to_the_others(
    several: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(idle_subscriptions, "_KEPT", 1e6)

    async with several(",".join(MANY)) as at:
        first = await begun(at, "q20")
        # Two connections ask: RabbitMQ may count on one before it has done what the other told it.
        await until(at.subscribed, [queue for queue in MANY if queue != "q20"])
        sent = at.consumer._source.connection.raw.frames_sent
        at.acknowledge(first)
        await until(at.subscribed, MANY)
        # The acknowledgement, a question for the queue, a subscription to it, and what a worker says now and then.
        assert at.consumer._source.connection.raw.frames_sent - sent < 20


async def test_a_job_that_comes_to_a_busy_worker_of_many_queues_waits_in_its_queue_and_then_comes_in_order(
    several: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(idle_subscriptions, "_KEPT", 1e6)

    async with several(",".join(MANY)) as at:
        first = await begun(at, "q20")
        for queue in ("q40", "q03"):
            await at.publisher.publish_many(jobs(2, queue))
            await until(partial(at.waiting_in, queue), 2)
        await until(at.subscribed, [queue for queue in MANY if queue not in ("q03", "q20", "q40")])
        assert list(at.consumer.held()) == [first]

        at.take.wants = False
        at.acknowledge(first)
        found = [await at.waiting]
        for _ in range(3):
            await at.consumer.settle(found[-1], Ack())
            found.append(await at.consumer.receive(1))
        assert [delivery.message.id for delivery in found] == ["q03-0", "q03-1", "q40-0", "q40-1"]


async def test_a_worker_of_many_queues_that_stays_busy_is_sent_no_more_jobs(
    several: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with several(",".join(MANY)) as at:
        monkeypatch.setattr(idle_subscriptions, "_KEPT", 1e6)
        first = await begun(at, "q20")
        for queue in MANY[30:40]:
            await at.publisher.publish_many(jobs(1, queue))
        await until(at.subscribed, [])
        at.take.wants = False
        at.acknowledge(first)
        await at.consumer.settle(await at.waiting, Ack())
        for _ in range(9):
            await at.consumer.settle(await at.consumer.receive(1), Ack())

        # And by a job that runs long.
        at.take.wants = True
        at.receive()
        await until(at.subscribed, MANY)
        monkeypatch.setattr(idle_subscriptions, "_KEPT", 0.0)
        second = await begun(at, "q30")
        await until(at.subscribed, [])
        at.acknowledge(second)
        await until(at.subscribed, MANY)


async def test_a_deleted_queue_among_many_does_the_others_no_harm(several: Start) -> None:
    async with several(",".join(MANY)) as at:
        at.acknowledge(await begun(at, "q20"))
        await until(at.subscribed, MANY)
        await at.behind_its_back("queue_delete", "q10")
        at.acknowledge(await begun(at, "q21"))
        at.acknowledge(await begun(at, "q10"))

        held = await begun(at, "q22")
        await at.behind_its_back("queue_delete", "q11")
        at.acknowledge(held)
        at.acknowledge(await begun(at, "q11"))


async def test_queues_among_many_that_are_deleted_at_once_do_the_others_no_harm(several: Start) -> None:
    async with several(",".join(MANY)) as at:
        at.acknowledge(await begun(at, "q20"))
        await until(at.subscribed, MANY)
        deleted = [f"q{number}" for number in range(10, 58)]
        # By a channel each: RabbitMQ deletes them side by side, and the last ones when the slot's channel is closing.
        for channel, queue in [(await at.publisher._connection.channel(), queue) for queue in deleted]:
            channel.raw.queue_delete(amqp_queue(at.publisher._exchange, queue))
        for queue in ("q60", "q10", "q57"):
            at.acknowledge(await begun(at, queue))
