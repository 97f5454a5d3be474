"""Contract: a job that is settled with Retry waits again, as the copy that the settlement brings."""

import time
from contextlib import nullcontext
from datetime import UTC, datetime

import pytest
from msgspec.structs import replace

from palermo.contract.broker import Broker
from palermo.contract.scheduled import GIVE_UP, MOVE, RUN, ScheduledFilter
from palermo.core.failure import Attempt
from palermo.core.lifecycle import Ack, Reschedule, fail, retry
from palermo.core.message import Message
from palermo.errors import DeliveryLost
from tests.contract.timing import time_kept
from tests.contract.tools import (
    FAILURE,
    Open,
    consume,
    counts,
    ids,
    look,
    message,
    nothing_for,
    take,
    take_and_ack,
    until,
)

#: Long ago, so that what is retried is due at once.
NOW = 1_700_000_000.5

DAY = 86_400.0

RETRIES = ScheduledFilter(retries=True)


def retrying(id: str, after: float, queue: str = "jobs", **more: object) -> Message:
    """A job that has failed for the third time, and is due again in so many seconds."""
    earlier = (
        Attempt(number=1, exception_class="KeyError", message="a", failed_at=1_700_000_000),
        Attempt(number=2, exception_class="KeyError", message="b", failed_at=1_700_000_001),
    )
    sent = message(id, queue, attempts=earlier, retries=2, policy_retries=2, retrying_since=NOW, **more)
    return retry(sent, FAILURE, worker="pid:1@h/worker-1", now=time.time(), delay=after)


async def listed(broker: Broker, chosen: ScheduledFilter) -> list[str]:
    return [one.id for one in (await broker.scheduled(chosen)).messages]


