"""Contract: who gets which job, and what becomes of it."""

import asyncio
import logging

import pytest

from palermo.contract.broker import Broker, Consumer
from palermo.core.lifecycle import Ack, Fail, Release, fail
from palermo.core.message import Message
from palermo.core.prefetch import Prefetch
from palermo.core.queue_selection import QueueSelection
from palermo.errors import BrokerUnavailable, DeliveryLost
from tests.contract.tools import (
    FAILURE,
    Open,
    Report,
    consume,
    counts,
    empty_looks_are_forgotten,
    ids,
    look,
    message,
    messages,
    nothing_for,
    take,
    take_and_ack,
    until,
)


async def until_waiting(consumer: Consumer, wanted: set[str]) -> None:
    async def found() -> set[str]:
        return set(await consumer.queues_with_jobs())

    await until(found, wanted)


class ConsumingContract:
    async def test_a_waiting_slot_gets_a_job_published_later(self, broker: Broker, another: Open) -> None:
        consumer = await consume(await another())
        waiting = asyncio.create_task(take(consumer))
        await nothing_for(await consume(broker, "other"))

        await broker.publish(message("late"))

        assert (await waiting).message.id == "late"

    async def test_a_consumer_knows_which_of_its_queues_hold_jobs(self, broker: Broker) -> None:
        consumer = await broker.consume(QueueSelection.parse("jobs,mail"), slots=1, tag="t", report=Report("jobs,mail"))
        assert set(await consumer.queues_with_jobs()) == set()

        await broker.publish_many([*messages(1, "mail"), *messages(1, "other")])
        await until_waiting(consumer, {"mail"})

        await consumer.settle(await take(consumer), Ack())
        await until_waiting(consumer, set())
        await consumer.close()

    async def test_a_worker_that_cannot_hold_more_than_one_job_a_slot_says_so(
        self, broker: Broker, caplog: pytest.LogCaptureFixture
    ) -> None:
        queues, report = QueueSelection.parse("jobs,mail"), Report("jobs,mail")
        with caplog.at_level(logging.INFO, "palermo"):
            consumer = await broker.consume(queues, slots=1, tag="t", report=report, prefetch=Prefetch(5))

        assert [text for text in caplog.messages if text.startswith("prefetch is 1, since ")]
        await consumer.close()

    async def test_a_job_acknowledged_is_gone(self, broker: Broker, another: Open) -> None:
        await broker.publish(message())
        consumer = await consume(broker)

        await take_and_ack(consumer)

        await nothing_for(consumer)
        await consumer.close()
        await until(lambda: counts(broker), (0, 0))
        await nothing_for(await consume(await another()))

    async def test_a_job_released_comes_back_to_its_place(self, broker: Broker) -> None:
        await broker.publish_many(messages(3))
        consumer = await consume(broker)

        await consumer.settle(await take(consumer), Release())

        again = await take(consumer)
        assert (again.message.id, again.redelivered) == ("jobs-0", True)
        await consumer.settle(again, Ack())
        assert [(await take_and_ack(consumer)).id for _ in range(2)] == ["jobs-1", "jobs-2"]

    async def test_a_failed_job_lies_in_failed_before_settle_returns(self, broker: Broker, another: Open) -> None:
        sent = message("7c9e", extra={"region": "acme"}, created_at=1_700_000_000, preview="1")
        onlooker = await another()
        await broker.publish(sent)
        consumer = await consume(broker)
        delivery = await take(consumer)

        failed = fail(delivery.message, FAILURE, worker="pid:1@h/worker-1")
        await consumer.settle(delivery, Fail(failed))

        assert await look(onlooker, "failed") == [failed]
        assert (failed.failure, failed.retries, failed.queue) == (FAILURE, 0, "jobs")
        await nothing_for(consumer)
        await consumer.close()
        await until(lambda: counts(broker), (0, 0))
        await until(lambda: counts(broker, "failed"), (1, 0))

    async def test_what_is_unsettled_when_the_consumer_closes_goes_back(self, broker: Broker, another: Open) -> None:
        await broker.publish_many(messages(3))
        consumer = await consume(broker, slots=2)
        for slot in (1, 2):
            await take(consumer, slot)

        await consumer.close()
        await consumer.close()

        await until(lambda: counts(broker), (3, 0))
        successor = await consume(await another())
        assert {(await take_and_ack(successor)).id for _ in range(3)} == {"jobs-0", "jobs-1", "jobs-2"}

    async def test_what_is_unsettled_when_the_session_closes_goes_back(self, broker: Broker, another: Open) -> None:
        await broker.publish(message("left"))
        leaving = await another()
        await take(await consume(leaving))

        await leaving.close()

        assert (await take(await consume(broker))).message.id == "left"

    async def test_a_receive_that_is_cancelled_loses_nothing(self, broker: Broker) -> None:
        consumer = await consume(broker)
        await nothing_for(consumer)
        await broker.publish(message("one"))

        assert (await take_and_ack(consumer)).id == "one"

    async def test_receives_cancelled_while_jobs_arrive_lose_nothing(self, broker: Broker, another: Open) -> None:
        publisher = await another()
        consumer = await consume(broker)
        sent = messages(40)
        found: list[str] = []

        for number, one in enumerate(sent):
            publishing = asyncio.create_task(publisher.publish(one))
            receiving = asyncio.create_task(consumer.receive(1))
            for _ in range(number % 8):
                await asyncio.sleep(0.0005)
            receiving.cancel()
            await asyncio.wait([receiving])
            if not receiving.cancelled():
                found.append(receiving.result().message.id)
                await consumer.settle(receiving.result(), Ack())
            await publishing

        while len(found) < len(sent):
            found.append((await take_and_ack(consumer)).id)
        assert sorted(found) == sorted(one.id for one in sent)
        await nothing_for(consumer)

    async def test_a_slot_holds_one_job_over_all_its_queues(self, broker: Broker) -> None:
        await broker.publish_many([*messages(2, "a"), *messages(2, "b"), *messages(2, "c")])
        consumer = await consume(broker, "a,b,c")
        first = await take(consumer)

        await nothing_for(consumer)

        second = asyncio.create_task(take(consumer))
        await consumer.settle(first, Ack())
        assert (await second).message.id == "a-1"

    async def test_two_workers_on_three_queues_hold_one_job_per_slot(self, broker: Broker, another: Open) -> None:
        for name in ("a", "b", "c"):
            await broker.publish_many(messages(10, name))
        workers = [await consume(await another(), "a,b,c", slots=2) for _ in range(2)]

        held = [await take(worker, slot) for worker in workers for slot in (1, 2)]

        async def totals() -> tuple[int, int]:
            found = await broker.queues()
            return sum(queue.pending for queue in found), sum(queue.in_progress for queue in found)

        assert len({delivery.message.id for delivery in held}) == 4
        await until(totals, (26, 4))

    async def test_priority_is_strict_and_looked_at_after_every_job(self, broker: Broker, another: Open) -> None:
        publisher = await another()
        await publisher.publish_many([*messages(3, "low"), *messages(1, "high")])
        consumer = await consume(broker, "high,low")
        order = [(await take_and_ack(consumer)).id]

        delivery = await take(consumer)
        order.append(delivery.message.id)
        await publisher.publish(message("high-late", "high"))
        await empty_looks_are_forgotten()
        await consumer.settle(delivery, Ack())
        order += [(await take_and_ack(consumer)).id for _ in range(3)]

        assert order == ["high-0", "low-0", "high-late", "low-1", "low-2"]

    async def test_queues_with_weights_are_served_by_shares(self, broker: Broker) -> None:
        await broker.publish_many([*messages(60, "low"), *messages(60, "high")])
        consumer = await consume(broker, "high:3,low:1")

        first = [(await take_and_ack(consumer)).queue for _ in range(60)]
        rest = [(await take_and_ack(consumer)).queue for _ in range(60)]

        # 45 of 60, give or take 5.5 standard deviations of sqrt(60 * 0.75 * 0.25) = 3.4.
        assert 27 <= first.count("high") < 60
        assert (first + rest).count("low") == 60

    async def test_a_wildcard_finds_queues_made_later(self, broker: Broker, another: Open) -> None:
        consumer = await consume(await another(), "*")
        waiting = asyncio.create_task(take(consumer))

        await broker.publish(message("found", "made-later"))

        assert (await waiting).message.id == "found"

    async def test_patterns_choose_queues(self, broker: Broker) -> None:
        for name in ("file_a", "file_b", "low", "mail"):
            await broker.publish(message(name, name))

        files = await consume(broker, "file_*,!file_b")
        assert (await take_and_ack(files)).id == "file_a"
        await nothing_for(files)
        rest = await consume(broker, "!low")
        assert {(await take_and_ack(rest)).id for _ in range(2)} == {"file_b", "mail"}
        await nothing_for(rest)

    async def test_nobody_is_given_what_failed(self, broker: Broker) -> None:
        await broker.publish(message("7c9e"))
        consumer = await consume(broker, "*")
        delivery = await take(consumer)
        await consumer.settle(delivery, Fail(fail(delivery.message, FAILURE, worker="w")))

        await nothing_for(consumer)

        assert await ids(broker, "failed") == ["7c9e"]

    async def test_no_two_slots_ever_hold_one_job(self, broker: Broker, another: Open) -> None:
        sent = messages(400)
        taken: list[str] = []
        settled: list[str] = []

        async def work(consumer: Consumer, slot: int) -> None:
            while len(taken) < len(sent):
                delivery = await consumer.receive(slot)
                taken.append(delivery.message.id)
                await asyncio.sleep(0)
                await consumer.settle(delivery, Ack())
                settled.append(delivery.message.id)

        workers = [await consume(await another(), slots=2) for _ in range(3)]
        slots = [asyncio.create_task(work(worker, slot)) for worker in workers for slot in (1, 2)]
        await broker.publish_many(sent)

        async def done() -> int:
            return len(settled)

        await until(done, len(sent))
        for slot in slots:
            slot.cancel()
        await asyncio.wait(slots)
        assert sorted(taken) == sorted(one.id for one in sent)
        await until(lambda: counts(broker), (0, 0))

    @pytest.mark.parametrize("settlement", [Ack(), Release(), Fail(message())], ids=["ack", "release", "fail"])
    async def test_what_is_settled_cannot_be_settled_again(
        self, broker: Broker, settlement: Ack | Release | Fail
    ) -> None:
        await broker.publish(message())
        consumer = await consume(broker)
        delivery = await take(consumer)
        await consumer.settle(delivery, Ack())

        with pytest.raises(DeliveryLost):
            await consumer.settle(delivery, settlement)

    async def test_a_delivery_of_a_closed_consumer_cannot_be_settled(self, broker: Broker) -> None:
        await broker.publish(message("7c9e"))
        consumer = await consume(broker)
        delivery = await take(consumer)
        await consumer.close()

        with pytest.raises((DeliveryLost, BrokerUnavailable)):
            await consumer.settle(delivery, Ack())

        await until(lambda: ids(broker), ["7c9e"])

    async def test_a_slot_that_rests_takes_nothing(self, broker: Broker, another: Open) -> None:
        await broker.publish(message("first"))
        resting = await consume(broker)
        await take_and_ack(resting)
        await resting.pause_slot(1)

        await broker.publish(message("second"))

        assert (await take_and_ack(await consume(await another()))).id == "second"

    async def test_two_messages_of_one_id_are_two_jobs(self, broker: Broker) -> None:
        sent: Message = message("7c9e", retries=3)
        await broker.publish(sent)
        await broker.publish(sent)
        consumer = await consume(broker)

        assert [await take_and_ack(consumer) for _ in range(2)] == [sent, sent]

    @pytest.mark.parametrize("queues", ["jobs", "jobs,other", "*"])
    async def test_a_receive_that_waits_ends_when_its_consumer_is_closed(self, broker: Broker, queues: str) -> None:
        consumer = await consume(broker, queues, slots=2)
        waiting = [asyncio.ensure_future(take(consumer, slot)) for slot in (1, 2)]
        await asyncio.sleep(0.1)

        await consumer.close()

        for outcome in await asyncio.gather(*waiting, return_exceptions=True):
            assert isinstance(outcome, BrokerUnavailable)
