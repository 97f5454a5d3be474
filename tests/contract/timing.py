"""Contract: jobs that are due later, among them those that wait to be tried again."""

import asyncio
import random
import sys
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, nullcontext, suppress
from datetime import UTC, datetime
from typing import Any

import pytest
from msgspec.structs import replace

from palermo.contract.broker import Broker, Consumer
from palermo.contract.scheduled import CANCEL, GIVE_UP, MOVE, RUN, AlteredJob, OnJobs, ScheduledFilter, ignore_jobs
from palermo.contract.sweep import Move
from palermo.core.election import Duty
from palermo.core.failure import Attempt
from palermo.core.job_edit import JobEdit
from palermo.core.lifecycle import Ack, Fail, Reschedule, fail, retry
from palermo.core.message import Message
from tests.contract.tools import FAILURE, Open, counts, ids, look, message, stopped, until
from tests.contract.workers import at_work, consume, nothing_for, take, take_and_ack

DAY = 86_400.0

ALL = ScheduledFilter()


def by_id(*ids: str) -> ScheduledFilter:
    return ScheduledFilter(ids=frozenset(ids))


def due(id: str, after: float, **more: Any) -> Message:
    now = time.time()
    return message(id, run_at=now + after, created_at=int(now), **more)


@asynccontextmanager
async def time_kept(broker: Broker, fired: OnJobs = ignore_jobs) -> AsyncIterator[None]:
    keeping = asyncio.ensure_future(broker.run_scheduler(fired))
    try:
        await until(lambda: Duty.MAIN in broker.duties)
        yield
    finally:
        keeping.cancel()
        with suppress(asyncio.CancelledError):
            await keeping


async def listed(broker: Broker, chosen: ScheduledFilter = ALL, **page: int) -> list[str]:
    return [found.id for found in (await broker.scheduled(chosen, **page)).messages]


def clocks() -> dict[str, float]:
    """The time by the clocks of this machine that a job may read; localtime's has whole seconds only."""
    coarse = {"coarse": time.clock_gettime(5)} if sys.platform == "linux" else {}
    return coarse | {"time": time.time(), "datetime": datetime.now(UTC).timestamp()}


async def taken(consumer: Consumer, count: int) -> list[tuple[str, float]]:
    """The ids of the next jobs, and how late each came."""
    found = []
    for _ in range(count):
        got = await take_and_ack(consumer)
        found.append((got.id, time.time() - (got.run_at or 0)))
    return found


