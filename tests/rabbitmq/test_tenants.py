"""Tenants leave nothing on RabbitMQ once they are idle, and no job in a queue that nobody reads."""

import asyncio
import json
import random
import time
from collections.abc import Awaitable, Callable
from typing import Any

import pika
import pytest

from palermo.brokers.rabbitmq.amqp.connection import Channel, Connection
from palermo.brokers.rabbitmq.amqp.many_queues import probe_all
from palermo.brokers.rabbitmq.broker import RabbitmqBroker
from palermo.brokers.rabbitmq.browsing.sweep import Reader
from palermo.brokers.rabbitmq.leadership import fair_scheduler
from palermo.brokers.rabbitmq.leadership.fair_queue import FairQueue, TenantState
from palermo.brokers.rabbitmq.leadership.operations import HasTenantJobs
from palermo.brokers.rabbitmq.publishing import job_destinations
from palermo.brokers.rabbitmq.publishing.job_destinations import TenantQueue, TenantQueues, tenant_queue_name
from palermo.brokers.rabbitmq.unique import orphaned_keys
from palermo.contract.broker import Broker, SessionParameters
from palermo.core.topology import amqp_queue
from tests.contract.timing import time_kept
from tests.contract.tools import ids, message, messages, until
from tests.contract.unique_jobs import ask, keyed, stray_ids
from tests.contract.workers import Worker, consume, take_and_ack
from tests.helpers import eventually
from tests.rabbitmq.conftest import Open, too_large
from tests.scale import scaled

Probe = Callable[[], Awaitable[Any]]


def own_queue(exchange: str, tenant: str) -> str:
    return tenant_queue_name(exchange, TenantQueue("jobs", tenant))


@pytest.fixture
def there(session: SessionParameters, connection: Connection, monkeypatch: pytest.MonkeyPatch) -> Probe:
    """Whether the queue of tenant a is there. The leader soon deletes it while it is idle."""
    monkeypatch.setattr(fair_scheduler, "LINGER", 0.1)

    async def is_it_there() -> bool:
        return (await connection.probe(own_queue(session.exchange, "a"))).exists

    return is_it_there


async def test_a_tenants_large_job_fails_alone(broker: RabbitmqBroker, another: Open, small: dict[str, Any]) -> None:
    worker = await another(**small)
    await broker.publish(message("large", tenant="a", extra={"note": "n" * 20_000}))
    await broker.publish(message("small", tenant="a"))
    async with time_kept(worker):
        assert (await take_and_ack(await consume(worker))).id == "small"
        assert (await too_large(broker, "large")).tenant == "a"


@pytest.mark.slow
async def test_an_idle_tenant_leaves_no_trace_and_returns(broker: RabbitmqBroker, another: Open, there: Probe) -> None:
    async with time_kept(worker := await another()):
        consumer = await consume(worker)
        for number in range(3):
            # The publisher was there a moment ago, and takes it that the tenant's queue still is.
            await broker.publish_many([message(f"{number}", tenant="a")])
            assert (await take_and_ack(consumer)).id == f"{number}"
            await until(there, False)


@pytest.mark.slow
async def test_a_tenants_queue_that_goes_while_it_is_declared_is_listed_again(
    broker: RabbitmqBroker, another: Open, there: Probe, monkeypatch: pytest.MonkeyPatch
) -> None:
    are_deleted, answers = TenantQueues._are_deleted, list[bool]()

    async def answer_late(self: TenantQueues) -> bool:
        answers.append(await are_deleted(self))
        if len(answers) == 1:
            await until(there, False)
        return answers[-1]

    monkeypatch.setattr(TenantQueues, "_are_deleted", answer_late)
    async with time_kept(worker := await another()):
        consumer = await consume(worker)
        await broker.publish(message("late", tenant="a"))
        assert (await take_and_ack(consumer)).id == "late"
    assert answers[0] is False


@pytest.mark.slow
async def test_a_job_is_not_lost_as_its_tenants_queue_goes(another: Open, monkeypatch: pytest.MonkeyPatch) -> None:
    """RabbitMQ confirms what is on its way into a queue that is just being deleted, and drops it."""
    monkeypatch.setattr(fair_scheduler, "LINGER", 0.1)
    monkeypatch.setattr(fair_scheduler, "TIDY_EVERY", 0.02)
    monkeypatch.setattr(job_destinations, "_TRUSTED", 0.05)
    until = time.monotonic() + scaled(3, 120)
    stored, taken = set[str](), set[str]()

    async def publish(broker: Broker, tenant: str) -> None:
        chance, number = random.Random(tenant), 0
        while time.monotonic() < until:
            # About as long as a queue is left empty.
            await asyncio.sleep(chance.uniform(0.08, 0.2))
            some = [message(f"{tenant}-{number + n}", tenant=tenant) for n in range(5)]
            number += len(some)
            await broker.publish_many(some)
            stored.update(job.id for job in some)

    async def take_all(consumer: Worker) -> None:
        while True:
            taken.add((await take_and_ack(consumer)).id)

    worker, *publishers = [await another() for _ in range(5)]
    async with time_kept(worker):
        taking = asyncio.ensure_future(take_all(await consume(worker)))
        await asyncio.gather(*(publish(one, f"{n}.{m}") for n, one in enumerate(publishers) for m in range(5)))
        await asyncio.to_thread(eventually, lambda: taken >= stored)
        taking.cancel()


