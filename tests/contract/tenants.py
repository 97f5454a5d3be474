"""Contract: jobs of several tenants in one queue."""

import time
from collections.abc import Mapping
from itertools import pairwise

import pytest
from msgspec.structs import replace

from palermo.contract.broker import Broker, Consumer
from palermo.contract.sweep import Keep, Move, Remove, SweepDecision
from palermo.core.lifecycle import Ack, Fail, Release, Reschedule, fail, requeue
from palermo.core.message import Message
from palermo.core.step_values import pack
from palermo.core.workflow import AddedStep, Graph, Member, StepJob
from palermo.core.workflow_rules import Plan
from palermo.errors import NotFound
from tests.contract.timing import due, time_kept
from tests.contract.tools import FAILURE, Open, counts, ids, message, until
from tests.contract.workers import consume, nothing_for, take, take_and_ack
from tests.helpers import Stopwatch
from tests.scale import scaled


def jobs_of(tenant: str, count: int, queue: str = "jobs", **more: object) -> list[Message]:
    return [message(f"{tenant}-{number}", queue, tenant=tenant, **more) for number in range(count)]


async def tenants(broker: Broker, queue: str = "jobs") -> dict[str, int]:
    """How many jobs of each tenant wait: for a moment one less than there are, while the leader is sent a job."""
    return {one.name: one.pending for one in await broker.tenants.of(queue)}


async def has(broker: Broker, least: int, tenant: str = "a") -> bool:
    """Whether so many jobs of the tenant wait for its turns."""
    return (await tenants(broker)).get(tenant, 0) >= least


async def known(broker: Broker, *names: str) -> None:
    """Wait until the leader has heard of these tenants, which have jobs."""

    async def heard_of() -> bool:
        return set(names) <= (await tenants(broker)).keys()

    await until(heard_of, True)


async def served(consumer: Consumer, count: int) -> list[str]:
    """The tenants of the next jobs."""
    return [(await take_and_ack(consumer)).tenant for _ in range(count)]


