"""The list of the queues' names stays as short as there are queues, and nothing is lost while it is written anew."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from palermo.brokers.rabbitmq.amqp.connection import Connection, open_connection
from palermo.brokers.rabbitmq.amqp.messages import PERSISTENT_JSON
from palermo.brokers.rabbitmq.amqp.publisher import Publisher
from palermo.brokers.rabbitmq.amqp.stream import Stream
from palermo.brokers.rabbitmq.broker import RabbitmqBroker, open_rabbitmq
from palermo.brokers.rabbitmq.cluster import registry
from palermo.contract.broker import Broker, SessionParameters
from palermo.core.address import parse_url
from palermo.core.topology import internal
from tests.contract.tools import PATIENT, consume, message, take_and_ack, until

pytestmark = pytest.mark.anyio


@pytest.fixture
def session(rabbitmq_url: str, exchange: str) -> SessionParameters:
    return SessionParameters(address=parse_url(rabbitmq_url), exchange=exchange, timeout=PATIENT)


@pytest.fixture(autouse=True)
def short(monkeypatch: pytest.MonkeyPatch) -> None:
    """Twenty records are many."""
    monkeypatch.setattr(registry, "_LONG", 20)
    monkeypatch.setattr(registry, "_PER_QUEUE", 0)


@asynccontextmanager
async def opened(session: SessionParameters) -> AsyncIterator[tuple[RabbitmqBroker, Connection]]:
    broker, connection = await open_rabbitmq(session), await open_connection(session, "test")
    try:
        yield broker, connection
    finally:
        await connection.close()
        await broker.close()


async def make_long(broker: RabbitmqBroker, connection: Connection, session: SessionParameters) -> None:
    """Two queues, and the records of others that were made and deleted."""
    for queue in ("mail", "images"):
        await broker.publish(message(queue=queue))
    publisher = await Publisher.open(connection)
    records = [record for n in range(20) for record in ({"queue": f"gone-{n}"}, {"gone": f"gone-{n}"})]
    for place in (internal(session.exchange, "registry.copy"), internal(session.exchange, "registry")):
        await asyncio.gather(
            *(publisher.send("", place, PERSISTENT_JSON, json.dumps(record).encode()) for record in records)
        )


async def names(broker: Broker) -> list[str]:
    return [info.name for info in await broker.queues()]


async def length(connection: Connection, session: SessionParameters) -> int:
    """How many records the stream has."""
    stream = Stream(internal(session.exchange, "registry"), lambda: Publisher.open(connection), patience=5.0, holds="")
    return 1 + (await stream.end(connection) or 0)


async def copied(connection: Connection, session: SessionParameters) -> int:
    """How many records their copy has."""
    return (await connection.probe(internal(session.exchange, "registry.copy"))).messages


async def test_a_long_list_is_written_anew_with_one_record_for_each_queue(session: SessionParameters) -> None:
    async with opened(session) as (broker, connection), opened(session) as (other, _):
        await make_long(broker, connection, session)
        assert await names(other) == ["images", "mail"]

        assert await broker._registry.shorten(connection)

        assert await length(connection, session) == 3  # one says which version wrote it
        await until(lambda: copied(connection, session), 2)
        assert await names(other) == await names(broker) == ["images", "mail"]
        await other.publish(message(queue="new"))
        assert await names(broker) == ["images", "mail", "new"]
        assert not await broker._registry.shorten(connection)


async def test_a_worker_on_all_queues_goes_on_and_learns_of_the_next_queue(session: SessionParameters) -> None:
    async with opened(session) as (broker, connection), opened(session) as (worker, _):
        await make_long(broker, connection, session)
        consumer = await consume(worker, "*")
        assert {(await take_and_ack(consumer)).queue for _ in range(2)} == {"images", "mail"}

        assert await broker._registry.shorten(connection)
        await broker.publish(message(queue="new"))

        assert (await take_and_ack(consumer)).queue == "new"


async def test_the_names_are_there_after_a_death_while_they_are_written_anew(
    session: SessionParameters, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with opened(session) as (broker, connection), opened(session) as (other, _):
        await make_long(broker, connection, session)
        assert await names(other) == ["images", "mail"]
        with monkeypatch.context() as dying:

            async def dies(self: Stream, connection: Connection) -> None:
                connection.raw.abort()
                await connection.lost.wait()

            dying.setattr(Stream, "_complete", dies)
            await broker._registry.shorten(connection)

        await until(lambda: names(other), ["images", "mail"])
        async with opened(session) as (another, _):
            assert await names(another) == ["images", "mail"]


async def test_what_is_made_and_deleted_while_they_are_written_anew_is_known(session: SessionParameters) -> None:
    async with opened(session) as (broker, connection), opened(session) as (other, _):
        await make_long(broker, connection, session)

        async def change() -> None:
            for number in range(15):
                await other.publish(message(queue=f"new-{number}"))
                if number % 3 == 0:
                    await other.delete(f"new-{number}")

        await asyncio.gather(change(), broker._registry.shorten(connection))

        expected = sorted(["images", "mail", *(f"new-{n}" for n in range(15) if n % 3)])
        assert await names(broker) == await names(other) == expected
        async with opened(session) as (another, _):
            assert await names(another) == expected


def test_records_count_until_a_later_one_has_the_same_name() -> None:
    records = [{"queue": "a"}, {"queue": "b"}, {"gone": "a"}, {"queue": "c"}, {"queue": "b"}, {"other": 1}]

    assert registry._are_over(records) == [True, True, True, False, False, False]
