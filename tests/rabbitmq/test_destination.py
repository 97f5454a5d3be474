"""The engine Destination: what is published finds its queue or exchange made, also after somebody deleted it."""

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager

import pika
import pytest
from msgspec.structs import replace

from palermo.brokers.rabbitmq.amqp.connection import Connection, open_connection
from palermo.brokers.rabbitmq.amqp.messages import Properties
from palermo.brokers.rabbitmq.amqp.publisher import Destination, Nacked, Publisher, RecordQueue, Unroutable
from palermo.brokers.rabbitmq.publishing.declarer import Declarer
from palermo.brokers.rabbitmq.publishing.job_destinations import Place, TenantQueue
from palermo.brokers.rabbitmq.publishing.outbox import Outbox
from palermo.contract.broker import Broker, SessionParameters, open_broker
from palermo.contract.recurring_entries import EntryChange, RecurringEntry
from palermo.core.address import parse_url
from palermo.core.message import Message
from palermo.core.time_slots import TimeSlot
from palermo.core.topology import amqp_queue, internal
from palermo.errors import BrokerUnavailable
from tests.contract.recurring import entry
from tests.contract.timing import due, time_kept
from tests.contract.tools import consume, message, take_and_ack
from tests.rabbitmq_node import Node, url_of


@pytest.fixture
def delete(rabbitmq_url: str) -> Iterator[Callable[[str], None]]:
    """Deletes the exchange and the queue of this name, as another program does."""
    connection = pika.BlockingConnection(pika.URLParameters(rabbitmq_url))
    channel = connection.channel()

    def delete(name: str) -> None:
        channel.exchange_delete(name)
        channel.queue_delete(name)

    yield delete
    connection.close()


class Target:
    """A queue to publish to, as one connection has it, with a count of what was done."""

    def __init__(self, connection: Connection, publisher: Publisher, name: str, **arguments: object) -> None:
        self.made = self.sent = self.forgotten = 0
        self.destination = Destination(self._make, self._forget)
        self._connection, self._publisher, self._name, self._arguments = connection, publisher, name, arguments

    async def publish(self) -> None:
        await self.destination.publish(self._send)

    async def _make(self) -> None:
        self.made += 1
        if self._arguments:
            await self._connection.declare(self._name, self._arguments)

    def _forget(self) -> None:
        self.forgotten += 1

    async def _send(self) -> None:
        self.sent += 1
        await self._publisher.send("", self._name, Properties(), b"1")


@asynccontextmanager
async def connected(session: SessionParameters) -> AsyncIterator[tuple[Connection, Publisher]]:
    connection = await open_connection(session, "test")
    try:
        yield connection, await Publisher.open(connection)
    finally:
        await connection.close()


async def outbox_on(connection: Connection, session: SessionParameters) -> Outbox:
    async def register(queue: str) -> None:
        pass

    declarer = Declarer(
        connection, session.exchange, kind="classic", register=register, register_found=lambda queue: None
    )
    return Outbox(session, connection, declarer)


async def test_a_record_is_stored_in_a_queue_that_was_deleted_since_it_was_made(
    session: SessionParameters, delete: Callable[[str], None]
) -> None:
    found = []
    async with connected(session) as (connection, publisher):

        async def ours() -> Publisher:
            return publisher

        records = RecordQueue(internal(session.exchange, "records"), connection, ours, {"x-queue-type": "classic"})
        found.append((await records.exists(), 0))
        for _ in range(2):
            await records.write({"number": 1})
            await records.write({"number": 2})
            found.append((await records.exists(), (await connection.probe(records.name)).messages))
            delete(records.name)
    assert found == [(False, 0), (True, 2), (True, 2)]


async def being_made(connection: Connection, node: Node, name: str) -> "asyncio.Task[object]":
    """Make a quorum queue that has no leader for a second: RabbitMQ refuses what is published to it meanwhile.

    Returns once other sessions find the queue.
    """
    node.evaluate("sys:suspend(ra_server_sup_sup)")
    asyncio.get_running_loop().call_later(1.0, node.evaluate, "sys:resume(ra_server_sup_sup)")
    making = asyncio.create_task(connection.declare(name, {"x-queue-type": "quorum"}))
    while not (await connection.probe(name)).exists:  # noqa: ASYNC110 - RabbitMQ tells nobody of it
        await asyncio.sleep(0.01)
    return making


def test_a_record_is_stored_in_a_quorum_queue_that_another_session_is_making(
    runner: asyncio.Runner, session: SessionParameters, shared_node: Node
) -> None:
    session = replace(session, address=parse_url(url_of(shared_node)))
    opened = 0

    async def go() -> int:
        nonlocal opened
        async with connected(session) as (one, _), connected(session) as (other, _):

            async def ours() -> Publisher:
                nonlocal opened
                opened += 1
                return await Publisher.open(one)

            records = RecordQueue(internal(session.exchange, "records"), one, ours, {"x-queue-type": "quorum"})
            making = await being_made(other, shared_node, records.name)
            await records.write({"number": 1})
            await making
            return (await one.probe(records.name)).messages

    assert runner.run(go()) == 1
    assert opened > 1, "nothing was refused"