async def test_other_programs_enqueue_for_a_tenant(session: SessionParameters, another: Open, channel: Any) -> None:
    name, tenants = own_queue(session.exchange, "ü"), f"{session.exchange}.~tenants"
    for queue in (name, tenants):
        channel.queue_declare(queue, durable=True)
    record = json.dumps({"made": ["jobs", "ü"]}).encode()
    channel.basic_publish("", tenants, record, pika.BasicProperties(delivery_mode=2), mandatory=True)
    headers = {"job-class": "shop.mail", "tenant": "ü", "queue": "jobs"}
    properties = pika.BasicProperties(delivery_mode=2, message_id="theirs", headers=headers)
    channel.basic_publish("", name, b"[1]", properties, mandatory=True)

    async with time_kept(worker := await another()):
        found = await take_and_ack(await consume(worker))
        assert (found.id, found.tenant, found.body) == ("theirs", "ü", b"[1]")


async def test_a_queue_gone_as_the_leader_listens_holds_up_no_other_tenant(
    broker: RabbitmqBroker, another: Open, channel: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    listen, deleted = FairQueue._listen, list[str]()

    def listen_too_late(self: FairQueue, listening: Channel, state: TenantState) -> None:
        if state.name == "a" and not deleted:
            deleted.append(state.queue)
            channel.queue_delete(state.queue)
        listen(self, listening, state)

    monkeypatch.setattr(FairQueue, "_listen", listen_too_late)
    jobs = [message(f"b-{number}", tenant="b") for number in range(9)]
    await broker.publish_many([message("a", tenant="a"), *jobs])

    async with time_kept(worker := await another()):
        consumer, left = await consume(worker), {job.id for job in jobs}
        while left:
            left.discard((await take_and_ack(consumer)).id)
        await broker.publish(message("again", tenant="a"))
        assert (await take_and_ack(consumer)).id == "again"
    assert deleted


async def test_queues_that_are_read_together_are_held_one_by_one(
    broker: RabbitmqBroker, connection: Connection, channel: Any
) -> None:
    exchange = broker._exchange
    await broker.publish_many([message("plain"), message("of a", tenant="a"), message("of b", tenant="b")])
    reader = Reader(connection, exchange, "jobs", only_look=True)
    reader.add(own_queue(exchange, name) for name in ("a", "gone", "b"))
    total, seen, held = await reader.count_all(), list[str](), list[int]()
    async for _, page in reader.pages(total):
        seen += (str(got.id) for got in page)
        probes = await probe_all(connection, [amqp_queue(exchange, "jobs"), own_queue(exchange, "a")])
        held.append(sum(not probe.ready for probe in probes.values()))
    await reader.close()

    assert (total, seen, held) == (3, ["plain", "of a", "of b"], [1, 1, 0])
    assert await reader.count() == 3


async def test_a_deleted_queue_is_not_made_again_for_its_idle_tenants(
    broker: RabbitmqBroker, another: Open, connection: Connection
) -> None:
    async with time_kept(await another()):
        await broker.publish_many([message(f"{number}", tenant="a") for number in range(9)])
        assert await broker.delete("jobs") == 9
        await asyncio.sleep(0.3)
        assert not (await connection.probe(amqp_queue(broker._exchange, "jobs"))).exists
        await broker.publish(message("again", tenant="a"))
        await until(lambda: ids(broker), ["again"])


async def test_a_unique_job_in_no_queue_is_a_stray(broker: RabbitmqBroker, another: Open, channel: Any) -> None:
    leader = await another()

    async def has_jobs(place: TenantQueue) -> bool:
        return await leader._leader_client.ask(HasTenantJobs(place.queue, place.tenant))

    async def suspected() -> list[str]:
        keys, later = await leader.keys.known(), time.time() + 60
        found = await orphaned_keys.suspects(
            broker._exchange, leader._connection, keys, now=later, tenant_has_jobs=has_jobs
        )
        return [stray.id for stray in found.values()]

    async with time_kept(leader):
        # The queue is full of nobody's, so that the tenant's job stays where it is; then that is emptied.
        await broker.publish_many(messages(20))
        await ask(broker, keyed("unique", tenant="a"))
        channel.queue_purge(amqp_queue(broker._exchange, "jobs"))
        assert await suspected() == []

        async def taken_away() -> list[str]:
            for queue in (own_queue(broker._exchange, "a"), amqp_queue(broker._exchange, "jobs")):
                channel.queue_purge(queue)
            return await suspected()

        await until(taken_away, ["unique"])
        await until(lambda: stray_ids(broker), ["unique"])
