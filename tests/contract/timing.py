"""Contract: jobs that are due later."""

import asyncio
import random
import sys
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, nullcontext, suppress
from datetime import UTC, datetime
from typing import Any

import pytest

from palermo.contract.broker import Broker, Consumer
from palermo.contract.scheduled import CANCEL, MOVE, RUN, AlteredJob, OnJobs, ScheduledFilter, ignore_jobs
from palermo.contract.sweep import Move
from palermo.core.election import Duty
from palermo.core.job_edit import JobEdit
from palermo.core.lifecycle import Ack, Fail
from palermo.core.message import Message
from palermo.errors import NotFound
from tests.contract.tools import (
    FAILURE,
    Open,
    consume,
    ids,
    message,
    messages,
    nothing_for,
    put_into_failed,
    take,
    take_and_ack,
    until,
)

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
        async with asyncio.timeout(60):
            while Duty.TIME not in broker.duties:  # noqa: ASYNC110 - nobody tells
                await asyncio.sleep(0.01)
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
    async def test_a_delayed_job_comes_at_its_time_and_never_before(self, broker: Broker, another: Open) -> None:
        async with time_kept(await another()):
            consumer = await consume(await another())
            for longer in (1, 10, 30):
                # Their instants are counted from one moment: how long each publish takes says nothing about the order.
                first, later, last = due("first", 0.2 * longer), due("later", 0.4 * longer), due("last", 0.9 * longer)
                await broker.publish(later)
                await broker.publish(message("now"))
                await broker.publish_many([last, first])
                stored = time.time()
                order = [(await take_and_ack(consumer)).id]
                for _ in range(3):
                    ((id, late),) = await taken(consumer, 1)
                    order.append(id)
                    assert id == "now" or late >= 0
                if stored < (first.run_at or 0):
                    break

        assert order == ["now", "first", "later", "last"]

    async def test_no_clock_of_the_machine_is_before_the_instant_of_a_job_that_comes(
        self, broker: Broker, another: Open
    ) -> None:
        async with time_kept(await another()):
            consumer = await consume(await another())
            chance = random.Random(7)
            await broker.publish_many([due(f"{number}", chance.uniform(0.5, 2.5)) for number in range(200)])

            early = []
            for _ in range(200):
                got = await take_and_ack(consumer)
                early += [name for name, clock in clocks().items() if clock < (got.run_at or 0)]

        assert early == []

    async def test_one_that_is_due_already_waits_for_nobody(self, broker: Broker, another: Open) -> None:
        await broker.publish_many([due("past", -5), message("now")])

        consumer = await consume(await another())
        assert [(await take_and_ack(consumer)).id for _ in range(2)] == ["past", "now"]
        assert await listed(broker) == []

    async def test_all_of_it_comes_back(self, broker: Broker, another: Open) -> None:
        sent = due("7c9e", 0.1, retries=2, preview="'ü'", timeout=3.5, extra={"region": "a"}, queue="other")
        await broker.publish(sent)

        async with time_kept(await another()):
            assert (await take(await consume(await another(), "other"))).message == sent

    async def test_what_is_due_later_is_not_in_its_queue(self, broker: Broker, another: Open) -> None:
        await broker.publish_many([*messages(2), due("later", DAY)])

        await until(lambda: ids(broker), ["jobs-0", "jobs-1"])
        consumer = await consume(await another())
        await taken(consumer, 2)
        async with time_kept(await another()):
            await nothing_for(consumer)
            assert await listed(broker) == ["later"]

    async def test_nobody_to_keep_the_time_and_all_that_is_overdue_comes_at_once(
        self, broker: Broker, another: Open
    ) -> None:
        for after in (1.0, 10.0, 30.0):
            sent = [due(f"{after}-{number}", after) for number in range(20)]
            await broker.publish_many(sent)
            if in_time := time.time() < (sent[0].run_at or 0):
                break
            # What was due before it was stored waits for nobody.
            await broker.alter_scheduled(ALL, CANCEL)
            with suppress(NotFound):
                await broker.purge("jobs")
        assert in_time
        consumer = await consume(await another())
        await nothing_for(consumer, within=(sent[-1].run_at or 0) + 0.5 - time.time())

        async with time_kept(await another()):
            found = {id for id, _ in await taken(consumer, 20)}

        assert found == {one.id for one in sent}

    async def test_another_takes_over_when_the_one_that_keeps_the_time_goes(
        self, broker: Broker, another: Open
    ) -> None:
        consumer = await consume(await another())
        first, second = await another(), await another()
        async with time_kept(first):
            standby = asyncio.ensure_future(second.run_scheduler())
            await broker.publish_many([due("soon", 0.1), due("later", 3)])
            assert (await take_and_ack(consumer)).id == "soon"
        await first.close()

        ((id, late),) = await taken(consumer, 1)

        assert (id, 0 <= late < 15) == ("later", True), (id, late)
        standby.cancel()
        await asyncio.wait({standby})

    async def test_they_are_listed_soonest_first_page_by_page(self, broker: Broker, another: Open) -> None:
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

    async def test_they_are_found_by_queue_and_job(self, broker: Broker) -> None:
        await broker.publish_many(
            [due("a", 50, job="shop.mail.send"), due("b", 500, job="shop.pay"), due("c", DAY, queue="slow", job="x.y")]
        )

        assert await listed(broker, ScheduledFilter(queue="jobs")) == ["a", "b"]
        assert await listed(broker, ScheduledFilter(job="shop.*")) == ["a", "b"]
        assert await listed(broker, ScheduledFilter(queue="s*", job="x.y")) == ["c"]
        assert (await broker.scheduled(ScheduledFilter(queue="jobs"), limit=1)).total == 2
        assert (await broker.scheduled(ScheduledFilter(queue="none"))).total == 0

    @pytest.mark.parametrize("kept", [True, False], ids=["kept", "nobody"])
    async def test_cancelled_ones_do_not_run(self, broker: Broker, another: Open, kept: bool) -> None:
        async def cancelled(after: float) -> bool:
            """Cancel the first and the last; False if the first was due before that was done."""
            sent = [due("near", after), due("soon", after), due("hour", 1_800), due("far", 400 * DAY)]
            await broker.publish_many(sent)
            async with time_kept(await another()) if kept else nullcontext():
                altered = await broker.alter_scheduled(by_id("near", "far", "nobody"), CANCEL)
                left = await listed(broker)
                if time.time() >= (sent[0].run_at or 0):
                    await broker.alter_scheduled(ALL, CANCEL)
                    return False
                assert [(one.id, one.queue, one.job) for one in altered] == [
                    ("near", "jobs", "shop.mail.send"),
                    ("far", "jobs", "shop.mail.send"),
                ]
                assert altered[0].run_at == sent[0].run_at
                assert left == ["soon", "hour"]
                assert await broker.alter_scheduled(by_id("near", "far"), CANCEL) == []
            return True

        waits = iter((2, 15, 40))
        while not await cancelled(next(waits)):
            await until(lambda: listed(broker), [])
            with suppress(NotFound):
                await broker.delete("jobs")
        consumer = await consume(await another())
        async with time_kept(await another()):
            assert (await take_and_ack(consumer)).id == "soon"
            await nothing_for(consumer)

    async def test_they_can_be_run_now(self, broker: Broker, another: Open) -> None:
        await broker.publish_many([due("near", 55), due("far", 30 * DAY), due("other", 55, queue="slow")])

        altered = await broker.alter_scheduled(ScheduledFilter(queue="jobs"), RUN)

        assert [one.id for one in altered] == ["near", "far"]
        consumer = await consume(await another())
        assert sorted([(await take_and_ack(consumer)).id for _ in range(2)]) == ["far", "near"]
        assert await listed(broker) == ["other"]

    async def test_they_can_be_moved_in_time(self, broker: Broker, another: Open) -> None:
        now = time.time()
        first = message("a", run_at=now + 55, created_at=int(now), expires_at=now + 65)
        await broker.publish_many([first, due("b", 30 * DAY), due("c", 7_000)])

        async with time_kept(await another()):
            assert len(await broker.alter_scheduled(by_id("a"), MOVE, at=now + DAY)) == 1
            assert len(await broker.alter_scheduled(by_id("b"), MOVE, at=now + 1)) == 1
            assert (await take_and_ack(await consume(await another()))).id == "b"

        found = (await broker.scheduled(ALL)).messages
        assert [(one.id, one.run_at) for one in found[1:]] == [("a", now + DAY)], found
        assert found[1].expires_at == pytest.approx(now + DAY + 10, abs=0.1)

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

        assert ([(one.id, one.queue) for one in altered], gone) == ([("a", "jobs")], [])
        assert found.keys() == {"a", "b"}
        assert (found["a"].body, found["a"].preview, found["a"].queue, found["a"].priority) == (
            b"[42]",
            "42",
            "slow",
            5,
        )
        assert (found["a"].run_at, found["a"].retries, found["a"].failure) == (old.run_at, 1, FAILURE)
        assert found["b"].queue == "jobs"

    async def test_one_that_is_changed_to_run_at_once_is_in_its_new_queue(self, broker: Broker, another: Open) -> None:
        await broker.publish_many([due("a", 55)])

        async with time_kept(await another()):
            await broker.edit_scheduled("a", JobEdit(queue="slow", run_at=time.time()))
            found = await take_and_ack(await consume(await another(), "slow"))

        assert (found.id, found.queue) == ("a", "slow")
        assert await listed(broker) == []

    async def test_moving_all_moves_each_once(self, broker: Broker, another: Open) -> None:
        at = time.time() + 5_000
        await broker.publish_many([due(f"{number}", 55 * 3**number) for number in range(12)])

        async with time_kept(await another()):
            altered = await broker.alter_scheduled(ALL, MOVE, at=at)
            assert sorted(one.id for one in altered) == sorted(f"{number}" for number in range(12))
            page = await broker.scheduled(ALL)

        assert (page.total, {one.run_at for one in page.messages}) == (12, {at})

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
            sent = [due(f"{number}", 0.2 + number * 0.003) for number in range(500)]
            await broker.publish_many(sent)
            cancelled: list[AlteredJob] = []
            for one in sent:
                await asyncio.sleep(max(0, (one.run_at or 0) - time.time() - 0.002))
                cancelled += await broker.alter_scheduled(by_id(one.id), CANCEL)
            await broker.publish(message("end"))
            with suppress(TimeoutError):  # and then the comparison says which are missing
                async with asyncio.timeout(120):
                    while "end" not in ran or len(ran) + len(cancelled) < 501:  # noqa: ASYNC110 - nobody tells
                        await asyncio.sleep(0.02)
            running.cancel()

        assert sorted([*ran, *(one.id for one in cancelled)]) == sorted([one.id for one in sent] + ["end"])

    async def test_a_mark_on_a_scheduled_job_holds_when_it_comes(self, broker: Broker, another: Open) -> None:
        await broker.publish(due("7c9e", 0.3))
        await broker.cancel(["7c9e"], by="anna@desk")

        async with time_kept(await another()):
            delivery = await take(await consume(await another()))

        assert (delivery.message.id, delivery.cancelled) == ("7c9e", True)

    async def test_a_failed_job_is_failed_at_once_whatever_its_time_was(self, broker: Broker, another: Open) -> None:
        await broker.publish(message("7c9e"))
        consumer = await consume(await another())
        delivery = await take(consumer)
        await consumer.settle(delivery, Fail(due("7c9e", DAY, failure=FAILURE, retries=0)))

        assert await ids(broker, "failed") == ["7c9e"]

    async def test_a_requeue_may_name_a_time(self, broker: Broker, another: Open) -> None:
        await put_into_failed(broker, [message("7c9e")])

        await broker.sweep("failed", lambda found: Move(due("7c9e", DAY)))

        assert await listed(broker) == ["7c9e"]
        assert await ids(broker, "failed") == []

    async def test_jobs_of_another_exchange_are_not_seen(self, broker: Broker, elsewhere: Open) -> None:
        await (await elsewhere()).publish(due("7c9e", DAY))

        assert await listed(broker) == []
        assert await broker.alter_scheduled(ALL, CANCEL) == []

    async def test_nothing_is_scheduled_on_an_untouched_broker(self, broker: Broker, another: Open) -> None:
        assert await listed(broker) == []
        async with time_kept(await another()):
            assert await listed(broker) == []
            assert await broker.alter_scheduled(ALL, RUN) == []
