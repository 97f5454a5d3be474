"""What is published finds its queue or exchange made, also after a deletion, and fits the frames of the connection."""

import asyncio
import time
from collections.abc import Callable, Iterator
from typing import Any

import pika
import pytest
from msgspec.structs import replace

from palermo.brokers.rabbitmq.amqp.connection import Connection
from palermo.brokers.rabbitmq.amqp.messages import Properties
from palermo.brokers.rabbitmq.amqp.publisher import Destination, Publisher, RecordQueue, Unroutable
from palermo.brokers.rabbitmq.broker import RabbitmqBroker
from palermo.brokers.rabbitmq.publishing.job_destinations import Place, TenantQueue
from palermo.contract.broker import SessionParameters
from palermo.contract.recurring_entries import EntryChange
from palermo.core.address import parse_url
from palermo.core.due_times import FOREIGN, Intake
from palermo.core.failure import Failure
from palermo.core.lifecycle import Reschedule, fail
from palermo.core.topology import internal
from palermo.errors import BrokerRefused, BrokerUnavailable, PublishRefused
from tests.contract.recurring import entry
from tests.contract.timing import due, time_kept
from tests.contract.tools import counts, ids, message, until
from tests.contract.unique_jobs import ask, begun, freed, keyed
from tests.contract.workers import consume, take_and_ack
from tests.rabbitmq.conftest import Open, connected, ids_in, outbox_on, too_large
from tests.rabbitmq_node import Node, url_of

#: Deletes the exchange and the queue of this name, as another program does.
Delete = Callable[[str], None]


@pytest.fixture
def delete(rabbitmq_url: str) -> Iterator[Delete]:
    connection = pika.BlockingConnection(pika.URLParameters(rabbitmq_url))
    channel = connection.channel()

    def delete(name: str) -> None:
        channel.exchange_delete(name)
        channel.queue_delete(name)

    yield delete
    connection.close()


#: Of a queue that takes one message.
FULL = {"x-max-length": 1, "x-overflow": "reject-publish"}


async def test_a_record_is_stored_after_a_deletion(connection: Connection, exchange: str, delete: Delete) -> None:
    publisher = await Publisher.open(connection)

    async def ours() -> Publisher:
        return publisher

    records = RecordQueue(internal(exchange, "records"), connection, ours, {"x-queue-type": "classic"})
    assert not await records.exists()
    for _ in range(2):
        await records.write({"number": 1})
        await records.write({"number": 2})
        assert (await records.exists(), (await connection.probe(records.name)).messages) == (True, 2)
        delete(records.name)


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


async def test_a_record_waits_for_a_quorum_queue_being_made(session: SessionParameters, shared_node: Node) -> None:
    session, opened = replace(session, address=parse_url(url_of(shared_node))), list[Publisher]()
    async with connected(session) as one, connected(session) as other:

        async def ours() -> Publisher:
            opened.append(await Publisher.open(one))
            return opened[-1]

        records = RecordQueue(internal(session.exchange, "records"), one, ours, {"x-queue-type": "quorum"})
        making = await being_made(other, shared_node, records.name)
        await records.write({"number": 1})
        await making
        assert (await one.probe(records.name)).messages == 1
    assert len(opened) > 1, "nothing was refused"


@pytest.mark.parametrize(
    ("arguments", "is_lost", "error", "times"),
    [({}, False, Unroutable, 2), (FULL, False, PublishRefused, 2), ({}, True, BrokerUnavailable, 1)],
    ids=["gone twice in a row", "refuses", "session lost"],
)
async def test_what_cannot_be_stored_is_refused_and_not_sent_for_ever(
    connection: Connection, exchange: str, arguments: dict[str, Any], is_lost: bool, error: type, times: int
) -> None:
    publisher, name, sent = await Publisher.open(connection), internal(exchange, "records"), list[str]()

    async def make() -> None:
        if arguments:
            await connection.declare(name, arguments)

    async def send() -> None:
        sent.append(name)
        await publisher.send("", name, Properties(), b"1")

    destination = Destination(make, lambda: None)
    if arguments:
        await destination.publish(send)  # which fills it
    if is_lost:
        await connection.close()

    with pytest.raises(error):
        await destination.publish(send)

    assert len(sent) == times


