"""Streams that sessions share, when several sessions begin with them in one moment."""

import asyncio
from functools import partial
from typing import Any

import pytest
from msgspec.structs import replace

from palermo.brokers.rabbitmq import journal
from palermo.brokers.rabbitmq.amqp.connection import Connection
from palermo.brokers.rabbitmq.amqp.publisher import Publisher
from palermo.brokers.rabbitmq.amqp.stream import Follower, Stream
from palermo.brokers.rabbitmq.broker import RabbitmqBroker
from palermo.brokers.rabbitmq.journal import StreamReader
from palermo.contract.broker import SessionParameters, open_broker
from palermo.contract.journal import FROM_START
from palermo.core.address import parse_url
from palermo.core.topology import internal
from palermo.errors import BrokerUnavailable
from tests.contract.tools import PATIENT, message, until
from tests.rabbitmq.conftest import Open
from tests.rabbitmq_tidy import delete_all
from tests.tcp_proxy import TcpProxy

_AT_ONCE = 6
_ROUNDS = 4


def test_no_session_is_lost_when_several_are_the_first_of_an_exchange(rabbitmq_url: str, exchange: str) -> None:
    async def enqueue(session: SessionParameters, queue: str) -> list[str]:
        broker = await open_broker(session)
        try:
            await broker.publish(message(queue=queue))
            return [info.name for info in await broker.queues()]
        finally:
            await broker.close()

    async def begin(number: int) -> list[list[str]]:
        session = SessionParameters(address=parse_url(rabbitmq_url), exchange=f"{exchange}-{number}", timeout=PATIENT)
        async with asyncio.timeout(60):
            return await asyncio.gather(*(enqueue(session, f"q{each}") for each in range(_AT_ONCE)))

    for number in range(_ROUNDS):
        try:
            found = asyncio.run(begin(number))
        finally:
            delete_all(rabbitmq_url, f"{exchange}-{number}")
        assert [f"q{each}" in found[each] for each in range(_AT_ONCE)] == [True] * _AT_ONCE


async def test_each_listing_of_queues_is_current_even_if_the_stream_is_gone(
    broker: RabbitmqBroker, another: Open, connection: Connection, exchange: str
) -> None:
    working = await another()

    async def names() -> list[str]:
        return [info.name for info in await broker.queues()]

    assert await names() == []
    for number in range(3):
        await working.publish(message(queue=f"q{number}"))
        assert await names() == [f"q{each}" for each in range(number + 1)]
    await working.delete("q1")
    assert await names() == ["q0", "q2"]

    await connection.delete(internal(exchange, "registry"))
    await working.publish(message(queue="q3"))
    await until(names, ["q0", "q2", "q3"])


async def test_a_question_on_a_connection_that_is_closing_ends_with_its_error(
    connection: Connection, exchange: str
) -> None:
    """Otherwise a queue that is missing seems to exist, and a session looks for the next free name for ever."""
    assert not await connection.has_queue(internal(exchange, "registry.2"))

    closing = asyncio.ensure_future(connection.close())
    await asyncio.sleep(0)
    assert connection.error is None
    with pytest.raises(BrokerUnavailable, match="has been closed"):
        await connection.has_queue(internal(exchange, "registry.2"))
    await closing


async def test_a_reader_of_a_stream_that_was_made_anew_with_fewer_records_ends(
    connection: Connection, exchange: str
) -> None:
    """It asks where the stream ends, and then reads up to there: somebody may delete the stream between the two."""
    stream = Stream(internal(exchange, "records"), partial(Publisher.open, connection), patience=PATIENT, holds="")
    await stream.write({"number": 1})
    end, found = await stream.end(connection), list[Any]()
    assert end is not None

    follower = Follower(await connection.channel(), found.append)
    async with asyncio.timeout(PATIENT):
        with pytest.raises(BrokerUnavailable, match="did not answer"):
            await follower.start(stream.name, end + 1, patience=0.2)

    assert found[-1] == {"number": 1}


async def test_a_reader_of_a_journal_that_was_made_anew_with_fewer_batches_ends(
    broker: RabbitmqBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And is not said to have caught up."""
    monkeypatch.setattr(journal, "CALL_TIMEOUT", 0.2)
    found = list[Any]()
    await broker.journal.append(b"[]")
    last = await broker.journal._stream.last(broker._connection)
    assert last is not None
    end, stored_at = last

    reader = StreamReader(await broker._connection.channel(), found.append, end + 1, None)
    await reader.start(broker.journal._stream.name, FROM_START, stored_at)
    async with asyncio.timeout(PATIENT):
        await reader.ended.wait()

    assert len(found) == end + 1
    assert not reader.caught_up.is_set()


async def test_a_stream_is_made_although_the_task_that_makes_it_is_cancelled(
    session: SessionParameters, another: Open, connection: Connection, exchange: str
) -> None:
    """Else others would find it without a leader, and RabbitMQ 3.10 would close their connections."""
    name = internal(exchange, "starts")

    def stream(connection: Connection) -> Stream:
        return Stream(name, partial(Publisher.open, connection), patience=PATIENT, holds="the record of starts")

    async def is_being_made() -> bool:
        return (await connection.probe(f"{name}.making")).exists

    with TcpProxy(*session.address.hosts[0]) as proxy:
        far = await another(address=replace(session.address, hosts=(("127.0.0.1", proxy.port),)))
        proxy.delay = 0.1
        making = asyncio.ensure_future(stream(far._connection).make())
        await until(is_being_made, True)
        making.cancel()
        assert isinstance((await asyncio.gather(making, return_exceptions=True))[0], asyncio.CancelledError)

        await until(is_being_made, False)
        assert await stream(connection).end(connection) == 0
        await far.close()
