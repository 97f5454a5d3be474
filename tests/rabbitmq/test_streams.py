"""Streams that sessions share, when several sessions begin with them in one moment."""

import asyncio
from functools import partial
from typing import Any

import pytest
from msgspec.structs import replace

from palermo.brokers.rabbitmq import journal
from palermo.brokers.rabbitmq.amqp.connection import CALL_TIMEOUT, Connection, open_connection
from palermo.brokers.rabbitmq.amqp.publisher import Publisher
from palermo.brokers.rabbitmq.amqp.stream import Follower, Stream
from palermo.brokers.rabbitmq.broker import open_rabbitmq
from palermo.brokers.rabbitmq.journal import StreamReader
from palermo.contract.broker import SessionParameters, open_broker
from palermo.contract.journal import FROM_START
from palermo.core.address import parse_url
from palermo.core.message import Message
from palermo.core.topology import internal
from palermo.errors import BrokerUnavailable
from tests.contract.tools import PATIENT, until
from tests.rabbitmq_tidy import delete_all
from tests.tcp_proxy import TcpProxy

_AT_ONCE = 6
_ROUNDS = 4


def test_no_session_is_lost_when_several_are_the_first_of_an_exchange(rabbitmq_url: str, exchange: str) -> None:
    async def enqueue(session: SessionParameters, queue: str) -> list[str]:
        broker = await open_broker(session)
        try:
            await broker.publish(Message(id=queue, queue=queue, job="shop.send", body=b"[]"))
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


async def test_a_session_that_lists_the_queues_again_sees_each_change_even_when_the_stream_is_gone(
    rabbitmq_url: str, exchange: str
) -> None:
    session = SessionParameters(address=parse_url(rabbitmq_url), exchange=exchange, timeout=PATIENT)
    watching, working = await open_broker(session), await open_broker(session)

    async def names() -> list[str]:
        return [info.name for info in await watching.queues()]

    assert await names() == []
    for number in range(3):
        await working.publish(Message(id="1", queue=f"q{number}", job="shop.send", body=b"[]"))
        assert await names() == [f"q{each}" for each in range(number + 1)]
    await working.delete("q1")
    assert await names() == ["q0", "q2"]

    connection = await open_connection(session, "test")
    await connection.delete(internal(exchange, "registry"))
    await working.publish(Message(id="1", queue="q3", job="shop.send", body=b"[]"))
    await until(names, ["q0", "q2", "q3"])
    await connection.close()
    await watching.close()
    await working.close()


async def test_a_question_on_a_connection_that_is_closing_ends_with_its_error(rabbitmq_url: str, exchange: str) -> None:
    """Otherwise a queue that nobody has seems to exist, and a session looks for the next free name for ever."""
    connection = await open_connection(SessionParameters(address=parse_url(rabbitmq_url), exchange=exchange), "test")
    assert not await connection.has_queue(internal(exchange, "registry.2"))

    closing = asyncio.ensure_future(connection.close())
    await asyncio.sleep(0)
    assert connection.error is None
    with pytest.raises(BrokerUnavailable, match="has been closed"):
        await connection.has_queue(internal(exchange, "registry.2"))
    await closing


async def test_a_reader_of_a_stream_that_was_made_anew_with_fewer_records_does_not_wait_for_ever(
    rabbitmq_url: str, exchange: str
) -> None:
    """It asks where the stream ends, and then reads up to there: somebody may delete the stream between the two."""
    connection = await open_connection(SessionParameters(address=parse_url(rabbitmq_url), exchange=exchange), "test")
    stream = Stream(
        internal(exchange, "records"), partial(Publisher.open, connection), patience=PATIENT, holds="the records"
    )
    await stream.write({"number": 1})
    end, found = await stream.end(connection), list[Any]()
    assert end is not None

    follower = Follower(await connection.channel(), found.append)
    async with asyncio.timeout(PATIENT):
        with pytest.raises(BrokerUnavailable, match="did not answer"):
            await follower.start(stream.name, end + 1, patience=0.2)

    assert found[-1] == {"number": 1}
    await connection.close()


async def test_a_reader_of_a_journal_that_was_made_anew_with_fewer_batches_ends_and_is_not_said_to_have_caught_up(
    session: SessionParameters, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As above, for commands, pages and results."""
    monkeypatch.setattr(journal, "CALL_TIMEOUT", 0.2)
    broker, found = await open_rabbitmq(session), list[Any]()
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
    await broker.close()


def test_all_questions_about_a_stream_that_nobody_made_are_on_their_way_before_the_first_is_answered(
    rabbitmq_url: str, exchange: str
) -> None:
    """Each that waited for another would be a round trip more between the start of a worker and its first job."""

    async def go(proxy: TcpProxy) -> object:
        address = replace(parse_url(rabbitmq_url), hosts=(("127.0.0.1", proxy.port),))
        connection = await open_connection(SessionParameters(address=address, exchange=exchange), "test")
        stream = Stream(
            internal(exchange, "pauses"),
            partial(Publisher.open, connection),
            patience=0,
            holds="which queues are paused",
            copied=True,
        )
        channels: Any = connection.raw

        async def asking() -> int:
            return len(channels._channels)

        proxy.stall("down")
        finding = asyncio.ensure_future(stream._find_last(connection))
        try:
            # One for the stream that would have taken its place, one for its copy, one for the permission to read.
            async with asyncio.timeout(CALL_TIMEOUT):  # then the first is given up
                await until(asking, 3)
            proxy.resume()
            return await finding
        finally:
            proxy.resume()
            finding.cancel()
            await connection.close()

    with TcpProxy(*parse_url(rabbitmq_url).hosts[0]) as proxy:
        assert asyncio.run(go(proxy)) is None


def test_a_stream_is_made_to_its_end_when_the_task_that_makes_it_is_cancelled(rabbitmq_url: str, exchange: str) -> None:
    """Else others would find it without a leader, and RabbitMQ 3.10 would close their connections."""

    async def go(proxy: TcpProxy) -> None:
        session = SessionParameters(address=parse_url(rabbitmq_url), exchange=exchange, timeout=PATIENT)
        near = await open_connection(session, "near")
        address = replace(session.address, hosts=(("127.0.0.1", proxy.port),))
        far = await open_connection(replace(session, address=address), "far")
        name = internal(exchange, "starts")

        def stream(connection: Connection) -> Stream:
            return Stream(name, partial(Publisher.open, connection), patience=PATIENT, holds="the record of starts")

        async def is_being_made() -> bool:
            return (await near.probe(f"{name}.making")).exists

        proxy.delay = 0.1
        making = asyncio.ensure_future(stream(far).make())
        await until(is_being_made, True)
        making.cancel()
        assert isinstance((await asyncio.gather(making, return_exceptions=True))[0], asyncio.CancelledError)

        await until(is_being_made, False)
        assert await stream(near).end(near) == 0
        for connection in (near, far):
            await connection.close()

    with TcpProxy(*parse_url(rabbitmq_url).hosts[0]) as proxy:
        asyncio.run(go(proxy))
