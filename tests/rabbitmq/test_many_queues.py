"""Many queues are asked about, and declared, together: one that is missing or differs does the others no harm."""

import asyncio
from typing import Any

import pytest

from palermo.brokers.rabbitmq import RabbitmqBroker
from palermo.brokers.rabbitmq.amqp.connection import Connection
from palermo.brokers.rabbitmq.amqp.many_queues import declare_all, probe_all
from palermo.contract.broker import SessionParameters
from palermo.core.topology import CLASSIC, amqp_queue
from palermo.errors import NotFound
from tests.contract.tools import consume, message, take_and_ack

#: More than are asked about at once behind a queue that is missing or differs.
NAMES = [f"many-{number:02}" for number in range(30)]

#: Of these, one is deleted behind Palermo's back, and two are there with other arguments.
DELETED, SHORT, QUORUM = NAMES[3], NAMES[11], NAMES[12]


@pytest.fixture
def filled(runner: asyncio.Runner, broker: RabbitmqBroker, exchange: str, channel: Any) -> RabbitmqBroker:
    """A session that has put a job into each of these queues, of which one was deleted then."""
    channel.queue_declare(amqp_queue(exchange, SHORT), durable=True, arguments={"x-expires": 3_600_000})
    channel.queue_declare(amqp_queue(exchange, QUORUM), durable=True, arguments={"x-queue-type": "quorum"})
    runner.run(broker.publish_many([message(name, queue=name) for name in NAMES]))
    channel.queue_delete(amqp_queue(exchange, DELETED))
    return broker


async def test_each_of_many_is_known_whether_there_or_missing(
    filled: RabbitmqBroker, session: SessionParameters, connection: Connection
) -> None:
    asked = [amqp_queue(session.exchange, name) for name in ("none", *NAMES, "nothing")]

    found = await probe_all(connection, asked)

    assert list(found) == asked
    missing = {amqp_queue(session.exchange, name) for name in ("none", "nothing", DELETED)}
    assert {name for name, probe in found.items() if not probe.exists} == missing
    assert {probe.messages for probe in found.values() if probe.exists} == {1}
    assert await probe_all(connection, []) == {}


async def test_those_that_differ_stay_as_they_are_and_the_others_are_bound(
    filled: RabbitmqBroker, session: SessionParameters, connection: Connection, channel: Any
) -> None:
    for name in NAMES[:5]:
        channel.queue_declare(amqp_queue(session.exchange, name), durable=True)
        channel.queue_unbind(amqp_queue(session.exchange, name), session.exchange, name)
    named = {amqp_queue(session.exchange, name): name for name in NAMES}

    made = await declare_all(connection, named, session.exchange, {"x-queue-type": CLASSIC})

    assert sorted(named[name] for name, probe in made.items() if probe.error) == [SHORT, QUORUM]
    for name in NAMES:
        channel.basic_publish(session.exchange, name, b"[]")
    counts = {name: channel.queue_declare(amqp_queue(session.exchange, name), passive=True) for name in NAMES}
    assert {name: found.method.message_count for name, found in counts.items()} == {
        name: 1 if name == DELETED else 2 for name in NAMES
    }


async def test_all_are_listed_looked_at_and_served(filled: RabbitmqBroker) -> None:
    there = [name for name in NAMES if name != DELETED]
    assert {info.name: info.pending for info in await filled.queues()} == dict.fromkeys(there, 1)
    levels = {finding.check: finding.level for finding in await filled.diagnose()}
    expected = {f"queue {name}": "ok" for name in there}
    expected |= {f"queue {SHORT}": "problem", f"queue {QUORUM}": "warning"}
    assert {check: level for check, level in levels.items() if check.startswith("queue many")} == expected

    worker = await consume(filled, "*")

    assert [(await take_and_ack(worker)).id for _ in there] == there
    # It made the deleted one again.
    await filled.publish(message("again", queue=DELETED))
    assert (await take_and_ack(worker)).id == "again"


#: A body of several frames, which pika reads, and so not our own reader.
LONG = b"long" * 100_000


@pytest.fixture
def mail(channel: Any, exchange: str) -> str:
    """A queue with three messages, the second of them long."""
    name = amqp_queue(exchange, "mail")
    channel.queue_declare(name, durable=True)
    for body in b"first", LONG, b"last":
        channel.basic_publish("", name, body)
    return name


async def test_several_messages_are_asked_for_in_one_write(
    connection: Connection, exchange: str, mail: str, channel: Any
) -> None:
    empty = amqp_queue(exchange, "empty")
    channel.queue_declare(empty, durable=True)
    asking = await connection.channel()

    found = await asking.get_each([mail, empty, mail, mail, mail])

    expected = [(b"first", 2), None, (LONG, 1), (b"last", 0), None]
    assert [got and (got.body, got.left) for got in found] == expected
    assert await asking.get_each([]) == []


async def test_whoever_asked_and_is_cancelled_gives_back_what_came(connection: Connection, mail: str) -> None:
    channel = await connection.channel()
    asking = asyncio.ensure_future(channel.get_each([mail, mail]))
    await asyncio.sleep(0)  # asked, and not answered yet
    asking.cancel()
    await asyncio.wait({asking})

    assert asking.cancelled()
    assert [got and got.body for got in await channel.get_each([mail] * 4)] == [b"first", LONG, b"last", None]


async def test_a_queue_that_is_missing_among_them_ends_the_channel(
    connection: Connection, exchange: str, mail: str
) -> None:
    channel = await connection.channel()
    with pytest.raises(NotFound):
        await channel.get_each([mail, amqp_queue(exchange, "missing"), mail])
    assert not channel.is_open

    another = await connection.channel()
    await another.prefetch(1)
    (got,) = await another.get_each([mail])
    assert got is not None
    assert got.body == b"first"
