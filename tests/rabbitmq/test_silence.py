"""A session whose line is silent, and that is given up by someone who does not wait long."""

import asyncio
import gc
from collections.abc import Iterator

import pytest

from palermo.brokers.rabbitmq import RabbitmqBroker
from palermo.brokers.rabbitmq.amqp.connection import Connection, open_connection
from palermo.brokers.rabbitmq.amqp.messages import Properties
from palermo.brokers.rabbitmq.amqp.publisher import Publisher
from palermo.brokers.rabbitmq.cluster.worker_control import Reports
from palermo.contract.broker import SessionParameters
from palermo.core.address import parse_url
from palermo.core.queue_selection import QueueSelection
from palermo.errors import BrokerUnavailable
from tests.contract.tools import message
from tests.contract.workers import Report, consume, take_and_ack
from tests.helpers import HANGS
from tests.rabbitmq_node import Node, add_user, set_permissions
from tests.tcp_proxy import TcpProxy

#: Closes the connections of this user, as `rabbitmqctl close_all_user_connections` does.
_CLOSE = """
    [rabbit_networking:close_connection(One, "by the operator") || One <- rabbit_networking:connections(),
        rabbit_networking:connection_info(One, [user]) =:= [{user, <<"closed">>}]]
"""


@pytest.fixture
def unread(runner: asyncio.Runner) -> Iterator[list[str]]:
    """Errors that no task has read once the test and its sessions have ended: ask for it before them."""
    found = list[str]()
    yield found
    gc.collect()
    assert found == []


@pytest.mark.parametrize("queues", ["mail", "mail,images"])
async def test_a_slot_stopped_twice_on_a_silent_line_leaves_no_error_unread(
    unread: list[str], proxy: TcpProxy, far: RabbitmqBroker, queues: str
) -> None:
    asyncio.get_running_loop().set_exception_handler(lambda _, context: unread.append(str(context)))
    consumer = await consume(far, queues)
    await far.publish(message(queue="mail"))
    await take_and_ack(consumer)
    receiving = asyncio.ensure_future(consumer.receive(1))
    await asyncio.sleep(0)
    proxy.stall()

    for _ in range(2):
        receiving.cancel()
        await asyncio.sleep(0)
    await asyncio.wait({receiving})
    proxy.hang_up()
    await far.lost()
    await far.close()


async def test_calls_on_a_closing_session_end(proxy: TcpProxy, far: RabbitmqBroker) -> None:
    consumer = await far.consume(QueueSelection.parse("mail,images"), slots=1, tag="pid:1@h", report=Report("mail"))
    proxy.stall("down")
    waiting = [asyncio.ensure_future(consumer.queues_with_jobs()), asyncio.ensure_future(far.queues())]
    await asyncio.sleep(0)

    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.2):
            await far.close()

    async with asyncio.timeout(60):
        ended = await asyncio.gather(*waiting, return_exceptions=True)
    assert [type(error) for error in ended] == [BrokerUnavailable, BrokerUnavailable]


async def test_a_cancelled_get_leaves_no_error_unread(unread: list[str], connection: Connection, exchange: str) -> None:
    asyncio.get_running_loop().set_exception_handler(lambda _, context: unread.append(str(context)))
    channel = await connection.channel()
    asking = asyncio.ensure_future(channel.get(f"{exchange}.nobody"))
    await asyncio.sleep(0)
    asking.cancel()
    await asyncio.wait({asking})
    assert channel.missing


@pytest.mark.parametrize("turns", [1, 2, 4, 7])
async def test_a_slot_that_subscribes_while_its_worker_leaves_hears_of_that(broker: RabbitmqBroker, turns: int) -> None:
    consumer = await consume(broker, "mail")
    receiving = asyncio.ensure_future(consumer.receive(1))
    for _ in range(turns):
        await asyncio.sleep(0)

    await consumer.close()

    async with asyncio.timeout(HANGS):
        with pytest.raises(BrokerUnavailable):
            await receiving


async def test_a_stalled_connection_that_the_broker_closes_ends(shared_node: Node, exchange: str) -> None:
    add_user(shared_node, "closed", "secret")
    set_permissions(shared_node, "closed", ".*", ".*", ".*")
    with TcpProxy(shared_node.host, shared_node.port) as proxy:
        address = parse_url(f"amqp://closed:secret@127.0.0.1:{proxy.port}")
        session = SessionParameters(address=address, exchange=exchange)
        connection = await open_connection(session, "test")
        publisher = await Publisher.open(connection)
        proxy.stall("up")
        sent = publisher.send("", "nobody", Properties(), bytes(64_000_000))
        connection.raw.flush()

        await asyncio.to_thread(shared_node.evaluate, " ".join(_CLOSE.split()))

        # RabbitMQ itself waits for 30 seconds, and then ends the connection by TCP.
        async with asyncio.timeout(20):
            with pytest.raises(BrokerUnavailable, match="by the operator"):
                await sent
        assert connection.error is not None


async def test_two_slots_that_ask_about_a_dead_worker_both_get_an_answer(broker: RabbitmqBroker) -> None:
    silent = broker._silent_workers
    await silent.add_to(Reports((("~worker.dead", Report("*").info),), 1))

    found = await asyncio.gather(*(silent.add_to(Reports((), None)) for _ in range(3)))

    assert [list(each) for each in found] == [[], [], []]
