"""Contract: what is published is what arrives; who gets which job, and what becomes of it."""

import asyncio
import logging
import threading
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

import pytest

from palermo.contract.broker import Broker, Consumer
from palermo.core.failure import Attempt
from palermo.core.lifecycle import Ack, Fail, Release, Reschedule, fail
from palermo.errors import BrokerUnavailable, DeliveryLost, PalermoError
from tests.contract.tools import FAILURE, Open, counts, empty_looks_are_forgotten, ids, look, message, messages, until
from tests.contract.workers import at_work, consume, nothing_for, take, take_and_ack

#: A value of each type that a header may have, with the extremes that AMQP can carry.
HEADERS: dict[str, Any] = {
    "bytes": b"\x00\xff",
    "decimal": Decimal("-200000.05"),
    "float": 1.0,
    "instant": datetime(2100, 1, 1, tzinfo=UTC),
    "least": -(2**63),
    "list": [1, 2**31, -(2**31) - 1, [True, {}], "", None],
    "most": 2**63 - 1,
    "table": {"ü…": [0.1, False]},
    "text": "ü…",
}


class PublishingContract:
    async def test_a_published_message_arrives_equal(self, broker: Broker) -> None:
        errors = (
            Attempt(number=1, exception_class="a.B", message="ü\n…", failed_at=1_700_000_000),
            Attempt(number=2, exception_class="ValueError", message="", failed_at=1_700_000_001),
        )
        sent = message(
            "ü-7c9e", body=b'{"args": [1], "kwargs": {"a": "\xc3\xbc"}}', content_type="application/msgpack",
            content_encoding="gzip", arguments="both", created_at=1_700_000_000, retries=2, policy_retries=1,
            preview="1, a='ü'", properties={"priority": 3, "correlation_id": "c-1", "reply_to": "answers"},
            extra=HEADERS, failure=FAILURE, attempts=errors, max_retries=5,
        )  # fmt: skip

        await broker.publish(sent)
        delivery = await take(await consume(broker))

        assert delivery.message == sent
        # To Python 1, 1.0 and True are equal.
        assert repr(dict(delivery.message.extra)) == repr(HEADERS)
        assert delivery.slot == 1
        assert not delivery.redelivered

    async def test_wrong_headers_are_kept_and_those_of_a_dead_letter_are_not(self, broker: Broker) -> None:
        dead_letter = {"x-death": [{"count": 1}], "x-first-death-queue": "q"}
        await broker.publish(message(extra={"retries": "many", "kept": 1, **dead_letter}))

        found = (await take(await consume(broker))).message

        assert found.retries is None
        assert found.extra == {"retries": "many", "kept": 1}
        assert "'retries'" in found.defect

    @pytest.mark.slow
    async def test_five_thousand_published_at_once_keep_their_order(self, broker: Broker) -> None:
        assert await broker.publish_many(iter([*messages(5_000), *messages(2, "brand new.ü")])) == 5_002
        assert await broker.publish_many([]) == 0

        await until(lambda: counts(broker), (5_000, 0))
        await until(lambda: counts(broker, "brand new.ü"), (2, 0))
        assert await ids(broker) == [f"jobs-{number}" for number in range(5_000)]

    async def test_jobs_of_many_threads_come_whole_and_in_order(self, broker: Broker) -> None:
        await broker.publish(message("first"))
        answered: list[PalermoError | None] = []

        def publish(thread: int) -> list[str]:
            begun: list[str] = []
            for number in range(100):
                one = message(f"{thread}-{number}", body=b"x" * (2_000_000 if number == 50 else 10))
                done = threading.Event()
                if broker.try_publish(one, lambda error, done=done: (answered.append(error), done.set())):  # type: ignore[misc]
                    begun.append(one.id)
                    done.wait()  # as a program does: the next job may go another way
            return begun

        begun = await asyncio.gather(*(asyncio.to_thread(publish, thread) for thread in range(4)))

        await until(lambda: len(answered), sum(map(len, begun)))
        assert set(answered) == {None}
        found = await ids(broker)
        assert len(found) == len(answered) + 1
        assert [[id for id in found if id.startswith(f"{thread}-")] for thread in range(4)] == begun

    async def test_a_closed_session_says_so(self, another: Open) -> None:
        broker = await another()
        consumer = await consume(broker)
        await broker.close()
        await broker.close()

        with pytest.raises(BrokerUnavailable):
            await broker.publish(message())
        with pytest.raises(BrokerUnavailable):
            await broker.queues()
        with pytest.raises(BrokerUnavailable):
            await consumer.receive(1)


