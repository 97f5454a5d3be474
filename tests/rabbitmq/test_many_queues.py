"""Many queues are asked about, and declared, together: one that is missing or differs does the others no harm."""

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from typing import Any

import pika
import pytest

from palermo.brokers.rabbitmq import RabbitmqBroker
from palermo.brokers.rabbitmq.amqp.connection import Channel
from palermo.brokers.rabbitmq.amqp.many_queues import declare_all, probe_all
from palermo.contract.broker import SessionParameters
from palermo.core.address import parse_url
from palermo.core.message import Message
from palermo.core.topology import CLASSIC, amqp_queue
from palermo.errors import NotFound
from tests.contract.tools import PATIENT, consume, take_and_ack
from tests.rabbitmq.test_live import with_broker

#: More than are asked about at once behind a queue that is missing or differs.
NAMES = [f"many-{number:02}" for number in range(30)]

#: Of these, one is deleted behind Palermo's back, and two are there with other arguments.
DELETED, SHORT, QUORUM = NAMES[3], NAMES[11], NAMES[12]


@pytest.fixture
def channel(rabbitmq_url: str) -> Iterator[Any]:
    """Another program, on bare pika."""
    connection = pika.BlockingConnection(pika.URLParameters(rabbitmq_url))
    yield connection.channel()
    connection.close()


@pytest.fixture
def session(rabbitmq_url: str, exchange: str, channel: Any) -> SessionParameters:
    """Where all these queues are, each with a job, except the deleted one."""
    session = SessionParameters(address=parse_url(rabbitmq_url), exchange=exchange, timeout=PATIENT)
    channel.queue_declare(amqp_queue(exchange, SHORT), durable=True, arguments={"x-expires": 3_600_000})
    channel.queue_declare(amqp_queue(exchange, QUORUM), durable=True, arguments={"x-queue-type": "quorum"})

    async def fill(broker: RabbitmqBroker) -> None:
        await broker.publish_many([Message(id=name, queue=name, job="shop.send", body=b"[]") for name in NAMES])

    with_broker(session, fill)
    channel.queue_delete(amqp_queue(exchange, DELETED))
    return session


def test_each_of_many_is_known_whether_there_or_missing(session: SessionParameters) -> None:
    asked = [amqp_queue(session.exchange, name) for name in ("none", *NAMES, "nothing")]

    async def work(broker: RabbitmqBroker) -> None:
        found = await probe_all(broker._connection, asked)
        assert list(found) == asked
        missing = {amqp_queue(session.exchange, name) for name in ("none", "nothing", DELETED)}
        assert {name for name, probe in found.items() if not probe.exists} == missing
        assert {probe.messages for probe in found.values() if probe.exists} == {1}
        assert await probe_all(broker._connection, []) == {}

    with_broker(session, work)


def test_those_that_differ_stay_as_they_are_and_the_others_are_bound(session: SessionParameters, channel: Any) -> None:
    for name in NAMES[:5]:
        channel.queue_declare(amqp_queue(session.exchange, name), durable=True)
        channel.queue_unbind(amqp_queue(session.exchange, name), session.exchange, name)
    named = {amqp_queue(session.exchange, name): name for name in NAMES}

    async def work(broker: RabbitmqBroker) -> None:
        made = await declare_all(broker._connection, named, session.exchange, {"x-queue-type": CLASSIC})
        assert sorted(named[name] for name, probe in made.items() if probe.error) == [SHORT, QUORUM]

    with_broker(session, work)
    channel.confirm_delivery()
    for name in NAMES:
        channel.basic_publish(session.exchange, name, b"[]")
    counts = {name: channel.queue_declare(amqp_queue(session.exchange, name), passive=True) for name in NAMES}
    assert {name: found.method.message_count for name, found in counts.items()} == {
        name: 1 if name == DELETED else 2 for name in NAMES
    }


def test_a_worker_on_all_queues_takes_the_jobs_of_each(session: SessionParameters) -> None:
    async def work(broker: RabbitmqBroker) -> None:
        worker = await consume(broker, "*")
        assert [(await take_and_ack(worker)).id for _ in NAMES[1:]] == [name for name in NAMES if name != DELETED]
        # It made the deleted one again.
        await broker.publish(Message(id="again", queue=DELETED, job="shop.send", body=b"[]"))
        assert (await take_and_ack(worker)).id == "again"

    with_broker(session, work)


def test_all_are_listed_and_looked_at(session: SessionParameters) -> None:
    async def work(broker: RabbitmqBroker) -> None:
        rows = {info.name: info.pending for info in await broker.queues()}
        assert rows == {name: 1 for name in NAMES if name != DELETED}
        levels = {finding.check: finding.level for finding in await broker.diagnose()}
        there = {f"queue {name}": "ok" for name in NAMES if name != DELETED}
        expected = there | {f"queue {SHORT}": "problem", f"queue {QUORUM}": "warning"}
        assert {check: level for check, level in levels.items() if check.startswith("queue many")} == expected

    with_broker(session, work)


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


def on_channel(rabbitmq_url: str, exchange: str, work: Callable[[Channel], Awaitable[Any]]) -> Any:
    async def go(broker: RabbitmqBroker) -> Any:
        return await work(await broker._connection.channel())

    return with_broker(SessionParameters(address=parse_url(rabbitmq_url), exchange=exchange, timeout=PATIENT), go)


def test_several_messages_are_asked_for_in_one_write(rabbitmq_url: str, exchange: str, mail: str, channel: Any) -> None:
    empty = amqp_queue(exchange, "empty")
    channel.queue_declare(empty, durable=True)

    async def ask(session: Channel) -> Any:
        found = await session.get_each([mail, empty, mail, mail, mail])
        return [got and (got.body, got.left) for got in found], await session.get_each([])

    assert on_channel(rabbitmq_url, exchange, ask) == (
        [(b"first", 2), None, (LONG, 1), (b"last", 0), None],
        [],
    )


def test_whoever_asked_and_is_cancelled_gives_back_what_came(rabbitmq_url: str, exchange: str, mail: str) -> None:
    async def ask(session: Channel) -> Any:
        asking = asyncio.ensure_future(session.get_each([mail, mail]))
        await asyncio.sleep(0)  # asked, and not answered yet
        asking.cancel()
        await asyncio.wait({asking})
        assert asking.cancelled()
        return [got and got.body for got in await session.get_each([mail] * 4)]

    assert on_channel(rabbitmq_url, exchange, ask) == [b"first", LONG, b"last", None]


def test_a_queue_that_is_missing_among_them_ends_the_channel(rabbitmq_url: str, exchange: str, mail: str) -> None:
    async def ask(session: Channel) -> Any:
        with pytest.raises(NotFound):
            await session.get_each([mail, amqp_queue(exchange, "missing"), mail])
        assert not session.is_open
        another = await session.connection.channel()
        await another.prefetch(1)
        return (await another.get_each([mail]))[0].body

    assert on_channel(rabbitmq_url, exchange, ask) == b"first"
