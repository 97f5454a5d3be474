"""Contract: how many of some jobs run at once, and how often."""

import asyncio
import time

from msgspec.structs import replace

from palermo.contract.broker import Broker, Consumer, Delivery
from palermo.contract.sweep import Move
from palermo.core.lifecycle import Ack, Fail, Release, fail
from palermo.core.limits import LimitInfo
from palermo.core.message import Message
from tests.contract.timing import time_kept
from tests.contract.tools import FAILURE, Open, ids, message, stopped, until
from tests.contract.workers import Report, Worker, at_work, consume, nothing_for, take, take_and_ack
from tests.helpers import HANGS


def limited(id: str, limit: int | None = 1, *, key: str = "", rate: str = "", queue: str = "jobs") -> Message:
    asks = {"limit": limit, "limit-key": key or None, "rate": rate or None}
    return message(id, queue, extra={name: value for name, value in asks.items() if value is not None})


async def permitted(consumer: Consumer, slot: int = 1, *, within: float = HANGS) -> Delivery:
    """The next job that this slot may run."""
    async with asyncio.timeout(within):
        while True:
            delivery = await consumer.receive(slot)
            if (wait := await consumer.permit(delivery)) is not None:
                await asyncio.sleep(wait)
                return delivery


async def nothing_permitted(consumer: Consumer, slot: int = 1) -> None:
    """Have the slot ask for what comes within a moment; a question that was begun is waited for."""
    until = time.monotonic() + 0.4
    while (left := until - time.monotonic()) > 0:
        try:
            delivery = await take(consumer, slot, within=left)
        except TimeoutError:
            return
        assert await consumer.permit(delivery) is None, f"{delivery.message.id} was let run"


async def worker(broker: Broker, number: int, *, slots: int = 1) -> Worker:
    """A worker that is told from others by its id."""
    return await consume(broker, slots=slots, report=Report("jobs", slots=slots, pid=number))


class LimitingContract:
    async def test_a_limited_job_waits_without_a_slot_for_a_permit(self, broker: Broker, another: Open) -> None:
        await broker.publish_many([limited("1"), limited("2"), message("free")])
        async with time_kept(await another()):
            consumer, other = await worker(broker, 1), await worker(await another(), 2)
            first = await permitted(consumer)

            assert (await permitted(other)).message.id == "free"
            second = await worker(await another(), 3)
            await nothing_permitted(second)
            await consumer.settle(first, Ack())

            assert (await permitted(consumer)).message.id == "2"
            assert first.message.id == "1"

    async def test_a_permit_ends_with_failure_and_with_being_given_back(self, broker: Broker, another: Open) -> None:
        await broker.publish_many([limited("1"), limited("2")])
        async with time_kept(await another()):
            consumer = await worker(broker, 1)
            first = await permitted(consumer)
            await consumer.settle(first, Release())

            again = await permitted(consumer)
            await consumer.settle(again, Fail(fail(again.message, FAILURE, worker="w")))

            ended = await permitted(consumer)
            assert {again.message.id, ended.message.id} == {"1", "2"}
            await consumer.settle(ended, Ack())
            await until(broker.limits, [])

    async def test_a_lowered_limit_holds_for_jobs_that_wait(self, broker: Broker, another: Open) -> None:
        await broker.publish_many([limited("1", 2), limited("2", 2)])
        async with time_kept(await another()):
            consumer = await consume(broker, slots=3)
            running = [await permitted(consumer, 1), await permitted(consumer, 2)]
            await broker.publish_many([limited("3", 1), limited("4", 1)])
            await nothing_permitted(consumer, 3)

            await consumer.settle(running[0], Ack())
            await nothing_permitted(consumer, 1)
            await consumer.settle(running[1], Ack())

            await permitted(consumer, 1)
            await nothing_permitted(consumer, 2)

    async def test_a_job_that_waits_with_its_permit_can_be_moved(self, broker: Broker, another: Open) -> None:
        await broker.publish_many([limited("1"), limited("2")])
        async with time_kept(await another()):
            consumer = await consume(broker, slots=2)
            first = await permitted(consumer, 1)
            await nothing_permitted(consumer, 2)
            await consumer.settle(first, Ack())
            await consumer.close()
            await until(lambda: ids(broker), ["2"])
            await broker.sweep("jobs", lambda found: Move(replace(found, queue="other")))

            assert await ids(broker, "other") == ["2"]
            assert (await permitted(await consume(broker, "other", report=Report("other", pid=2)))).message.id == "2"

    async def test_a_worker_that_is_gone_has_no_permits(self, broker: Broker, another: Open) -> None:
        leaving = await another()
        await broker.publish(limited("1"))
        await permitted(await worker(leaving, 1))

        await leaving.close()

        assert (await permitted(await worker(broker, 2))).message.id == "1"

    async def test_limits_are_shown(self, broker: Broker) -> None:
        await broker.publish_many([limited("1", 1), limited("2", 1), limited("3", 1)])
        consumer = await consume(broker, slots=2)
        await permitted(consumer, 1)
        asking = asyncio.create_task(permitted(consumer, 2))

        await until(broker.limits, [LimitInfo(key="shop.mail.send", limit=1, rate="", running=1, waiting=2)])
        await stopped(asking)

    async def test_jobs_without_a_limit_are_asked_nothing(self, broker: Broker) -> None:
        consumer, delivery = await at_work(broker, message("1"))

        assert await consumer.permit(delivery) == 0.0
        await consumer.settle(delivery, Ack())
        await nothing_for(consumer)
        await broker.publish(message("2"))
        assert (await take_and_ack(consumer)).id == "2"

    async def test_two_jobs_with_one_id_give_back_their_own_permits(self, broker: Broker, another: Open) -> None:
        # The second is put aside: each needs a permit of its own, also if another of its id has one.
        jobs = [limited("1", key=key) for key in "aab"] + [limited("2", key="a"), limited("3", key="b")]
        await broker.publish_many(jobs)
        async with time_kept(await another()):
            consumer = await consume(broker, slots=2)
            first, second = await permitted(consumer, 1), await permitted(consumer, 2)
            assert (first.message.id, second.message.id) == ("1", "1")
            assert [one.message.extra["limit-key"] for one in (first, second)] == ["a", "b"]

            await consumer.settle(first, Ack())
            third = await permitted(consumer, 1)

            assert third.message.extra["limit-key"] == first.message.extra["limit-key"]