class ConsumingContract:
    @pytest.mark.parametrize("queues", ["jobs", "*"])
    async def test_a_waiting_slot_gets_a_job_published_later(self, broker: Broker, another: Open, queues: str) -> None:
        consumer = await consume(await another(), queues)
        waiting = asyncio.create_task(take(consumer))
        await nothing_for(await consume(broker, "other"))

        await broker.publish(message("late"))

        assert (await waiting).message.id == "late"

    async def test_a_consumer_knows_which_of_its_queues_hold_jobs(self, broker: Broker) -> None:
        consumer = await consume(broker, "jobs,mail")

        async def waiting() -> set[str]:
            return set(await consumer.queues_with_jobs())

        assert await waiting() == set()
        await broker.publish_many([*messages(1, "mail"), *messages(1, "other")])
        await until(waiting, {"mail"})

        await take_and_ack(consumer)
        await until(waiting, set())

    async def test_a_worker_of_one_job_a_slot_says_so(self, broker: Broker, caplog: pytest.LogCaptureFixture) -> None:
        with caplog.at_level(logging.INFO, "palermo"):
            await consume(broker, "jobs,mail", prefetch=5)

        assert [text for text in caplog.messages if text.startswith("prefetch is 1, because ")]

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
        consumer, delivery = await at_work(broker, sent)

        failed = fail(delivery.message, FAILURE, worker="pid:1@h/worker-1")
        await consumer.settle(delivery, Fail(failed))

        assert await look(onlooker, "failed") == [failed]
        assert (failed.failure, failed.retries, failed.queue) == (FAILURE, 0, "jobs")
        await consumer.close()
        await nothing_for(await consume(onlooker, "*"))
        await until(lambda: counts(broker), (0, 0))
        await until(lambda: counts(broker, "failed"), (1, 0))

    @pytest.mark.parametrize("closed", ["consumer", "session"])
    async def test_what_is_unsettled_at_a_close_goes_back(self, broker: Broker, another: Open, closed: str) -> None:
        await broker.publish_many(messages(3))
        session = await another()
        consumer = await consume(session, slots=2)
        held = [await take(consumer, slot) for slot in (1, 2)]

        for _ in range(2):
            await (session if closed == "session" else consumer).close()

        with pytest.raises((DeliveryLost, BrokerUnavailable)):
            await consumer.settle(held[0], Ack())
        await until(lambda: counts(broker), (3, 0))
        successor = await consume(await another())
        assert {(await take_and_ack(successor)).id for _ in range(3)} == {"jobs-0", "jobs-1", "jobs-2"}

    async def test_what_is_settled_cannot_be_settled_again(self, broker: Broker) -> None:
        consumer, delivery = await at_work(broker, message("7c9e"))
        await consumer.settle(delivery, Ack())

        for again in (Ack(), Release(), Fail(message()), Reschedule(delivery.message)):
            with pytest.raises(DeliveryLost):
                await consumer.settle(delivery, again)

        await nothing_for(consumer)
        await consumer.close()
        await until(lambda: counts(broker), (0, 0))

    async def test_receives_cancelled_while_jobs_arrive_lose_nothing(self, broker: Broker, another: Open) -> None:
        publisher = await another()
        consumer = await consume(broker)
        sent = messages(40)
        found: list[str] = []

        await nothing_for(consumer)

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

    async def test_patterns_choose_queues(self, broker: Broker) -> None:
        for name in ("file_a", "file_b", "low", "mail"):
            await broker.publish(message(name, name))

        files = await consume(broker, "file_*,!file_b")
        assert (await take_and_ack(files)).id == "file_a"
        await nothing_for(files)
        rest = await consume(broker, "!low")
        assert {(await take_and_ack(rest)).id for _ in range(2)} == {"file_b", "mail"}
        await nothing_for(rest)

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

        await until(lambda: len(settled), len(sent))
        for slot in slots:
            slot.cancel()
        await asyncio.wait(slots)
        assert sorted(taken) == sorted(one.id for one in sent)
        await until(lambda: counts(broker), (0, 0))

    @pytest.mark.parametrize("queues", ["jobs", "jobs,other", "*"])
    async def test_a_receive_that_waits_ends_when_its_consumer_is_closed(self, broker: Broker, queues: str) -> None:
        for turns in (1, 2, 4, 7, 5_000):
            consumer = await consume(broker, queues, slots=2)
            waiting = [asyncio.ensure_future(take(consumer, slot)) for slot in (1, 2)]
            for _ in range(turns):
                await asyncio.sleep(0)

            await consumer.close()

            outcomes = await asyncio.gather(*waiting, return_exceptions=True)
            assert [type(outcome) for outcome in outcomes] == [BrokerUnavailable] * 2
