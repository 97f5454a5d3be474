"""The stream with the queues' names has a record for each fact, stays bounded, and forgets no queue that exists."""

import asyncio
import json
from collections import Counter

import pytest

from palermo.brokers.rabbitmq.amqp.connection import Connection
from palermo.brokers.rabbitmq.amqp.messages import PERSISTENT_JSON, read_object
from palermo.brokers.rabbitmq.amqp.publisher import Publisher
from palermo.brokers.rabbitmq.amqp.stream import Record, Stream
from palermo.brokers.rabbitmq.broker import RabbitmqBroker
from palermo.brokers.rabbitmq.cluster import registry
from palermo.brokers.rabbitmq.publishing import declarer
from palermo.contract.broker import Broker, SessionParameters
from palermo.core.topology import internal
from tests.contract.tools import consume, message, take_and_ack, until
from tests.helpers import HANGS
from tests.rabbitmq.conftest import Open

_WORKERS = 40


async def records(connection: Connection, session: SessionParameters) -> list[Record]:
    """The records that the stream still has."""
    stream = Stream(internal(session.exchange, "registry"), lambda: Publisher.open(connection), patience=5.0, holds="")
    end = await stream.end(connection) or 0
    return [read_object(body) async for _, _, body in stream.read(connection, 0, end)]


async def make_and_delete(publisher: Publisher, session: SessionParameters, count: int) -> None:
    """Write what sessions write that make so many queues and delete them."""
    bodies = [json.dumps({kind: f"gone-{n}"}).encode() for n in range(count) for kind in ("queue", "gone")]
    for name in ("registry.copy", "registry"):
        place = internal(session.exchange, name)
        await asyncio.gather(*(publisher.send("", place, PERSISTENT_JSON, body) for body in bodies))


async def names(broker: Broker) -> list[str]:
    return [info.name for info in await broker.queues()]


async def test_forty_workers_that_start_together_leave_few_records_of_each_queue(
    another: Open, connection: Connection, session: SessionParameters, monkeypatch: pytest.MonkeyPatch
) -> None:
    # None looks before the streams are made: on a busy machine RabbitMQ 4.3 needs longer for that than _SOON.
    monkeypatch.setattr(declarer, "_SOON", (HANGS, HANGS))
    monkeypatch.setattr(declarer, "_LAST_WORDS", HANGS)
    brokers = [await another() for _ in range(_WORKERS)]
    await asyncio.gather(*(consume(broker, "mail,images") for broker in brokers))
    for broker in brokers:
        await broker._registration.done()

    found = Counter(str(one["queue"]) for one in await records(connection, session) if "queue" in one)
    # One, as a rule. A session that misses the queue just before it is made may write another one.
    assert found.keys() == {"mail", "images"}
    assert max(found.values()) <= _WORKERS / 2


async def test_a_name_is_written_though_the_session_that_made_the_queue_dies(
    broker: RabbitmqBroker, another: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    dying, registering = await another(), asyncio.Event()

    async def hang(_: str) -> None:
        registering.set()
        await asyncio.Event().wait()

    monkeypatch.setattr(dying._declarer, "_register", hang)
    making = asyncio.ensure_future(dying.publish(message(queue="mail")))
    await registering.wait()
    await broker.publish(message(queue="mail"))
    making.cancel()
    await dying.close()

    assert await names(broker) == ["mail"]


async def test_the_stream_of_names_is_bounded_and_forgets_no_queue_that_exists(
    another: Open, connection: Connection, session: SessionParameters, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(registry, "_BOUNDS", {"x-max-length-bytes": 60_000, "x-stream-max-segment-size-bytes": 20_000})
    monkeypatch.setattr(registry, "_FAR", 50)
    leader, broker = await another(), await another()
    for queue in ("mail", "images"):
        await broker.publish(message(queue=queue))
    # Not all queues: a worker on all would make those that are only written down here.
    consumer = await consume(broker, "m*,i*,n*")
    assert {(await take_and_ack(consumer)).queue for _ in range(2)} == {"images", "mail"}
    assert await leader._registry.write_again(connection) == 0

    publisher = await Publisher.open(connection)
    for _ in range(12):
        await make_and_delete(publisher, session, 100)
        assert await leader._registry.write_again(connection) == 2
        assert await leader._registry.write_again(connection) == 0

    async def is_short() -> bool:
        return len(await records(connection, session)) < 1_500  # of more than 2,400

    await until(is_short, True)
    late = await another()
    assert await names(late) == ["images", "mail"]
    await late.publish(message(queue="new"))
    assert (await take_and_ack(consumer)).queue == "new"
    assert await names(broker) == await names(leader) == ["images", "mail", "new"]


async def test_names_that_are_written_again_are_no_news_to_a_worker(
    broker: RabbitmqBroker, connection: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(registry, "_FAR", -1)
    monkeypatch.setattr(registry, "_FAR_PER_NAME", 0)
    told = list[set[str]]()
    await broker.publish(message(queue="mail"))
    followed = await broker._registry.follow(connection, told.append)
    assert followed is not None

    await broker._registry.add("images")
    assert await broker._registry.write_again(connection) == 1  # there is no queue "images"
    await broker._registry.add("mail")

    await until(lambda: asyncio.sleep(0, told), [{"images", "mail"}] * 2)
    await followed.close()