@pytest.mark.parametrize("place", ["jobs", TenantQueue("jobs", "a"), Intake.NEW])
async def test_a_job_is_stored_at_its_place_also_after_that_was_deleted(
    session: SessionParameters, connection: Connection, delete: Delete, place: Place
) -> None:
    outbox, job = outbox_on(connection, session), message("one")
    exchange, key = outbox.destinations.route(place)
    queue = f"{exchange}.{key}" if exchange else key
    stored = []
    for gone in (queue, session.exchange, ""):
        await outbox.destinations.publish(place, job)
        stored.append((await connection.probe(queue)).messages)
        assert outbox.destinations.has(place)
        if gone:
            delete(gone)
    assert stored == [1, 1, 2]


@pytest.mark.parametrize("job", ["scheduled", "recurring", "tenant"])
async def test_a_leader_survives_deletions(broker: RabbitmqBroker, another: Open, delete: Delete, job: str) -> None:
    async def publish(id: str) -> None:
        match job:
            case "scheduled":
                await broker.publish(due(id, 0.5))
            case "recurring":
                await broker.change_recurring(EntryChange.put(entry(every=1.0, missed="skip")))
            case "tenant":
                await broker.publish(message(id, tenant="a"))

    async with time_kept(broker):
        await publish("before")
        consumer = await consume(await another())
        taken = {(await take_and_ack(consumer)).id}
        for gone in (broker._exchange, f"{broker._exchange}.jobs"):
            delete(gone)
            await publish(f"after {gone}")
            found = await take_and_ack(consumer)
            assert found.id not in taken
            taken.add(found.id)


# -- jobs with headers that do not fit the frames of a connection that publishes them again

LARGE = {"note": "n" * 20_000}


@pytest.fixture
def narrow(runner: asyncio.Runner, another: Open, small: dict[str, Any]) -> RabbitmqBroker:
    """A session with small frames."""
    return runner.run(another(**small))


async def snooze(worker: RabbitmqBroker) -> None:
    """Take a job and put it off, which means to publish it again."""
    consumer = await consume(worker)
    delivery = await begun(consumer)
    await consumer.settle(delivery, Reschedule(replace(delivery.message, run_at=time.time() + 60)))


async def test_a_snoozed_unique_job_with_large_headers_fails(broker: RabbitmqBroker, narrow: RabbitmqBroker) -> None:
    async with time_kept(broker):
        await ask(broker, keyed("large", extra=LARGE))

        await snooze(narrow)

        await too_large(broker, "large")
        await freed(broker)


async def test_with_failed_per_queue_such_jobs_fail_in_their_own_queue(another: Open, small: dict[str, Any]) -> None:
    broker, worker = await another(failed_per_queue=True), await another(**small, failed_per_queue=True)
    await broker.publish(message("snoozed", extra=LARGE))
    await snooze(worker)
    await broker.publish(message("due", run_at=time.time() + 0.5, extra=LARGE))

    async with time_kept(worker):
        await until(lambda: ids_in(broker, "failed:jobs"), ["due", "snoozed"])
    assert await counts(broker, "failed") in ((0, 0), None)


async def test_anothers_job_that_is_too_large_for_frames_fails(broker: RabbitmqBroker, narrow: RabbitmqBroker) -> None:
    await broker.publish(message("small"))
    early = message("large", extra=LARGE | {FOREIGN: 1}, run_at=time.time() + 60)
    await (await broker._outbox.open()).send_job(broker._exchange, "jobs", early)
    await broker.publish(message("last"))
    consumer = await consume(narrow)

    assert [(await take_and_ack(consumer)).id for _ in range(2)] == ["small", "last"]
    await too_large(broker, "large")
    await until(lambda: counts(broker), (0, 0))


async def test_a_failed_job_is_migrated_with_its_error_cut(broker: RabbitmqBroker, narrow: RabbitmqBroker) -> None:
    failure = Failure(exception_class="shop.Full", message="no", stack_trace="line\n" * 4_000, failed_at=5)
    await broker._outbox.publish(fail(message("long"), failure, worker="w"), "failed")

    assert await narrow.migrate("failed", "quorum") == 1

    (failed,) = (await broker.browse("failed")).messages
    assert failed.failure is not None
    assert (failed.id, failed.failure.exception_class, failed.failure.message) == ("long", "shop.Full", "no")


async def test_a_migration_continues_with_larger_frames(broker: RabbitmqBroker, narrow: RabbitmqBroker) -> None:
    await broker.publish_many([message("first"), message("large", extra=LARGE), message("last")])

    for _ in range(2):
        with pytest.raises(BrokerRefused, match=r"job large .* larger frame_max"):
            await narrow.migrate("jobs", "quorum")
    await broker.migrate("jobs", "quorum")

    assert await ids(broker) == ["first", "large", "last"]