class TimingContract:
    async def test_no_clock_is_before_the_instant_of_a_job_that_comes(self, broker: Broker, another: Open) -> None:
        async with time_kept(await another()):
            consumer = await consume(await another())
            chance = random.Random(7)
            await broker.publish_many([due(f"{number}", chance.uniform(0.3, 1.3)) for number in range(200)])
            await broker.publish(message("now"))

            came, early = list[str](), list[str]()
            for _ in range(201):
                got = await take_and_ack(consumer)
                came.append(got.id)
                early += [name for name, clock in clocks().items() if clock < (got.run_at or 0)]

        assert len(set(came)) == 201
        assert early == []

    async def test_a_failed_job_is_failed_at_once_and_may_be_requeued_for_later(self, broker: Broker) -> None:
        consumer, delivery = await at_work(broker, message("7c9e"))
        await consumer.settle(delivery, Fail(due("7c9e", DAY, failure=FAILURE, retries=0)))
        assert await ids(broker, "failed") == ["7c9e"]

        await broker.sweep("failed", lambda found: Move(due("7c9e", DAY)))

        assert await listed(broker) == ["7c9e"]
        assert await ids(broker, "failed") == []

    async def test_one_that_is_due_already_waits_for_nobody(self, broker: Broker, another: Open) -> None:
        await broker.publish_many([due("past", -5), message("now")])

        consumer = await consume(await another())
        assert [(await take_and_ack(consumer)).id for _ in range(2)] == ["past", "now"]
        assert await listed(broker) == []

    async def test_all_of_it_comes_back_with_its_mark(self, broker: Broker, another: Open) -> None:
        sent = due("7c9e", 0.3, retries=2, preview="'ü'", timeout=3.5, extra={"region": "a"}, queue="other")
        await broker.publish(sent)
        await broker.cancel(["7c9e"], by="anna@desk")

        async with time_kept(await another()):
            delivery = await take(await consume(await another(), "other"))

        assert (delivery.message, delivery.cancelled) == (sent, True)

    @pytest.mark.slow
    async def test_another_keeps_the_time_when_the_first_goes(self, broker: Broker, another: Open) -> None:
        consumer = await consume(await another())
        first, second = await another(), await another()
        async with time_kept(first):
            standby = asyncio.ensure_future(second.run_scheduler())
            await broker.publish_many([due("soon", 0.1), due("later", 1)])
            assert (await take_and_ack(consumer)).id == "soon"
        await first.close()

        ((id, late),) = await taken(consumer, 1)

        assert (id, 0 <= late < 15) == ("later", True), (id, late)
        await stopped(standby)

    @pytest.mark.slow
    async def test_they_are_listed_soonest_first_by_page_queue_and_job(self, broker: Broker, another: Open) -> None:
        waits = [55, 70, 400, 3_000, 4_000, 7_000, 2 * DAY, 3 * DAY, 61 * DAY, 3_000 * DAY, 3_700 * DAY, 30_000 * DAY]
        sent = [due(f"{number:02}", wait) for number, wait in enumerate(waits)]
        await broker.publish_many(random.Random(5).sample(sent, len(sent)))
        wanted = [one.id for one in sent]

        async def look() -> None:
            page = await broker.scheduled(ALL)
            assert list(page.messages) == sent
            assert page.total == len(sent)
            for offset in range(0, 12, 5):
                assert await listed(broker, offset=offset, limit=5) == wanted[offset : offset + 5]
            assert await listed(broker, offset=12) == []

        await look()
        async with time_kept(await another()):
            await look()
            await look()

            await broker.publish_many([due("slow", 500, queue="slow", job="x.y")])
            assert await listed(broker, ScheduledFilter(queue="jobs")) == wanted
            assert await listed(broker, ScheduledFilter(job="shop.*")) == wanted
            assert await listed(broker, ScheduledFilter(queue="s*", job="x.y")) == ["slow"]
            assert (await broker.scheduled(ScheduledFilter(queue="jobs"), limit=1)).total == len(sent)
            assert (await broker.scheduled(ScheduledFilter(queue="none"))).total == 0

    @pytest.mark.parametrize("kept", [True, False], ids=["kept", "nobody"])
    async def test_cancelled_ones_are_gone(self, broker: Broker, another: Open, kept: bool) -> None:
        sent = [due("near", 55), due("hour", 1_800), due("far", 400 * DAY)]
        await broker.publish_many(sent)

        async with time_kept(await another()) if kept else nullcontext():
            altered = await broker.alter_scheduled(by_id("near", "far", "nobody"), CANCEL)
            assert await listed(broker) == ["hour"]
            assert await broker.alter_scheduled(by_id("near", "far"), CANCEL) == []

        job = "shop.mail.send"
        assert [(one.id, one.queue, one.job) for one in altered] == [("near", "jobs", job), ("far", "jobs", job)]
        assert altered[0].run_at == sent[0].run_at

    @pytest.mark.slow
    async def test_many_are_run_now_or_moved_each_once(self, broker: Broker, another: Open) -> None:
        now = time.time()
        sent = [due(f"{number}", 55 * 3**number) for number in range(12)]
        await broker.publish_many([replace(one, expires_at=(one.run_at or 0) + 10) for one in sent])

        assert sorted(one.id for one in await broker.alter_scheduled(by_id("0", "11"), RUN)) == ["0", "11"]
        consumer = await consume(await another())
        assert {(await take_and_ack(consumer)).id for _ in range(2)} == {"0", "11"}

        async with time_kept(await another()):
            moved = await broker.alter_scheduled(ALL, MOVE, at=now + 5_000)
            assert sorted(one.id for one in moved) == sorted(f"{number}" for number in range(1, 11))
            await broker.alter_scheduled(by_id("10"), MOVE, at=now + 1)
            assert (await take_and_ack(consumer)).id == "10"
            page = await broker.scheduled(ALL)
        assert (page.total, {one.run_at for one in page.messages}) == (9, {now + 5_000})
        assert page.messages[0].expires_at == pytest.approx(now + 5_010, abs=0.1)

    @pytest.mark.parametrize("after", [55.0, 30 * DAY])
    async def test_one_can_be_changed_where_it_waits(self, broker: Broker, another: Open, after: float) -> None:
        old = due("a", after, failure=FAILURE, retries=1)
        await broker.publish_many([old, due("b", after)])
        content = message("-", body=b"[42]", preview="42")
        edit = JobEdit(content=content, queue="slow", priority=5, run_at=old.run_at)

        async with time_kept(await another()):
            altered = await broker.edit_scheduled("a", edit)
            gone = await broker.edit_scheduled("nobody", edit)
            found = {one.id: one for one in (await broker.scheduled(ALL)).messages}
            await broker.edit_scheduled("b", JobEdit(queue="slow", run_at=time.time()))
            assert (await take_and_ack(await consume(await another(), "slow"))).id == "b"
            assert await listed(broker) == ["a"]

        assert ([(one.id, one.queue) for one in altered], gone) == ([("a", "jobs")], [])
        assert found.keys() == {"a", "b"}
        changed = found["a"]
        assert (changed.body, changed.preview, changed.queue, changed.priority) == (b"[42]", "42", "slow", 5)
        assert (found["a"].run_at, found["a"].retries, found["a"].failure) == (old.run_at, 1, FAILURE)
        assert found["b"].queue == "jobs"

    async def test_of_coming_due_and_being_cancelled_exactly_one_happens(self, broker: Broker, another: Open) -> None:
        consumer = await consume(await another())
        ran: list[str] = []

        async def run() -> None:
            while True:
                # All may have come long before the last is asked to be cancelled.
                delivery = await take(consumer, within=380)
                await consumer.settle(delivery, Ack())
                ran.append(delivery.message.id)

        async with time_kept(await another()):
            running = asyncio.ensure_future(run())
            sent = [due(f"{number}", 0.2 + number * 0.003) for number in range(120)]
            await broker.publish_many(sent)
            cancelled: list[AlteredJob] = []
            for one in sent:
                await asyncio.sleep(max(0, (one.run_at or 0) - time.time() - 0.002))
                cancelled += await broker.alter_scheduled(by_id(one.id), CANCEL)
            await broker.publish(message("end"))
            with suppress(TimeoutError):  # and then the comparison says which are missing
                async with asyncio.timeout(120):
                    while "end" not in ran or len(ran) + len(cancelled) < 121:  # noqa: ASYNC110 - nobody tells
                        await asyncio.sleep(0.02)
            running.cancel()

        assert sorted([*ran, *(one.id for one in cancelled)]) == sorted([one.id for one in sent] + ["end"])


