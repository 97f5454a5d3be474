"""Contract: paused queues and cancelled jobs."""

import asyncio
import time

from palermo.client.control import cancel_jobs
from palermo.client.status import locate
from palermo.contract.broker import Broker
from palermo.contract.scheduled import ScheduledFilter
from palermo.contract.sweep import Move
from palermo.contract.worker_info import WorkerCommand
from palermo.core.lifecycle import Ack, Release, requeue
from palermo.core.queue_selection import EVERY_QUEUE
from tests.contract.tools import Open, counts, message, messages, put_into_failed, until
from tests.contract.worker_commands import Obeying
from tests.contract.workers import Report, at_work, consume, nothing_for, take, take_and_ack


def ahead(seconds: int) -> int:
    """What a clock says that is ahead; not counted from when the tests were collected, which may be an hour ago."""
    return int(time.time()) + seconds


class MarkingContract:
    async def test_a_paused_queue_is_left_alone_until_it_is_resumed(self, broker: Broker, another: Open) -> None:
        consumer = await consume(await another(), slots=2)
        await broker.publish(message("before"))
        held = await take(consumer)

        await broker.pause("jobs", by="anna@desk")
        await broker.publish_many(messages(2))
        await nothing_for(consumer, 2)
        await consumer.settle(held, Ack())
        await nothing_for(consumer)
        await until(lambda: counts(broker), (2, 0))
        waiting = asyncio.ensure_future(take_and_ack(consumer))

        await broker.resume("jobs", by="anna@desk")
        assert [(await waiting).id, (await take_and_ack(consumer)).id] == ["jobs-0", "jobs-1"]

    async def test_who_waits_when_a_queue_is_paused_gets_none_of_its_jobs(self, broker: Broker, another: Open) -> None:
        consumer = await consume(await another(), "jobs,other")
        await broker.publish_many([*messages(1), *messages(1, "other")])
        assert {(await take_and_ack(consumer)).id for _ in range(2)} == {"jobs-0", "other-0"}
        waiting = asyncio.ensure_future(take_and_ack(consumer))

        await broker.pause("jobs")
        await broker.publish(message("goes on", queue="other"))
        assert (await waiting).id == "goes on"
        waiting = asyncio.ensure_future(take_and_ack(consumer))
        assert (await asyncio.wait({waiting}, timeout=0.3))[0] == set()
        await broker.publish_many(messages(1))
        assert (await asyncio.wait({waiting}, timeout=0.3))[0] == set()

        await broker.publish(message("the last", queue="other"))
        assert (await waiting).id == "the last"
        await until(lambda: counts(broker), (1, 0))

    async def test_no_job_is_taken_from_any_queue_while_all_are_paused(self, broker: Broker, another: Open) -> None:
        one, several = await consume(await another()), await consume(await another(), "*", slots=2)
        await broker.publish(message("before"))
        held = await take(one)

        await broker.pause(EVERY_QUEUE, by="anna@desk")
        await broker.publish_many([*messages(2), *messages(1, "made later")])

        assert await broker.all_paused()
        await one.settle(held, Ack())
        await nothing_for(one)
        await nothing_for(several, 2)
        later = await consume(await another(), "made later")
        await nothing_for(later)
        await one.close()
        await several.close()

        await broker.resume(EVERY_QUEUE, by="anna@desk")

        assert not await broker.all_paused()
        assert (await take_and_ack(later)).id == "made later-0"
        assert (await take_and_ack(await consume(await another(), "*"))).id == "jobs-0"

    async def test_a_queue_paused_by_name_stays_so_when_all_are_resumed(self, broker: Broker, another: Open) -> None:
        await broker.publish_many([*messages(1, "a"), *messages(1, "b")])
        await broker.pause("b")
        await broker.pause("not yet there")
        await broker.pause(EVERY_QUEUE)
        await broker.publish_many(messages(1, "made later"))

        async def paused() -> dict[str, bool]:
            queues = await (await another()).queues()
            return {info.name: info.paused for info in queues if info.name != "failed"}

        await until(paused, {"a": True, "b": True, "made later": True, "not yet there": True})
        for name in ("a", "not yet there"):
            await broker.resume(name)
        await until(paused, {"a": True, "b": True, "made later": True})

        for _ in range(2):
            await broker.resume(EVERY_QUEUE)

        await until(paused, {"a": False, "b": True, "made later": False})
        consumer = await consume(await another(), "b,a")
        assert (await take_and_ack(consumer)).id == "a-0"
        for late in (consumer, await consume(await another(), "b")):
            await nothing_for(late)

    async def test_a_cancelled_job_is_handed_out_as_cancelled_in_its_turn(self, broker: Broker, another: Open) -> None:
        await broker.publish_many(messages(4))
        await broker.cancel(["jobs-0", "jobs-1", "jobs-3", "nobody"], by="anna@desk")
        await broker.restore(["jobs-0", "nobody"])

        assert (await broker.browse("jobs")).cancelled == {"jobs-1", "jobs-3"}
        consumer = await consume(await another())
        taken = []
        for _ in range(4):
            delivery = await take(consumer)
            taken.append((delivery.message.id, delivery.cancelled, delivery.cancelled_by))
            await consumer.settle(delivery, Ack())
        anna = (True, "anna@desk")
        assert taken == [("jobs-0", False, ""), ("jobs-1", *anna), ("jobs-2", False, ""), ("jobs-3", *anna)]

    async def test_who_holds_a_cancelled_job_is_told(self, broker: Broker, another: Open) -> None:
        obeying = Obeying(None)
        consumer, held = await at_work(broker, message("7c9e"), on=await another(), on_command=obeying)

        await broker.cancel(["7c9e"], by="anna@desk")

        await until(lambda: obeying.orders, [WorkerCommand(action="cancel", id="7c9e", by="anna@desk")])
        await consumer.settle(held, Release())
        assert (await take(consumer)).cancelled

    async def test_only_jobs_made_before_the_cancellation_are_cancelled(self, broker: Broker, another: Open) -> None:
        now, soon = ahead(0), ahead(3_600)
        await broker.cancel(["later", "old"])
        await broker.publish(message("ahead", created_at=soon))
        await broker.cancel(["ahead"], created_at=soon)
        for id, created in (("later", soon), ("old", now - 3_600), ("ahead", soon + 2)):
            await broker.publish(message(id, created_at=created))

        assert (await broker.browse("jobs")).cancelled == {"ahead", "old"}
        consumer = await consume(await another())
        found = []
        for _ in range(4):
            delivery = await take(consumer)
            found.append((delivery.message.id, delivery.cancelled))
            await consumer.settle(delivery, Ack())
        assert found == [("ahead", True), ("later", False), ("old", True), ("ahead", False)]

    async def test_jobs_of_a_clock_that_is_ahead_are_cancelled_wherever_they_wait(self, broker: Broker) -> None:
        created = ahead(90)
        later = message("later", created_at=created, run_at=time.time() + 3_600)
        tenant = message("tenant", created_at=created, tenant="a")
        await broker.publish_many([message("waits", created_at=created), later, tenant, message("stays")])

        rows = await cancel_jobs(broker, ["waits", "later", "tenant", "nobody"], by="anna@desk")

        assert {row["state"] for row in rows} == {"marked"}
        assert (await broker.browse("jobs")).cancelled == {"waits", "tenant"}
        assert (await broker.scheduled(ScheduledFilter())).cancelled == {"later"}
        assert (await locate(broker, "later")).state == "cancelled"

    async def test_a_requeued_job_is_not_cancelled_any_more(self, broker: Broker, another: Open) -> None:
        await put_into_failed(broker, [message("7c9e")])
        await broker.cancel(["7c9e"])

        swept = await broker.sweep("failed", lambda found: Move(requeue(found)))

        assert swept.moved == 1
        delivery = await take(await consume(await another()))
        assert (delivery.message.id, delivery.cancelled) == ("7c9e", False)

    async def test_ten_thousand_are_cancelled(self, broker: Broker, another: Open) -> None:
        await broker.publish_many(messages(20))

        await broker.cancel([f"jobs-{number}" for number in range(1, 10_001)])

        assert (await broker.browse("jobs")).cancelled == {f"jobs-{number}" for number in range(1, 20)}
        report = Report("jobs")
        delivery = await take(await consume(await another(), report=report))
        assert (delivery.message.id, delivery.cancelled) == ("jobs-0", False)
