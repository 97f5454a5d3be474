"""Tenants leave nothing on RabbitMQ once they are idle, and no job in a queue that nobody reads."""

import asyncio
import json
import random
import time
from collections.abc import Awaitable, Callable, Iterator

import pika
import pytest
from msgspec.structs import replace
from pika.exceptions import ChannelClosedByBroker

from palermo.brokers.rabbitmq.amqp.connection import Channel, open_connection
from palermo.brokers.rabbitmq.amqp.unreadable import Unreadable
from palermo.brokers.rabbitmq.broker import RabbitmqBroker
from palermo.brokers.rabbitmq.leadership import fair_scheduler
from palermo.brokers.rabbitmq.leadership.fair_queue import FairQueue, TenantState
from palermo.brokers.rabbitmq.leadership.leader import Leader
from palermo.brokers.rabbitmq.leadership.operations import CountTenantJobs, HasTenantJobs
from palermo.brokers.rabbitmq.publishing import job_destinations
from palermo.brokers.rabbitmq.publishing.job_destinations import TenantQueue, tenant_queue_name
from palermo.brokers.rabbitmq.unique import orphaned_keys
from palermo.contract.broker import Broker, SessionParameters, Tenant, open_broker
from palermo.core.election import Duty
from palermo.core.lifecycle import Ack
from palermo.core.topology import amqp_queue
from tests.contract.timing import time_kept
from tests.contract.tools import Worker, consume, counts, message, messages, take, take_and_ack, until
from tests.contract.unique_jobs import ask, keyed, stray_ids
from tests.helpers import HANGS, eventually
from tests.scale import scaled


@pytest.fixture
def connection(rabbitmq_url: str) -> Iterator[pika.BlockingConnection]:
    with pika.BlockingConnection(pika.URLParameters(rabbitmq_url)) as connection:
        yield connection


def is_there(connection: pika.BlockingConnection, queue: str) -> bool:
    try:
        connection.channel().queue_declare(queue, passive=True)
    except ChannelClosedByBroker:
        return False
    return True


@pytest.fixture
def there(
    session: SessionParameters, connection: pika.BlockingConnection, monkeypatch: pytest.MonkeyPatch
) -> Callable[[], Awaitable[bool]]:
    """Whether the queue of tenant a is there. The leader soon deletes it while it is idle."""
    monkeypatch.setattr(fair_scheduler, "LINGER", 0.1)
    name = tenant_queue_name(session.exchange, TenantQueue("jobs", "a"))

    async def is_it_there() -> bool:
        return is_there(connection, name)

    return is_it_there


def test_a_first_job_goes_straight_to_a_worker_that_waits_and_one_that_is_refused_there_waits_for_its_turn(
    session: SessionParameters, connection: pika.BlockingConnection
) -> None:
    job_queue, own = amqp_queue(session.exchange, "jobs"), tenant_queue_name(session.exchange, TenantQueue("jobs", "a"))
    full = {"x-max-length": 0, "x-overflow": "reject-publish"}

    async def publish(*, is_full: bool) -> list[Tenant]:
        connection.channel().queue_declare(job_queue, durable=True, arguments=full if is_full else {})
        publisher, worker = await open_broker(session), await open_broker(session)
        try:
            consumer = await consume(worker)
            taking = asyncio.ensure_future(take(consumer))

            async def listeners() -> int:
                return connection.channel().queue_declare(job_queue, passive=True).method.consumer_count

            await until(listeners, 1)
            await publisher.publish(message("first", tenant="a"))
            if is_full:
                taking.cancel()
            else:
                assert (await taking).message.id == "first"
            return await publisher.tenants.of("jobs")
        finally:
            await publisher.close()
            await worker.close()
            connection.channel().queue_delete(job_queue)

    assert asyncio.run(publish(is_full=False)) == []
    assert not is_there(connection, own)
    assert [(one.name, one.pending) for one in asyncio.run(publish(is_full=True))] == [("a", 1)]
    assert is_there(connection, own)


