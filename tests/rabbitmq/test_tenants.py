"""What tenants leave on RabbitMQ: nothing once they are idle, and no job in a queue that nobody reads."""

import asyncio
import json
import time
from collections.abc import Iterator

import pika
import pytest
from pika.exceptions import ChannelClosedByBroker

from palermo.broker import Session, open_broker
from palermo.brokers.rabbitmq import dealer, strays
from palermo.brokers.rabbitmq.broker import RabbitmqBroker
from palermo.brokers.rabbitmq.clock import Clock
from palermo.brokers.rabbitmq.seats import Seat, seat_queue
from palermo.core.address import parse_url
from palermo.core.topology import amqp_queue
from tests.contract.keying import ask, keyed, stray_ids
from tests.contract.kit import consume, message, messages, take_and_ack, until
from tests.contract.timing import time_kept


@pytest.fixture
def session(rabbitmq_url: str, exchange: str) -> Session:
    return Session(address=parse_url(rabbitmq_url), exchange=exchange)


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


def test_f3_an_idle_tenant_leaves_no_trace_and_its_next_job_comes_all_the_same(
    session: Session, connection: pika.BlockingConnection, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dealer, "LINGER", 0.1)
    name = seat_queue(session.exchange, Seat("jobs", "a"))

    async def there() -> bool:
        return is_there(connection, name)

    async def work() -> None:
        publisher, worker = await open_broker(session), await open_broker(session)
        async with time_kept(worker):
            consumer = await consume(worker)
            for number in range(3):
                # The publisher was there a moment ago, and takes it that the tenant's queue still is.
                await publisher.publish(message(f"{number}", tenant="a"))
                assert (await take_and_ack(consumer)).id == f"{number}"
                await until(there, False)
        await publisher.close()
        await worker.close()

    asyncio.run(work())


def test_who_leads_and_has_not_looked_yet_knows_all_tenants_when_it_is_asked(session: Session) -> None:
    async def work() -> None:
        broker, other = await open_broker(session), await open_broker(session)
        assert isinstance(other, RabbitmqBroker)
        await broker.publish_many(message(f"{number}", tenant="ab"[number % 2]) for number in range(6))
        clock = await Clock.take(session, other._declarer_on)
        assert clock is not None
        try:
            totals = clock.dealer.answer({"ask": "tenants", "queue": None}, lambda _: None)
            assert totals is not None
            assert await totals == {"totals": {"jobs": 6}}
        finally:
            await clock.close()
            await broker.close()
            await other.close()

    asyncio.run(work())


def test_a_program_of_another_language_enqueues_for_a_tenant_by_the_page_on_the_wire(
    session: Session, connection: pika.BlockingConnection
) -> None:
    channel, exchange = connection.channel(), session.exchange
    channel.confirm_delivery()
    name = seat_queue(exchange, Seat("jobs", "ü"))
    persistent = pika.BasicProperties(delivery_mode=2)
    for queue in (name, f"{exchange}.~tenants"):
        channel.queue_declare(queue, durable=True)
    record = json.dumps({"made": ["jobs", "ü"]}).encode()
    channel.basic_publish("", f"{exchange}.~tenants", record, persistent, mandatory=True)
    headers = {"job-class": "shop.mail", "tenant": "ü", "queue": "jobs"}
    properties = pika.BasicProperties(delivery_mode=2, message_id="theirs", headers=headers)
    channel.basic_publish("", name, b"[1]", properties, mandatory=True)

    async def work() -> None:
        worker = await open_broker(session)
        async with time_kept(worker):
            found = await take_and_ack(await consume(worker))
            assert (found.id, found.tenant, found.body) == ("theirs", "ü", b"[1]")
        await worker.close()

    asyncio.run(work())


def test_jobs_go_on_after_the_queue_of_a_tenant_was_deleted_by_hand(
    session: Session, connection: pika.BlockingConnection
) -> None:
    async def work() -> None:
        publisher, worker = await open_broker(session), await open_broker(session)
        await publisher.publish_many([message("gone", tenant="a"), message("b", tenant="b")])
        connection.channel().queue_delete(seat_queue(session.exchange, Seat("jobs", "a")))
        async with time_kept(worker):
            consumer = await consume(worker)
            assert (await take_and_ack(consumer)).id == "b"
            await publisher.publish(message("again", tenant="a"))
            assert (await take_and_ack(consumer)).id == "again"
        await publisher.close()
        await worker.close()

    asyncio.run(work())


def test_a_unique_job_is_a_stray_only_once_it_is_neither_in_its_queue_nor_with_its_tenants_jobs(
    session: Session, connection: pika.BlockingConnection
) -> None:
    async def suspected(leader: RabbitmqBroker) -> list[str]:
        clock = leader._timekeeper._clock
        assert clock is not None
        keys = await leader.keys.known()
        found = await strays.suspects(
            session.exchange, leader._link, keys, now=time.time() + 60, apart=clock.dealer.has
        )
        return [stray.id for stray in found.values()]

    async def work() -> None:
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
                for queue in (seat_queue(session.exchange, Seat("jobs", "a")), amqp_queue(session.exchange, "jobs")):
                    channel.queue_purge(queue)
                return await suspected(leader)

            await until(taken_away, ["unique"])
            await until(lambda: stray_ids(publisher), ["unique"])
        await publisher.close()
        await leader.close()

    asyncio.run(work())
