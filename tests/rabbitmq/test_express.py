"""The quick way of plain jobs: which jobs are shown to a lane at once, and which go the ordinary way all the same."""

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest

from palermo.brokers.rabbitmq import RabbitmqBroker
from palermo.contract.admission import is_plain
from palermo.contract.broker import Delivery, SessionParameters, open_broker
from palermo.contract.worker_info import WorkerInfo
from palermo.core.lifecycle import Ack, Release
from palermo.core.message import Message
from palermo.core.queue_selection import QueueSelection
from palermo.core.unique_keys import Mode, UniqueLock, with_lock
from palermo.errors import DeliveryLost
from tests.contract.tools import until


def a_message(id: str, **fields: Any) -> Message:
    return Message(**{"id": id, "queue": "mail", "job": "shop.send", "body": b"[1]", **fields})


def test_plain_is_what_asks_nobody() -> None:
    plain = a_message("1", extra={"x-trace": "abc"})
    assert is_plain(plain)
    assert is_plain(a_message("1", run_at=time.time() - 1))
    later = time.time() + 60
    assert not is_plain(a_message("1", run_at=later, extra={"perform_job_at": later}))
    assert not is_plain(with_lock(plain, UniqueLock(key="k", mode=Mode.DONE)))
    assert not is_plain(with_lock(plain, UniqueLock(key="k", mode=Mode.WINDOW, seconds=5.0)))
    assert not is_plain(a_message("1", extra={"limit": 3}))
    assert not is_plain(a_message("1", extra={"rate": "10/s"}))


def answer(probe: Callable[[], object]) -> Callable[[], Awaitable[object]]:
    async def asked() -> object:
        return probe()

    return asked


class Taker:
    """Takes what is shown to it, while it wants to; tells of each, on the loop."""

    def __init__(self) -> None:
        self.wants = True
        self.shown: asyncio.Queue[Delivery] = asyncio.Queue()

    def __call__(self, delivery: Delivery) -> bool:
        self.shown.put_nowait(delivery)
        return self.wants


class Served:
    """A consumer with one slot, whose task waits in `receive` all the time."""

    def __init__(self, broker: RabbitmqBroker, consumer: Any) -> None:
        self.broker = broker
        self.consumer = consumer
        self.take = Taker()
        self.receive()

    def receive(self) -> None:
        self.waiting = asyncio.ensure_future(self.consumer.receive(1, self.take))

    async def waits(self) -> None:
        """Return once it is subscribed and asks for a job."""
        slot = self.consumer._source.slots[0]
        await until(answer(lambda: slot._asked is not None), True)

    async def put(self, message: Message) -> None:
        await self.waits()
        await self.broker.publish(message)

    async def next(self) -> Delivery:
        """The next job, whichever way it comes: the first of a subscription may be there before anybody waits."""
        shown = asyncio.ensure_future(self.take.shown.get())
        await asyncio.wait({shown, self.waiting}, return_when=asyncio.FIRST_COMPLETED)
        if shown.done():
            return shown.result()
        shown.cancel()
        return self.waiting.result()

    async def pending(self) -> int:
        (queue,) = [one for one in await self.broker.queues() if one.name == "mail"]
        return queue.pending


@asynccontextmanager
async def served(session: SessionParameters) -> AsyncIterator[Served]:
    broker = await open_broker(session)
    assert isinstance(broker, RabbitmqBroker)
    info = WorkerInfo(id="pid:1@h", host="h", pid=1, queues=("mail",), slots=1, state="idle", started_at=time.time())
    consumer = await broker.consume(QueueSelection.parse("mail"), slots=1, tag="pid:1@h", report=lambda: info)
    made = Served(broker, consumer)
    try:
        async with asyncio.timeout(100):
            yield made
    finally:
        made.waiting.cancel()
        await asyncio.wait({made.waiting})
        await consumer.close()
        await broker.close()


async def test_plain_jobs_pass_one_after_another_while_receive_waits(session: SessionParameters) -> None:
    async with served(session) as at:
        bodies = [b"[1]", b"", b"[%s]" % (b"1" * 300_000), b"[2]"]
        for number, body in enumerate(bodies):
            await at.put(a_message(str(number), body=body))
        for number, body in enumerate(bodies):
            delivery = await at.take.shown.get()
            assert (delivery.message.id, delivery.message.body) == (str(number), body)
            assert list(at.consumer.held()) == [delivery]
            at.consumer.acknowledge(delivery)
            with pytest.raises(DeliveryLost):
                at.consumer.acknowledge(delivery)
        assert not at.waiting.done()
        assert await at.pending() == 0


async def test_what_is_not_taken_or_not_plain_comes_by_receive(session: SessionParameters) -> None:
    async with served(session) as at:
        at.take.wants = False
        await at.put(a_message("declined"))
        delivery = await at.waiting
        assert delivery.message.id == "declined"
        assert at.take.shown.qsize() == 1
        await at.consumer.settle(delivery, Release())
        again = await at.consumer.receive(1, at.take)
        assert again.redelivered
        assert again.message.id == "declined"
        await at.consumer.settle(again, Ack())
        await at.broker.publish(a_message("limited", extra={"limit": 3}))
        limited = await at.consumer.receive(1, at.take)
        assert limited.message.id == "limited"
        await at.consumer.settle(limited, Ack())
        unwanted = a_message("cancelled", created_at=int(time.time()))
        await at.broker.cancel(["cancelled"])
        checked = at.consumer._steering.checked
        await until(answer(lambda: checked(Delivery(message=unwanted, slot=1)).cancelled), True)
        at.receive()
        await at.put(unwanted)
        cancelled = await at.waiting
        assert cancelled.cancelled
        await at.consumer.settle(cancelled, Ack(done=False))
        assert at.take.shown.qsize() == 1


async def test_a_taken_job_whose_channel_ends_is_lost_and_no_other_comes_before_it_is_settled(
    session: SessionParameters,
) -> None:
    async with served(session) as at:
        await at.put(a_message("first"))
        delivery = await at.take.shown.get()
        channel, tag = delivery.token
        channel.raw.basic_ack(tag + 100)  # which the broker answers by closing the channel
        await until(answer(lambda: channel.is_open), False)
        await at.broker.publish(a_message("second"))
        await until(at.pending, 2)
        assert not at.waiting.done()
        assert at.take.shown.empty()
        with pytest.raises(DeliveryLost):
            at.consumer.acknowledge(delivery)
        again = await at.waiting
        assert again.redelivered
        assert again.message.id == "first"
        await at.consumer.settle(again, Ack())
        at.receive()
        await at.consumer.settle(await at.next(), Ack())


async def test_a_taken_job_outlives_rest_and_a_pause_and_then_jobs_come_again(session: SessionParameters) -> None:
    async with served(session) as at:
        await at.put(a_message("first"))
        delivery = await at.take.shown.get()
        await at.consumer.pause_slot(1)
        await at.broker.publish(a_message("second"))
        await at.broker.pause("mail")
        await at.broker.resume("mail")
        assert await at.pending() == 1
        at.consumer.acknowledge(delivery)
        second = await at.next()
        assert second.message.id == "second"
        await at.consumer.settle(second, Ack())
        assert await at.pending() == 0