@pytest.mark.parametrize("kind", ["classic", "quorum"])
async def test_a_tenants_job_whose_headers_do_not_fit_the_leaders_frames_fails_and_the_next_one_runs(
    session: SessionParameters, kind: str
) -> None:
    address = replace(session.address, options=(("frame_max", "8192"),))
    small = replace(session, address=address, queue_type=kind)

    async def shown(broker: Broker) -> int:
        return len((await broker.browse("failed", limit=10)).messages)

    publisher, worker = await open_broker(session), await open_broker(small)
    await publisher.publish(message("large", tenant="a", extra={"note": "n" * 20_000}))
    await publisher.publish(message("small", tenant="a"))
    async with time_kept(worker):
        consumer = await consume(worker)
        assert (await take_and_ack(consumer)).id == "small"
        await until(lambda: counts(publisher, "failed"), (1, 0))
        await until(lambda: shown(publisher), 1)  # a quorum queue is shown from its log
    (failed,) = (await publisher.browse("failed", limit=10)).messages
    assert (failed.id, failed.tenant, failed.extra) == ("large", "a", {"dropped-headers": "note"})
    await publisher.close()
    await worker.close()


@pytest.mark.parametrize("kind", ["classic", "quorum"])
async def test_no_job_of_a_tenant_that_cannot_be_published_fails_twice_although_leaders_end_meanwhile(
    session: SessionParameters, kind: str
) -> None:
    address = replace(session.address, options=(("frame_max", "8192"),))
    small = replace(session, address=address, queue_type=kind)

    publisher = await open_broker(replace(session, queue_type=kind))
    connection = await open_connection(session, "counts")
    large = [message(f"{number}", tenant="a", extra={"note": "n" * 20_000}) for number in range(40)]
    await publisher.publish_many(large)

    async def failed() -> int:
        probe = await connection.probe(amqp_queue(session.exchange, "failed"))
        return probe.messages if probe.exists else 0

    while (before := await failed()) < len(large):
        worker = await open_broker(small)
        async with time_kept(worker), asyncio.timeout(HANGS):
            while await failed() == before:  # noqa: ASYNC110 - nobody tells
                await asyncio.sleep(0)
        await worker.close()

    # The last leader has looked at all jobs of the tenant.
    worker = await open_broker(small)
    async with time_kept(worker):
        await publisher.publish(message("last", tenant="a"))
        consumer = await consume(worker)
        assert (await take_and_ack(consumer)).id == "last"
    assert await failed() == len(large)
    await connection.close()
    await publisher.close()
    await worker.close()


async def test_f3_an_idle_tenant_leaves_no_trace_and_its_next_job_comes_all_the_same(
    session: SessionParameters, there: Callable[[], Awaitable[bool]]
) -> None:
    publisher, worker = await open_broker(session), await open_broker(session)
    async with time_kept(worker):
        consumer = await consume(worker)
        for number in range(3):
            # The publisher was there a moment ago, and takes it that the tenant's queue still is.
            await publisher.publish_many([message(f"{number}", tenant="a")])
            assert (await take_and_ack(consumer)).id == f"{number}"
            await until(there, False)
    await publisher.close()
    await worker.close()


