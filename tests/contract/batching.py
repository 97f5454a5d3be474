"""Contract: jobs that are taken to be run together, or set aside; and what a job saves for its next run."""

import pytest
from msgspec.structs import replace

from palermo.contract.broker import Broker, Delivery
from palermo.core.lifecycle import Ack, Fail, Release, Reschedule, fail, requeue
from palermo.errors import DeliveryLost
from tests.contract.tools import FAILURE, Open, counts, ids, message, messages, until
from tests.contract.workers import Worker, at_work, consume, nothing_for, take, take_and_ack


async def batch(consumer: Worker, first: Delivery, most: int = 10, wait: float = 0.0) -> list[Delivery]:
    """The delivery and those that come with it."""
    found = [first]
    while len(found) < most and (more := await consumer.next_for_batch(first, wait=wait)) is not None:
        found.append(more)
    return found


class BatchingContract:
    @pytest.mark.parametrize("queues", ["jobs", "jobs,other", "*"])
    async def test_jobs_of_a_batch_are_settled_one_by_one(self, broker: Broker, another: Open, queues: str) -> None:
        await broker.publish_many(messages(8))
        consumer = await consume(await another(), queues)

        taken = await batch(consumer, await take(consumer), most=5)

        assert [one.message.id for one in taken] == [f"jobs-{number}" for number in range(5)]
        await consumer.settle(taken[3], Release())
        await consumer.settle(taken[1], Fail(fail(taken[1].message, FAILURE, worker="w")))
        await consumer.settle(taken[2], Reschedule(replace(taken[2].message, retries=1)))
        await consumer.settle(taken[4], Ack())
        await consumer.settle(taken[0], Ack())
        assert await ids(broker, "failed") == ["jobs-1"]
        again = [await take(consumer)]
        await consumer.settle(again[0], Ack())
        while len(again) < 5:
            again.append(await take(consumer))
            await consumer.settle(again[-1], Ack())
        assert {one.message.id for one in again} == {"jobs-2", "jobs-3", "jobs-5", "jobs-6", "jobs-7"}
        await consumer.close()
        await until(lambda: counts(broker), (0, 0))

    async def test_a_batch_ends_before_a_job_of_another_name(self, broker: Broker, another: Open) -> None:
        first, second, third = messages(3)
        await broker.publish_many([first, second, replace(third, job="shop.other"), message("last")])
        consumer = await consume(await another())

        taken = await batch(consumer, await take(consumer))
        for one in taken:
            await consumer.settle(one, Ack())

        assert [one.message.id for one in taken] == ["jobs-0", "jobs-1"]
        assert (await take(consumer)).message.id == "jobs-2"

    async def test_a_batch_waits_for_what_comes_in_time(self, broker: Broker, another: Open) -> None:
        publisher = await another()
        consumer, first = await at_work(publisher, message("first"), on=await another())
        assert await consumer.next_for_batch(first, wait=0.05) is None

        await publisher.publish(message("second"))

        second = await consumer.next_for_batch(first, wait=60)
        assert second is not None
        assert (second.message.id, second.slot) == ("second", 1)

    @pytest.mark.parametrize("queues", ["jobs", "jobs,other", "*"])
    async def test_a_slot_goes_on_beside_an_adopted_job(self, broker: Broker, queues: str) -> None:
        await broker.publish_many(messages(4))
        consumer = await consume(broker, queues)
        first = await take(consumer)

        await consumer.free_slot(first)

        second = await take(consumer)
        assert second.message.id == "jobs-1"
        await consumer.free_slot(second)
        third = await take(consumer)
        await consumer.settle(first, Ack())
        await consumer.settle(second, Fail(fail(second.message, FAILURE, worker="w")))
        await consumer.settle(third, Ack())
        assert (await take_and_ack(consumer)).id == "jobs-3"
        assert await ids(broker, "failed") == ["jobs-1"]
        await consumer.close()
        await until(lambda: counts(broker), (0, 0))

    async def test_an_adopted_job_returns_when_released_or_at_a_close(self, broker: Broker, another: Open) -> None:
        await broker.publish_many(messages(2))
        consumer = await consume(await another())
        adopted = [await take(consumer)]
        await consumer.free_slot(adopted[0])
        adopted.append(await take(consumer))
        await consumer.free_slot(adopted[1])

        await consumer.settle(adopted[0], Release())

        assert (await take_and_ack(consumer)).id == "jobs-0"
        await consumer.close()
        assert (await take_and_ack(await consume(broker))).id == "jobs-1"

    @pytest.mark.parametrize("queues", ["jobs", "*"])
    async def test_what_was_adopted_is_settled_once(self, broker: Broker, queues: str) -> None:
        await broker.publish_many(messages(1))
        consumer = await consume(broker, queues)
        delivery = await take(consumer)
        await consumer.free_slot(delivery)
        await consumer.settle(delivery, Ack())

        with pytest.raises(DeliveryLost):
            await consumer.settle(delivery, Ack())
        with pytest.raises(DeliveryLost):
            await consumer.free_slot(delivery)

        await nothing_for(consumer)


SAVED = '{"loops":{"é":[3,17]}}'


class SavingContract:
    async def test_a_copy_of_a_job_has_what_it_saved(self, broker: Broker, another: Open) -> None:
        consumer, delivery = await at_work(broker, message("a"), on=await another())
        await consumer.save(delivery, "earlier")

        await consumer.settle(delivery, Reschedule(replace(delivery.message, saved=SAVED)))

        delivery = await take(consumer)
        assert (delivery.message.saved, delivery.redelivered) == (SAVED, False)
        await consumer.settle(delivery, Fail(fail(delivery.message, FAILURE, worker="w")))
        (failed,) = (await broker.browse("failed")).messages
        assert failed.saved == SAVED
        await broker.publish(requeue(failed))
        assert (await take(consumer)).message.saved == SAVED

    async def test_what_a_job_saves_after_its_end_is_nowhere(self, broker: Broker, another: Open) -> None:
        consumer, delivery = await at_work(broker, message("a"), on=await another())
        await consumer.settle(delivery, Ack())

        await consumer.save(delivery, SAVED)

        await nothing_for(consumer)
        await consumer.close()
        await until(lambda: counts(broker), (0, 0))
