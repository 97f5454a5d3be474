"""Contract: jobs of tenants, or that are taken together, which need a key or a permit or have a priority besides."""

import asyncio
import time
from functools import partial

import pytest
from msgspec.structs import replace

from palermo.contract.broker import Broker
from palermo.contract.scheduled import ScheduledFilter
from palermo.contract.sweep import Remove
from palermo.core.lifecycle import Ack, Reschedule
from palermo.core.limits import RunLater, postponed
from palermo.core.message import Message
from tests.contract.limiting import limited, permitted, worker
from tests.contract.prioritizing import urgent
from tests.contract.tenants import jobs_of, tenants
from tests.contract.timing import time_kept
from tests.contract.tools import Open, counts, ids, message, until
from tests.contract.unique_jobs import ask, begun, freed, holders, keyed
from tests.contract.workers import consume, take, take_and_ack


def keyed_of(tenant: str, id: str) -> Message:
    return keyed(id, key=f"key of {id}", tenant=tenant)


async def enqueued(broker: Broker, *jobs: Message) -> list[str]:
    return [(await ask(broker, job, key=f"key of {job.id}", call=f"{time.time()}")).outcome for job in jobs]


class CombiningContract:
    @pytest.mark.slow
    async def test_a_unique_job_of_a_tenant_waits_with_its_tenants_jobs(self, broker: Broker, another: Open) -> None:
        job = keyed_of("b", "unique")
        await broker.publish_many(jobs_of("a", 10))
        assert await enqueued(broker, job, replace(job, tenant="c")) == ["stored", "duplicate"]
        assert await counts(broker) == (11, 0)
        assert await broker.keys.orphaned() == []

        async with time_kept(await another()):
            consumer = await consume(await another())
            # Before the last of the other tenant's, however late the leader hears of this one.
            for _ in range(10):
                delivery = await begun(consumer)
                if delivery.message.id == "unique":
                    break
                await consumer.settle(delivery, Ack())
            assert (delivery.message.id, delivery.message.tenant) == ("unique", "b")
            await consumer.settle(delivery, Reschedule(replace(delivery.message, retries=1)))
            assert await enqueued(broker, job) == ["duplicate"]

            while (delivery := await begun(consumer)).message.id != "unique":
                await consumer.settle(delivery, Ack())
            assert await holders(broker) == [("unique", "running")]
            await consumer.settle(delivery, Ack())
            await freed(broker)

    async def test_taking_tenants_jobs_away_frees_their_keys(self, broker: Broker, another: Open) -> None:
        jobs, other = [keyed_of("a", "a-1"), keyed_of("b", "b-1")], await another()
        swept = partial(other.sweep, "jobs", lambda _: Remove())
        for take_away in (partial(other.purge, "jobs"), swept, partial(other.delete, "jobs")):
            await broker.publish_many(jobs_of("a", 2))
            assert await enqueued(broker, *jobs) == ["stored", "stored"]

            taken = await take_away()

            assert taken == 4 or taken.removed == 4
            assert await holders(broker) == []
            assert await tenants(broker) == {}
        assert await enqueued(broker, *jobs) == ["stored", "stored"]

    async def test_clearing_a_tenant_frees_its_keys_and_no_others(self, broker: Broker, another: Open) -> None:
        jobs = [keyed_of("a", "a-last"), keyed_of("b", "b-1")]
        await broker.publish_many(jobs_of("a", 9))
        assert await enqueued(broker, *jobs) == ["stored", "stored"]

        # Some may have been on their way to a worker.
        assert await (await another()).tenants.clear("jobs", "a") >= 7

        assert "a" not in await tenants(broker)
        assert await holders(broker) == [("b-1", "waiting")]
        assert await enqueued(broker, *jobs) == ["stored", "duplicate"]

    async def test_a_deferred_job_of_a_tenant_comes_with_its_permit(self, broker: Broker, another: Open) -> None:
        await broker.publish_many([replace(limited(id), tenant="a") for id in ("1", "2")])
        async with time_kept(await another()):
            first = await worker(broker, 1)
            held = await permitted(first)
            other = await worker(await another(), 2)
            await broker.publish_many(jobs_of("a", 300))
            # The other one was asked for before this one, and was put aside.
            assert (await permitted(other)).message.id == "a-0"

            await first.settle(held, Ack())

            found = []
            while "2" not in found:
                delivery = await permitted(first)
                found.append(delivery.message.id)
                # A run of some length: a job that was put aside a moment ago may be called only after some seconds.
                await asyncio.sleep(0.05)
                await first.settle(delivery, Ack())
            assert held.message.id == "1"
            assert len(found) < 200

    async def test_a_tenants_job_with_a_turn_goes_before_the_others(self, broker: Broker, another: Open) -> None:
        await broker.publish_many(jobs_of("a", 40))
        async with time_kept(await another()):
            consumer = await consume(await another())
            delivery = await take(consumer)
            waits = postponed(delivery.message, RunLater(time.time() + 0.3, reserved=True))
            await consumer.settle(delivery, Reschedule(waits))
            await until(lambda: aside(broker), [])

            found = [(await take_and_ack(consumer)).id for _ in range(8)]

        assert delivery.message.id in found

    async def test_a_tenants_jobs_go_by_priority(self, broker: Broker, another: Open) -> None:
        sent = [urgent("5", 5), urgent("0", 0), urgent("9", 9)]
        await broker.publish_many([replace(one, tenant="a") for one in sent])
        async with time_kept(await another()):
            await until(lambda: counts(broker), (3, 0))
            consumer = await consume(await another())
            assert [(await take_and_ack(consumer)).id for _ in sent] == ["9", "5", "0"]

    @pytest.mark.parametrize("what", ["key", "limit", "lock"])
    async def test_what_runs_alone_is_in_no_batch(self, broker: Broker, another: Open, what: str) -> None:
        alone = {"key": keyed("alone"), "limit": limited("alone"), "lock": message("alone", rerun_after=5.0)}[what]
        await broker.publish_many([message("first"), message("second"), alone])
        consumer = await consume(await another())

        first = await take(consumer)
        second = await consumer.next_for_batch(first, wait=0)

        assert second is not None
        assert await consumer.next_for_batch(first, wait=0) is None
        for one in (second, first):
            await consumer.settle(one, Ack())
        assert (await take(consumer)).message.id == "alone"
        assert await ids(broker) == []


async def aside(broker: Broker) -> list[str]:
    """What waits for its time."""
    return [one.id for one in (await broker.scheduled(ScheduledFilter())).messages]