async def test_the_first_job_of_a_tenant_needs_no_queue_of_its_own_while_a_worker_waits(
    session: SessionParameters, connection: pika.BlockingConnection
) -> None:
    def queues() -> list[str]:
        names = {tenant: tenant_queue_name(session.exchange, TenantQueue("jobs", tenant)) for tenant in "ab"}
        return [tenant for tenant, name in names.items() if is_there(connection, name)]

    async def listeners() -> int:
        found = connection.channel().queue_declare(amqp_queue(session.exchange, "jobs"), passive=True)
        return int(found.method.consumer_count)

    publisher, worker, leader = [await open_broker(session) for _ in range(3)]
    consumer = await consume(worker)
    taking = asyncio.ensure_future(take(consumer))
    await until(listeners, 1)
    await publisher.publish(message("a-0", tenant="a"))
    held = await taking
    assert (held.message.id, queues()) == ("a-0", [])

    # These wait for their turns, which only a leader gives.
    await publisher.publish(message("nobody's"))
    await publisher.publish(message("b-0", tenant="b"))
    await publisher.publish(message("a-1", tenant="a"))
    assert queues() == ["a", "b"]
    await consumer.settle(held, Ack())
    async with time_kept(leader):
        found = [(await take_and_ack(consumer)).id for _ in range(3)]
    assert (found[0], sorted(found)) == ("nobody's", ["a-1", "b-0", "nobody's"])
    for broker in (publisher, worker, leader):
        await broker.close()


def test_a_new_leader_counts_the_jobs_of_a_paused_queue_whose_tenants_have_left_no_trace(
    session: SessionParameters, connection: pika.BlockingConnection, there: Callable[[], Awaitable[bool]]
) -> None:
    async def work() -> None:
        publisher, onlooker = await open_broker(session), await open_broker(session)
        for queue in ("jobs", "nothing"):
            await publisher.pause(queue)
        await publisher.publish_many([message(f"{number}", tenant="a") for number in range(2)])
        async with time_kept(publisher):
            await until(there, False)
        await publisher.close()

        assert await onlooker.tenants.totals() == {"jobs": 2, "nothing": 0}
        await onlooker.close()

    asyncio.run(work())
    assert not is_there(connection, amqp_queue(session.exchange, "nothing"))


async def test_a_job_that_comes_as_its_tenants_queue_is_deleted_is_not_lost(
    session: SessionParameters, monkeypatch: pytest.MonkeyPatch
) -> None:
    """RabbitMQ confirms what is on its way into a queue that is just being deleted, and drops it."""
    monkeypatch.setattr(fair_scheduler, "LINGER", 0.1)
    monkeypatch.setattr(fair_scheduler, "_LOOK_EVERY", 0.02)
    monkeypatch.setattr(job_destinations, "_TRUSTED", 0.05)
    until = time.monotonic() + scaled(8, 120)
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

    worker, *publishers = [await open_broker(session) for _ in range(5)]
    async with time_kept(worker):
        taking = asyncio.ensure_future(take_all(await consume(worker)))
        await asyncio.gather(*(publish(one, f"{n}.{m}") for n, one in enumerate(publishers) for m in range(5)))
        await asyncio.to_thread(eventually, lambda: taken >= stored)
        taking.cancel()
    for broker in (worker, *publishers):
        await broker.close()


async def test_who_leads_and_has_not_looked_yet_knows_all_tenants_when_it_is_asked(session: SessionParameters) -> None:
    broker, other = await open_broker(session), await open_broker(session)
    assert isinstance(other, RabbitmqBroker)
    await broker.publish_many(message(f"{number}", tenant="ab"[number % 2]) for number in range(6))
    leader = await Leader.take(Duty.TENANTS, session, Unreadable(), other._declarer_on, other._leader_client.ask_over)
    assert leader is not None
    try:
        assert await leader.handle(CountTenantJobs()) == {"jobs": 6}
    finally:
        await leader.close()
        await broker.close()
        await other.close()


async def test_a_program_of_another_language_enqueues_for_a_tenant_by_the_page_on_the_wire(
    session: SessionParameters, connection: pika.BlockingConnection
) -> None:
    channel, exchange = connection.channel(), session.exchange
    channel.confirm_delivery()
    name = tenant_queue_name(exchange, TenantQueue("jobs", "ü"))
    persistent = pika.BasicProperties(delivery_mode=2)
    for queue in (name, f"{exchange}.~tenants"):
        channel.queue_declare(queue, durable=True)
    record = json.dumps({"made": ["jobs", "ü"]}).encode()
    channel.basic_publish("", f"{exchange}.~tenants", record, persistent, mandatory=True)
    headers = {"job-class": "shop.mail", "tenant": "ü", "queue": "jobs"}
    properties = pika.BasicProperties(delivery_mode=2, message_id="theirs", headers=headers)
    channel.basic_publish("", name, b"[1]", properties, mandatory=True)

    worker = await open_broker(session)
    async with time_kept(worker):
        found = await take_and_ack(await consume(worker))
        assert (found.id, found.tenant, found.body) == ("theirs", "ü", b"[1]")
    await worker.close()