def test_a_job_is_stored_in_a_queue_that_is_a_quorum_queue_since_this_session_asked_for_its_type(
    runner: asyncio.Runner, session: SessionParameters, shared_node: Node
) -> None:
    session = replace(session, address=parse_url(url_of(shared_node)))
    queue = amqp_queue(session.exchange, "jobs")

    async def go() -> int:
        async with connected(session) as (one, _), connected(session) as (other, _):
            outbox = await outbox_on(one, session)
            await outbox.publish(message("one"), "jobs")
            await other.delete(queue)
            making = await being_made(other, shared_node, queue)
            async with other.spare_channel() as channel:
                await channel.bind(queue, session.exchange, routing_key="jobs")
            await outbox.publish(message("two"), "jobs")
            await making
            return (await one.probe(queue)).messages

    assert runner.run(go()) == 1


def test_what_is_gone_twice_in_a_row_is_refused(runner: asyncio.Runner, session: SessionParameters) -> None:
    async def go() -> Target:
        async with connected(session) as (connection, publisher):
            target = Target(connection, publisher, internal(session.exchange, "nowhere"))
            with pytest.raises(Unroutable):
                await target.publish()
        return target

    target = runner.run(go())

    assert (target.made, target.sent, target.forgotten) == (2, 2, 1)


def test_a_queue_that_refuses_a_message_is_neither_made_again_nor_asked_again(
    runner: asyncio.Runner, session: SessionParameters, delete: Callable[[str], None]
) -> None:
    full = {"x-max-length": 1, "x-overflow": "reject-publish"}

    async def go() -> Target:
        async with connected(session) as (connection, publisher):
            target = Target(connection, publisher, internal(session.exchange, "full"), **full)
            await target.publish()
            with pytest.raises(Nacked):
                await target.publish()
        return target

    target = runner.run(go())

    assert (target.made, target.sent, target.forgotten) == (2, 2, 0)


def test_the_error_of_a_lost_session_is_raised(runner: asyncio.Runner, session: SessionParameters) -> None:
    async def go() -> Target:
        async with connected(session) as (connection, publisher):
            target = Target(connection, publisher, internal(session.exchange, "any"))
            await connection.close()
            with pytest.raises(BrokerUnavailable):
                await target.publish()
        return target

    target = runner.run(go())

    assert (target.made, target.sent, target.forgotten) == (1, 1, 0)


@pytest.mark.parametrize("place", ["jobs", TenantQueue("jobs", "a"), TimeSlot(0, int(time.time() // 10) + 1_000)])
def test_a_job_is_stored_at_its_place_also_after_that_was_deleted(
    runner: asyncio.Runner, session: SessionParameters, delete: Callable[[str], None], place: Place
) -> None:
    job = message("one")

    async def go() -> list[int]:
        async with connected(session) as (connection, _):
            outbox = await outbox_on(connection, session)
            exchange, key = outbox.destinations.route(place)
            queue = f"{exchange}.{key}" if exchange else key
            found = []
            for gone in (queue, session.exchange, ""):
                await outbox.destinations.publish(place, job)
                found.append((await connection.probe(queue)).messages)
                assert outbox.destinations.has(place)
                if gone:
                    delete(gone)
            return found

    stored = runner.run(go())

    assert stored == [1, 1, 2]


def ticks() -> RecurringEntry:
    return entry(every=1.0, missed="skip")


@pytest.mark.parametrize("job", ["scheduled", "recurring", "tenant"])
@pytest.mark.parametrize("deleted", ["exchange", "queue"])
def test_a_leader_goes_on_after_the_exchange_or_the_queue_was_deleted(
    runner: asyncio.Runner, session: SessionParameters, delete: Callable[[str], None], job: str, deleted: str
) -> None:
    async def publish(broker: Broker, id: str) -> None:
        match job:
            case "scheduled":
                await broker.publish(due(id, 0.5))
            case "recurring":
                await broker.change_recurring(EntryChange.put(ticks()))
            case "tenant":
                await broker.publish(message(id, tenant="a"))

    async def go() -> list[Message]:
        leader, worker = await open_broker(session), await open_broker(session)
        try:
            async with time_kept(leader):
                await publish(leader, "before")
                consumer = await consume(worker)
                first = await take_and_ack(consumer)
                delete(session.exchange if deleted == "exchange" else f"{session.exchange}.jobs")
                await publish(leader, "after")
                return [first, await take_and_ack(consumer)]
        finally:
            await worker.close()
            await leader.close()

    first, second = runner.run(go())

    assert first.id != second.id