class RetryingContract:
    async def test_a_job_that_is_retried_comes_back_with_its_error(self, broker: Broker) -> None:
        sent = message("7c9e", extra={"region": "acme"}, created_at=1_700_000_000)
        await broker.publish(sent)
        consumer = await consume(broker)
        delivery = await take(consumer)

        again = retry(delivery.message, FAILURE, worker="pid:1@h/worker-1", now=NOW, delay=0.5)
        await consumer.settle(delivery, Reschedule(again))

        found = (await take(consumer)).message
        assert found == again
        assert (found.retries, found.policy_retries, found.retrying_since, found.run_at) == (1, 1, NOW, NOW + 0.5)
        assert found.failure == FAILURE

    async def test_nothing_of_the_original_is_left(self, broker: Broker) -> None:
        await broker.publish(message("7c9e"))
        consumer = await consume(broker)
        delivery = await take(consumer)

        await consumer.settle(delivery, Reschedule(retry(delivery.message, FAILURE, worker="w", now=NOW, delay=0)))

        assert (await take_and_ack(consumer)).id == "7c9e"
        await nothing_for(consumer)
        await consumer.close()
        await until(lambda: counts(broker), (0, 0))

    async def test_earlier_errors_are_kept_as_they_were(self, broker: Broker) -> None:
        log = (
            Attempt(number=1, exception_class="a.B", message="ü\n…", failed_at=1_700_000_000),
            Attempt(number=2, exception_class="ValueError", message="", failed_at=1_700_000_001),
        )
        sent = message("7c9e", failure=FAILURE, attempts=log, retries=3, max_retries=5)

        await broker.publish(sent)

        assert (await take_and_ack(await consume(broker))) == sent

    async def test_another_worker_may_take_what_one_retries(self, broker: Broker, another: Open) -> None:
        await broker.publish(message("7c9e"))
        first = await consume(broker)
        delivery = await take(first)
        second = await consume(await another())
        await nothing_for(second)
        await first.pause_slot(1)

        await first.settle(delivery, Reschedule(replace(delivery.message, run_at=NOW)))

        assert (await take_and_ack(second)).run_at == NOW

    async def test_what_was_settled_cannot_be_retried(self, broker: Broker) -> None:
        await broker.publish(message("7c9e"))
        consumer = await consume(broker)
        delivery = await take(consumer)
        await consumer.settle(delivery, Ack())

        with pytest.raises(DeliveryLost):
            await consumer.settle(delivery, Reschedule(delivery.message))

        await consumer.close()
        await until(lambda: counts(broker), (0, 0))

    async def test_a_job_cancelled_while_it_ran_is_cancelled_at_its_retry(self, broker: Broker, another: Open) -> None:
        await broker.publish(message("7c9e", created_at=1_700_000_000))
        consumer = await consume(broker)
        delivery = await take(consumer)
        await broker.cancel(["7c9e"], by="somebody")

        await consumer.settle(delivery, Reschedule(retry(delivery.message, FAILURE, worker="w", now=NOW, delay=0)))

        await consumer.close()
        successor = await consume(await another())
        again = await take(successor)
        assert (again.message.retries, again.cancelled) == (1, True)
        await successor.settle(again, Ack())

    async def test_a_dead_lettered_job_survives_its_retry(self, broker: Broker) -> None:
        """RabbitMQ silently drops a message whose old x-death shows a cycle: the trap of every second delay."""
        death = {
            "count": 1,
            "reason": "expired",
            "queue": "jobs",
            "exchange": "",
            "routing-keys": ["jobs"],
            "time": datetime(2026, 1, 1, tzinfo=UTC),
        }
        extra = {"x-death": [death], "x-first-death-queue": "jobs", "x-first-death-reason": "expired", "mine": 1}
        await broker.publish(message("7c9e", extra=extra))
        consumer = await consume(broker)

        for _ in range(3):
            delivery = await take(consumer)
            again = retry(replace(delivery.message, extra=extra), FAILURE, worker="w", now=NOW, delay=0)
            await consumer.settle(delivery, Reschedule(again))

        delivery = await take(consumer)
        assert (delivery.message.retries, dict(delivery.message.extra)) == (3, {"mine": 1})
        await consumer.settle(delivery, Ack())

    async def test_what_waits_to_be_tried_again_is_told_from_what_is_scheduled(
        self, broker: Broker, another: Open
    ) -> None:
        nested = {"deep": {"exception-class": "KeyError"}, "text": '"exception-class":'}
        sent = [retrying("near", 55), message("plain", run_at=time.time() + 58, extra=nested), retrying("far", DAY)]
        await broker.publish_many([*sent, retrying("slow", 2 * DAY, queue="slow")])

        async def found() -> list[list[str]]:
            every = [
                RETRIES,
                ScheduledFilter(retries=False),
                ScheduledFilter(retries=True, queue="jobs"),
                ScheduledFilter(retries=True, job="x"),
            ]
            return [await listed(broker, chosen) for chosen in every]

        wanted = [["near", "far", "slow"], ["plain"], ["near", "far"], []]
        assert await found() == wanted
        async with time_kept(await another()):
            assert await found() == wanted
            assert (await broker.scheduled(RETRIES, limit=1)).total == 3
            span = (time.time() + 10, time.time() + DAY + 10)
            assert await listed(broker, ScheduledFilter(due=span)) == ["near", "plain", "far"]
            assert await listed(broker, ScheduledFilter(due=span, ids=frozenset(("near", "slow")))) == ["near"]
            assert await broker.alter_scheduled(ScheduledFilter(due=span, ids=frozenset(("slow",))), RUN) == []
            both = ScheduledFilter(ids=frozenset(("far", "plain")), retries=True)
            assert await listed(broker, both) == ["far"]

    @pytest.mark.parametrize("apart", [False, True], ids=["failed", "failed per queue"])
    @pytest.mark.parametrize("kept", [True, False], ids=["kept", "nobody"])
    async def test_what_is_given_up_fails_as_without_a_retry_left(
        self, broker: Broker, another: Open, kept: bool, apart: bool
    ) -> None:
        soon, far = retrying("soon", 55), retrying("far", DAY)
        await broker.publish_many([soon, far, message("plain", run_at=time.time() + 58)])

        async with time_kept(await another()) if kept else nullcontext():
            altered = await broker.alter_scheduled(ScheduledFilter(), GIVE_UP, failed_per_queue=apart)
            assert [(one.id, one.queue, one.run_at) for one in altered] == [
                ("soon", "jobs", soon.run_at),
                ("far", "jobs", far.run_at),
            ]
            assert await broker.alter_scheduled(ScheduledFilter(ids=frozenset(("soon", "plain"))), GIVE_UP) == []

        assert await listed(broker, ScheduledFilter()) == ["plain"]
        found = {one.id: one for one in await look(broker, "failed:jobs" if apart else "failed")}
        tried = replace(soon, retries=2, policy_retries=2, run_at=None, failure=None, attempts=soon.attempts)
        assert found["soon"] == fail(tried, FAILURE, worker="pid:1@h/worker-1")
        assert sorted(found) == ["far", "soon"]

    async def test_retries_are_run_now_or_at_another_time_and_nothing_else_is(
        self, broker: Broker, another: Open
    ) -> None:
        await broker.publish_many([retrying("a", 55), retrying("b", DAY), message("plain", run_at=time.time() + 58)])
        at = time.time() + 3 * DAY

        async with time_kept(await another()):
            now = await broker.alter_scheduled(ScheduledFilter(ids=frozenset("a"), retries=True), RUN)
            moved = await broker.alter_scheduled(RETRIES, MOVE, at=at)
            assert ([one.id for one in now], [one.id for one in moved]) == (["a"], ["b"])
            assert (await take_and_ack(await consume(await another()))).failure == FAILURE

        assert await listed(broker, ScheduledFilter()) == ["plain", "b"]
        assert await ids(broker) == []