async def test_jobs_go_on_after_the_queue_of_a_tenant_was_deleted_by_hand(
    session: SessionParameters, connection: pika.BlockingConnection
) -> None:
    publisher, worker = await open_broker(session), await open_broker(session)
    await publisher.publish_many([message("gone", tenant="a"), message("b", tenant="b")])
    connection.channel().queue_delete(tenant_queue_name(session.exchange, TenantQueue("jobs", "a")))
    async with time_kept(worker):
        consumer = await consume(worker)
        assert (await take_and_ack(consumer)).id == "b"
        await publisher.publish(message("again", tenant="a"))
        assert (await take_and_ack(consumer)).id == "again"
    await publisher.close()
    await worker.close()


async def test_a_queue_that_is_gone_when_the_leader_listens_to_it_keeps_no_other_tenant_from_its_turns(
    session: SessionParameters, connection: pika.BlockingConnection, monkeypatch: pytest.MonkeyPatch
) -> None:
    listen, deleted = FairQueue._listen, list[str]()

    def listen_too_late(self: FairQueue, channel: Channel, state: TenantState) -> None:
        if state.name == "a" and not deleted:
            deleted.append(state.queue)
            connection.channel().queue_delete(state.queue)
        listen(self, channel, state)

    monkeypatch.setattr(FairQueue, "_listen", listen_too_late)

    publisher, worker = await open_broker(session), await open_broker(session)
    await publisher.publish_many(
        [message("a", tenant="a"), *(message(f"b-{number}", tenant="b") for number in range(9))]
    )
    async with time_kept(worker):
        consumer, left = await consume(worker), {f"b-{number}" for number in range(9)}
        while left:
            left.discard((await take_and_ack(consumer)).id)
    assert deleted
    await publisher.close()
    await worker.close()


async def test_a_unique_job_is_a_stray_only_once_it_is_neither_in_its_queue_nor_with_its_tenants_jobs(
    session: SessionParameters, connection: pika.BlockingConnection
) -> None:
    async def suspected(leader: RabbitmqBroker) -> list[str]:
        async def has_jobs(tenant_queue: TenantQueue) -> bool:
            return await leader._leader_client.ask(HasTenantJobs(tenant_queue.queue, tenant_queue.tenant))

        keys = await leader.keys.known()
        found = await orphaned_keys.suspects(
            session.exchange, leader._connection, keys, now=time.time() + 60, apart=has_jobs
        )
        return [stray.id for stray in found.values()]

    publisher, leader = await open_broker(session), await open_broker(session)
    assert isinstance(leader, RabbitmqBroker)
    async with time_kept(leader):
        # The queue is full of nobody's, so that the tenant's job stays where it is; then that is emptied.
        await publisher.publish_many(messages(20))
        await ask(publisher, keyed("unique", tenant="a"))
        channel = connection.channel()
        channel.queue_purge(amqp_queue(session.exchange, "jobs"))
        assert await suspected(leader) == []

        async def taken_away() -> list[str]:
            for queue in (
                tenant_queue_name(session.exchange, TenantQueue("jobs", "a")),
                amqp_queue(session.exchange, "jobs"),
            ):
                channel.queue_purge(queue)
            return await suspected(leader)

        await until(taken_away, ["unique"])
        await until(lambda: stray_ids(publisher), ["unique"])
    await publisher.close()
    await leader.close()