class TenantingContract:
    #: The most jobs that are counted for their queue alone, since their tenants have had their turn.
    had_their_turn = 0

    async def test_clearing_a_tenant_without_jobs_says_so(self, broker: Broker) -> None:
        with pytest.raises(NotFound, match="'a'"):
            await broker.tenants.clear("jobs", "a")
        await broker.publish(message())
        assert await broker.tenants.of("jobs") == []
        assert sum((await broker.tenants.totals()).values()) == 0
        await broker.publish_many(jobs_of("b", 1))

        with pytest.raises(NotFound, match="'a'"):
            await broker.tenants.clear("jobs", "a")

    async def test_steps_wait_with_their_tenants_jobs_and_end_when_these_are_cleared(
        self, broker: Broker, another: Open
    ) -> None:
        job, members = StepJob.of(message("-", tenant="a")), tuple(Member(b"[1]") for _ in range(5))
        adds = pack(Graph(steps=(AddedStep(Plan(name="many", members=5), job, members),)))
        async with time_kept(await another()):
            consumer = await consume(await another())
            await broker.publish(message("flow"))
            await consumer.settle(await take(consumer), Ack(adds=adds))
            assert await served(consumer, 2) == ["a", "a"]
            await consumer.close()

            async def members_over() -> list[tuple[int, int]]:
                flow = await broker.workflows.find("flow")
                members = None if flow is None else flow.steps["many"].members
                return [] if members is None else [(members.over, members.failed)]

            await until(members_over, [(2, 0)])
            assert await broker.tenants.clear("jobs", "a") == 3
            await until(members_over, [(5, 3)])

    async def test_the_waits_of_many_tenants_stay_within_twice_the_ideal(self, broker: Broker, another: Open) -> None:
        count = scaled(40, 1_000)
        # Each behind all of the one before: what comes first must not be what is served first.
        await broker.publish_many([one for tenant in range(count) for one in jobs_of(f"{tenant}", 3)])
        async with time_kept(broker):
            await known(broker, *map(str, range(count)))
            consumer = await consume(await another())
            order = await served(consumer, 3 * count)

        places = {tenant: [0, *(place for place, one in enumerate(order) if one == tenant)] for tenant in set(order)}
        gaps = [then - now for found in places.values() for now, then in pairwise(found)]
        assert len(places) == count
        assert max(gaps) <= 2 * count

    async def test_a_tenants_jobs_come_in_order_and_nobodys_first(self, broker: Broker, another: Open) -> None:
        await broker.publish_many([*jobs_of("a", 20), *jobs_of("b", 20), message("nobody's")])
        async with time_kept(broker):
            consumer = await consume(await another())
            found = [(await take_and_ack(consumer)).id for _ in range(41)]

        assert "nobody's" in found[:3]
        for tenant in "ab":
            assert [id for id in found if id.startswith(tenant)] == [f"{tenant}-{number}" for number in range(20)]

    async def test_a_larger_share_gets_more(self, broker: Broker, another: Open) -> None:
        await broker.publish_many([*jobs_of("a", 60, share=3.0), *jobs_of("b", 60)])
        async with time_kept(broker):
            await known(broker, "a", "b")
            consumer = await consume(await another())
            order = await served(consumer, 40)

        assert 28 <= order.count("a") <= 32

    async def test_tenants_are_served_at_random(self, another: Open) -> None:
        broker = await another(tenant_order="random")
        await broker.publish_many([one for tenant in "abcd" for one in jobs_of(tenant, 100)])
        async with time_kept(broker):
            await known(broker, *"abcd")
            consumer = await consume(broker)
            order = await served(consumer, 120)

        assert all(order.count(tenant) >= 10 for tenant in "abcd")
        assert order != ["a", "b", "c", "d"] * 30

    async def test_a_new_tenant_is_found_at_once(self, broker: Broker, another: Open) -> None:
        publisher = await another()
        async with time_kept(broker):
            consumer = await consume(await another())
            took: list[float] = []
            for tenant in ("a", "b", "a", "c"):
                await publisher.publish(message(tenant=tenant))
                watch = Stopwatch()
                delivery = await take(consumer)
                took.append(watch.seconds())
                assert delivery.message.tenant == tenant
                await consumer.settle(delivery, Ack())
            await until(lambda: tenants(broker), {})
        # The median of the three that were new, as the machine may stand still once.
        assert sorted([took[0], took[1], took[3]])[1] < 2, took

    async def test_a_job_that_is_held_is_nobody_elses(self, broker: Broker, another: Open) -> None:
        await broker.publish_many([*jobs_of("a", 1), *jobs_of("b", 1)])
        async with time_kept(broker):
            first, second = await consume(await another()), await consume(await another())
            held = [await take(first), await take(second)]
            await nothing_for(await consume(await another()))

            assert {one.message.tenant for one in held} == {"a", "b"}
            await first.close()
            heir = await consume(await another())
            again = await take(heir)
            assert again.message.id == held[0].message.id
            await heir.settle(again, Release())
            assert (await take(heir)).message.id == again.message.id

    async def test_a_retry_waits_with_its_tenants_jobs(self, broker: Broker, another: Open) -> None:
        await broker.publish_many(jobs_of("a", 2))
        async with time_kept(broker):
            consumer = await consume(await another())
            delivery = await take(consumer)
            await consumer.settle(delivery, Reschedule(replace(delivery.message, retries=1)))
            found = [await take(consumer)]
            await consumer.settle(found[0], Ack())
            found.append(await take(consumer))
            assert [(one.message.id, one.message.attempt) for one in found] == [("a-1", 1), ("a-0", 2)]

            await consumer.settle(found[1], Fail(fail(found[1].message, FAILURE, worker="pid:1@h/worker-1")))
            assert await tenants(broker) == {}
            (failed,) = (await broker.browse("failed")).messages
            assert (failed.tenant, failed.queue) == ("a", "jobs")

            await consumer.pause_slot(1)
            await broker.publish_many([requeue(failed)])
            assert (await take(consumer)).message.tenant == "a"

    @pytest.mark.slow
    async def test_a_delayed_job_joins_its_tenants_jobs_when_it_is_due(self, broker: Broker, another: Open) -> None:
        soon = due("soon", 0.2, tenant="a")
        await broker.publish_many([soon, *jobs_of("b", 1)])
        assert "a" not in await tenants(broker) or time.time() >= (soon.run_at or 0)

        async with time_kept(broker):
            consumer = await consume(await another())
            came = {(await take_and_ack(consumer)).tenant: time.time() for _ in range(2)}
        assert came.keys() == {"a", "b"}
        assert came["a"] >= (soon.run_at or 0)

    async def test_what_tenants_have_is_browsed_and_swept_with_the_queue(self, broker: Broker, another: Open) -> None:
        await broker.publish_many([*jobs_of("b", 2), *jobs_of("a", 2), message("nobody's")])
        onlooker = await another()

        assert sorted(await ids(onlooker)) == ["a-0", "a-1", "b-0", "b-1", "nobody's"]
        page = await onlooker.browse("jobs", offset=1, limit=2)
        assert (len(page.messages), page.total) == (2, 5)

        def decide(one: Message) -> SweepDecision:
            return Remove() if one.id == "a-0" else Move(replace(one, tenant="c")) if one.id == "b-0" else Keep()

        swept = await onlooker.sweep("jobs", decide)

        assert (swept.seen, swept.total, swept.removed, swept.moved) == (5, 5, 1, 1)
        await until(lambda: tenants(broker), {"a": 1, "b": 1, "c": 1})

    async def test_looking_again_and_again_leaves_jobs_with_their_tenants(self, broker: Broker, another: Open) -> None:
        """Nobody takes jobs from the queue, so no tenant has a turn, however often somebody looks."""
        await broker.publish_many(jobs_of("a", 40))
        onlooker = await another()
        async with time_kept(broker):
            await known(broker, "a")
            for _ in range(5):
                assert len((await onlooker.browse("jobs")).messages) == 40

            # A few are ahead of their turn, for the first worker that comes.
            await until(lambda: has(broker, 30), True)
            consumer, found = await consume(await another()), set[str]()
            for number in range(40):
                if number % 10 == 5:
                    await ids(onlooker)  # while jobs are dealt
                found.add((await take_and_ack(consumer)).id)
        assert len(found) == 40

    async def test_a_sweep_while_jobs_are_dealt_misses_none(self, broker: Broker, another: Open) -> None:
        await broker.publish_many([*jobs_of("a", 20), *jobs_of("b", 20)])
        async with time_kept(await another()):
            swept = await broker.sweep("jobs", lambda _: Remove())
            assert (swept.removed, await counts(broker)) == (40, (0, 0))

            # And dealing goes on.
            await broker.publish_many(jobs_of("a", 1))
            assert (await take(await consume(await another()))).message.tenant == "a"

    async def test_a_sweep_meets_a_tenant_that_came_a_moment_ago(self, broker: Broker, another: Open) -> None:
        await broker.publish_many([one for tenant in range(20) for one in jobs_of(f"{tenant}", 1)])
        async with time_kept(await another()):
            for tenant in "ab":
                await tenants(broker)
                await broker.publish_many(jobs_of(tenant, 5))

                met: list[str] = []

                def take_it(one: Message, tenant: str = tenant, met: list[str] = met) -> SweepDecision:
                    met.append(one.id)
                    return Remove() if one.tenant == tenant else Keep()

                swept = await broker.sweep("jobs", take_it)
                assert (swept.removed, swept.seen, len(set(met))) == (5, 25, 25)

    async def test_jobs_of_tenants_are_counted_on_a_paused_queue(self, broker: Broker, another: Open) -> None:
        async with time_kept(await another()):
            await consume(await another(), slots=2)
            await broker.pause("jobs")
            for tenant in "xy":
                await broker.publish_many(jobs_of(tenant, 10))
            await self.tenants_had_their_turn(broker)

            await until(lambda: counts(broker), (20, 0))
            await broker.publish_many(jobs_of("z", 30))
            assert await self.uncounted(broker, {"x": 10, "y": 10, "z": 30}) <= self.had_their_turn
            assert [await broker.tenants.clear("jobs", tenant) for tenant in "xz"] == [10, 30]

            assert await self.uncounted(broker, {"y": 10}) <= self.had_their_turn

            async def left() -> list[str]:
                return sorted(await ids(broker))

            await until(left, sorted(one.id for one in jobs_of("y", 10)))

    async def uncounted(self, broker: Broker, waiting: Mapping[str, int]) -> int:
        """How many of these waiting jobs are not counted for their tenants, which have had their turn."""
        found, totals = await tenants(broker), await broker.tenants.totals()
        assert all(count <= waiting[tenant] for tenant, count in found.items())
        assert totals.keys() <= {"jobs"}
        return sum(waiting.values()) - min(sum(found.values()), sum(totals.values()))

    async def tenants_had_their_turn(self, broker: Broker) -> None:
        """Wait until as many jobs of tenants are handed on as will be while nobody takes any."""

    @pytest.mark.slow
    async def test_tenants_of_one_queue_are_none_of_another(self, broker: Broker, another: Open) -> None:
        await broker.publish_many([*jobs_of("a", 1, "x"), *jobs_of("a", 2, "y")])
        await until(lambda: tenants(broker, "x"), {"a": 1})
        await until(lambda: tenants(broker, "y"), {"a": 2})

        async with time_kept(broker):
            consumer = await consume(await another(), "y,x")
            assert [(await take_and_ack(consumer)).queue for _ in range(3)].count("y") == 2