#: Long ago, so that what is retried is due at once.
NOW = 1_700_000_000.5

RETRIES = ScheduledFilter(retries=True)


def retrying(id: str, after: float, queue: str = "jobs", **more: object) -> Message:
    """A job that has failed for the third time, and is due again in so many seconds."""
    earlier = tuple(
        Attempt(number=n, exception_class="KeyError", message="ab"[n - 1], failed_at=1_699_999_999 + n) for n in (1, 2)
    )
    sent = message(id, queue, attempts=earlier, retries=2, policy_retries=2, retrying_since=NOW, **more)
    return retry(sent, FAILURE, worker="pid:1@h/worker-1", now=time.time(), delay=after)


class RetryingContract:
    async def test_a_job_that_is_retried_comes_back_with_its_error(self, broker: Broker) -> None:
        sent = message("7c9e", extra={"region": "acme"}, created_at=1_700_000_000)
        consumer, delivery = await at_work(broker, sent)

        again = retry(delivery.message, FAILURE, worker="pid:1@h/worker-1", now=NOW, delay=0.5)
        await consumer.settle(delivery, Reschedule(again))

        found = (await take(consumer)).message
        assert found == again
        assert (found.retries, found.policy_retries, found.retrying_since, found.run_at) == (1, 1, NOW, NOW + 0.5)
        assert found.failure == FAILURE
        await nothing_for(consumer)
        await consumer.close()
        await until(lambda: counts(broker), (1, 0))

    async def test_another_worker_may_take_what_one_retries(self, broker: Broker, another: Open) -> None:
        first, delivery = await at_work(broker, message("7c9e"))
        second = await consume(await another())
        await nothing_for(second)
        await first.pause_slot(1)

        await first.settle(delivery, Reschedule(replace(delivery.message, run_at=NOW)))

        assert (await take_and_ack(second)).run_at == NOW

    async def test_a_job_cancelled_while_it_ran_is_cancelled_at_its_retry(self, broker: Broker, another: Open) -> None:
        consumer, delivery = await at_work(broker, message("7c9e", created_at=1_700_000_000))
        await broker.cancel(["7c9e"], by="somebody")

        await consumer.settle(delivery, Reschedule(retry(delivery.message, FAILURE, worker="w", now=NOW, delay=0)))

        await consumer.close()
        successor = await consume(await another())
        again = await take(successor)
        assert (again.message.retries, again.cancelled) == (1, True)
        await successor.settle(again, Ack())

    async def test_a_dead_lettered_job_survives_its_retry(self, broker: Broker) -> None:
        """RabbitMQ silently drops a message whose old x-death shows a cycle: the trap of every second delay."""
        death = {"count": 1, "reason": "expired", "queue": "jobs", "exchange": "", "routing-keys": ["jobs"]}
        death["time"] = datetime(2026, 1, 1, tzinfo=UTC)
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

    @pytest.mark.slow
    async def test_retries_are_told_from_what_is_scheduled(self, broker: Broker, another: Open) -> None:
        nested = {"deep": {"exception-class": "KeyError"}, "text": '"exception-class":'}
        sent = [retrying("near", 55), message("plain", run_at=time.time() + 58, extra=nested), retrying("far", DAY)]
        await broker.publish_many([*sent, retrying("slow", 2 * DAY, queue="slow")])

        async def found() -> list[list[str]]:
            every: list[dict[str, Any]] = [{"retries": True}, {"retries": False}]
            every += [{"retries": True, "queue": "jobs"}, {"retries": True, "job": "x"}]
            return [await listed(broker, ScheduledFilter(**chosen)) for chosen in every]

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
            assert [one.id for one in await broker.alter_scheduled(both, RUN)] == ["far"]

    @pytest.mark.parametrize("apart", [False, True], ids=["failed", "failed per queue"])
    @pytest.mark.parametrize("kept", [True, False], ids=["kept", "nobody"])
    async def test_what_is_given_up_fails_at_once(self, broker: Broker, another: Open, kept: bool, apart: bool) -> None:
        soon, far = retrying("soon", 55), retrying("far", DAY)
        await broker.publish_many([soon, far, message("plain", run_at=time.time() + 58)])

        async with time_kept(await another()) if kept else nullcontext():
            altered = await broker.alter_scheduled(ScheduledFilter(), GIVE_UP, failed_per_queue=apart)
            given_up = [(one.id, "jobs", one.run_at) for one in (soon, far)]
            assert [(one.id, one.queue, one.run_at) for one in altered] == given_up
            assert await broker.alter_scheduled(ScheduledFilter(ids=frozenset(("soon", "plain"))), GIVE_UP) == []

        assert await listed(broker, ScheduledFilter()) == ["plain"]
        found = {one.id: one for one in await look(broker, "failed:jobs" if apart else "failed")}
        tried = replace(soon, retries=2, policy_retries=2, run_at=None, failure=None, attempts=soon.attempts)
        assert found["soon"] == fail(tried, FAILURE, worker="pid:1@h/worker-1")
        assert sorted(found) == ["far", "soon"]
