"""A session that asks again and again causes no errors in RabbitMQ, and sees at once what is made."""

import asyncio

import pytest

from palermo.brokers.rabbitmq.amqp.messages import PERSISTENT_JSON
from palermo.brokers.rabbitmq.amqp.publisher import MissingQueues, Publisher
from palermo.brokers.rabbitmq.broker import RabbitmqBroker
from palermo.brokers.rabbitmq.cluster import registry
from palermo.contract.broker import SessionParameters
from palermo.core.address import parse_url
from palermo.core.queue_selection import NONE_PAUSED
from palermo.core.topology import FAILED_QUEUE, amqp_queue, internal
from tests.contract.tools import consume, message
from tests.rabbitmq.channel_errors import channel_errors
from tests.rabbitmq.conftest import Open
from tests.rabbitmq_node import Node, add_user, set_permissions, url_of

pytestmark = pytest.mark.usefixtures("patient")


@pytest.fixture
def errors(monkeypatch: pytest.MonkeyPatch) -> list[BaseException]:
    return channel_errors(monkeypatch)


@pytest.fixture
def maker(runner: asyncio.Runner, another: Open) -> RabbitmqBroker:
    """Another session, which makes what the first one looks at."""
    return runner.run(another())


async def look(broker: RabbitmqBroker) -> None:
    """Ask for what the pages of `palermo web` ask for every two seconds."""
    await broker.queues()
    await broker.workers()
    await broker.all_paused()
    await broker.recurring()
    await broker.tenants.totals()
    await broker.keys.exist()
    await broker.events.subscriptions()


@pytest.mark.parametrize("is_served", [False, True])
async def test_looks_where_nothing_was_made_or_a_worker_waits_are_no_errors(
    broker: RabbitmqBroker, maker: RabbitmqBroker, errors: list[BaseException], is_served: bool
) -> None:
    if is_served:
        await consume(maker, "mail")
    await look(broker)
    errors.clear()

    for _ in range(3):
        await look(broker)

    assert errors == []


async def test_a_session_that_looked_before_sees_the_first_of_everything_at_once(
    broker: RabbitmqBroker, maker: RabbitmqBroker
) -> None:
    for _ in range(2):
        await look(broker)

    await maker.pause("mail")
    await maker.publish(message("a", queue="mail"))
    await maker.publish(message("b", queue=FAILED_QUEUE))
    await consume(maker, "other")

    assert [(each.name, each.pending, each.paused) for each in await broker.queues()] == [
        (FAILED_QUEUE, 1, False),
        ("mail", 1, True),
        ("other", 0, False),
    ]
    assert len(await broker.workers()) == 1


async def test_a_queue_that_was_deleted_is_seen_when_it_is_made_again(
    broker: RabbitmqBroker, maker: RabbitmqBroker, session: SessionParameters, errors: list[BaseException]
) -> None:
    await maker.publish(message("a", queue="mail"))
    await maker._connection.delete(amqp_queue(session.exchange, "mail"))  # no record tells of that
    assert await broker.queues() == []
    errors.clear()
    assert await broker.queues() == []
    assert errors == []

    await maker.publish(message("b", queue="mail"))

    assert [(each.name, each.pending) for each in await broker.queues()] == [("mail", 1)]


async def test_a_failed_queue_that_another_program_makes_is_seen_after_a_while(
    broker: RabbitmqBroker, session: SessionParameters, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(registry, "_MISSING", 0.0)
    assert await broker.queues() == []

    await broker._connection.declare(amqp_queue(session.exchange, FAILED_QUEUE))

    assert [each.name for each in await broker.queues()] == [FAILED_QUEUE]
    await broker._connection.delete(amqp_queue(session.exchange, FAILED_QUEUE))


async def test_who_looks_leaves_no_message_in_a_copy_that_is_read(
    broker: RabbitmqBroker, maker: RabbitmqBroker, session: SessionParameters
) -> None:
    for _ in range(2):
        await broker.all_paused()
    await maker.pause("mail")
    for _ in range(3):
        assert not await broker.all_paused()

    # RabbitMQ loses the stream: who finds that, makes it anew from its copy.
    await maker._connection.delete(internal(session.exchange, "pauses"))
    await broker.all_paused()

    assert "mail" in await broker._pauses_and_cancels.paused()


async def test_a_user_who_may_write_to_no_queue_sees_the_first_pause_too(
    another: Open, module_node: Node, exchange: str
) -> None:
    add_user(module_node, "viewer", "secret")
    set_permissions(module_node, "viewer", "^$", f"^{exchange}", ".*")
    maker = await another(address=parse_url(url_of(module_node)))
    viewer = await another(address=parse_url(url_of(module_node, user="viewer", password="secret")))
    for _ in range(3):
        assert await viewer._pauses_and_cancels.paused() == NONE_PAUSED

    await maker.pause("mail")

    assert "mail" in await viewer._pauses_and_cancels.paused()


async def test_one_question_at_most_gets_into_the_queue_that_was_missing(
    broker: RabbitmqBroker, session: SessionParameters
) -> None:
    connection, name = broker._connection, internal(session.exchange, "records")
    publisher = await Publisher.open(connection)
    missing = MissingQueues(broker._open_publisher)
    for _ in range(2):
        assert not (await missing.probe(connection, name)).exists
    await connection.declare(name)
    await publisher.send("", name, PERSISTENT_JSON, b"{}")

    for _ in range(4):
        assert (await missing.probe(connection, name)).exists

    assert (await connection.probe(name)).messages == 2
    await connection.delete(name)
    assert not (await missing.probe(connection, name)).exists
