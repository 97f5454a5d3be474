"""A session whose line is silent, and that is given up by someone who does not wait long."""

import asyncio
import gc

import pytest

from palermo.brokers.rabbitmq import RabbitmqBroker
from palermo.brokers.rabbitmq.amqp.connection import open_connection
from palermo.brokers.rabbitmq.amqp.messages import Properties
from palermo.brokers.rabbitmq.amqp.publisher import Publisher
from palermo.brokers.rabbitmq.cluster.worker_control import Reports
from palermo.contract.broker import SessionParameters, open_broker
from palermo.contract.worker_info import WorkerInfo
from palermo.core.address import parse_url
from palermo.core.queue_selection import QueueSelection
from palermo.errors import BrokerUnavailable
from tests.contract.tools import consume, message, take_and_ack
from tests.helpers import HANGS
from tests.rabbitmq_node import Node
from tests.tcp_proxy import TcpProxy

#: Closes all connections, as `rabbitmqctl close_all_connections` does.
_CLOSE_ALL = '[rabbit_networking:close_connection(One, "by the operator") || One <- rabbit_networking:connections()]'


def nobody() -> WorkerInfo:
    return WorkerInfo(id="pid:1@h", host="h", pid=1, queues=("*",), slots=1, state="idle", started_at=1.0)


@pytest.mark.parametrize("queues", ["mail", "mail,images"])
def test_a_slot_that_is_stopped_twice_on_a_silent_line_leaves_no_error_that_nobody_reads(
    rabbitmq_url: str, exchange: str, queues: str
) -> None:
    address = parse_url(rabbitmq_url)
    unread: list[str] = []

    async def go(proxy: TcpProxy) -> None:
        asyncio.get_running_loop().set_exception_handler(lambda _, context: unread.append(str(context)))
        session = SessionParameters(
            address=parse_url(rabbitmq_url.replace(f":{address.hosts[0][1]}", f":{proxy.port}")), exchange=exchange
        )
        broker = await open_broker(session)
        consumer = await broker.consume(QueueSelection.parse(queues), slots=1, tag="pid:1@h", report=nobody)
        await broker.publish(message(queue="mail"))
        await take_and_ack(consumer)
        receiving = asyncio.ensure_future(consumer.receive(1))
        await asyncio.sleep(0)
        proxy.stall()

        for _ in range(2):
            receiving.cancel()
            await asyncio.sleep(0)
        await asyncio.wait({receiving})
        proxy.hang_up()
        await broker.lost()
        await broker.close()
        gc.collect()
        await asyncio.sleep(0)

    with TcpProxy(*address.hosts[0]) as proxy:
        asyncio.run(go(proxy))
    assert unread == []


def test_whoever_still_waits_for_it_hears_that_it_has_ended(rabbitmq_url: str, exchange: str) -> None:
    address = parse_url(rabbitmq_url)

    async def go(proxy: TcpProxy) -> None:
        session = SessionParameters(
            address=parse_url(rabbitmq_url.replace(f":{address.hosts[0][1]}", f":{proxy.port}")), exchange=exchange
        )
        broker = await open_broker(session)
        consumer = await broker.consume(QueueSelection.parse("mail,images"), slots=1, tag="pid:1@h", report=nobody)
        proxy.stall("down")
        waiting = [asyncio.ensure_future(consumer.queues_with_jobs()), asyncio.ensure_future(broker.queues())]
        await asyncio.sleep(0)

        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.2):
                await broker.close()

        async with asyncio.timeout(60):
            ended = await asyncio.gather(*waiting, return_exceptions=True)
        assert [type(error) for error in ended] == [BrokerUnavailable, BrokerUnavailable]

    with TcpProxy(*address.hosts[0]) as proxy:
        asyncio.run(go(proxy))


def test_a_get_that_is_cancelled_and_then_refused_leaves_no_error_that_nobody_reads(
    rabbitmq_url: str, exchange: str
) -> None:
    unread: list[str] = []

    async def ask() -> None:
        session = SessionParameters(address=parse_url(rabbitmq_url), exchange=exchange)
        connection = await open_connection(session, "test")
        channel = await connection.channel()
        asking = asyncio.ensure_future(channel.get(f"{exchange}.nobody"))
        await asyncio.sleep(0)
        asking.cancel()
        await asyncio.wait({asking})
        assert channel.missing
        await connection.close()

    async def go() -> None:
        asyncio.get_running_loop().set_exception_handler(lambda _, context: unread.append(str(context)))
        await ask()
        gc.collect()
        await asyncio.sleep(0)

    asyncio.run(go())
    assert unread == []


@pytest.mark.parametrize("turns", range(1, 8))
async def test_a_slot_that_subscribes_while_its_worker_leaves_hears_of_that(
    rabbitmq_url: str, exchange: str, turns: int
) -> None:
    broker = await open_broker(SessionParameters(address=parse_url(rabbitmq_url), exchange=exchange))
    consumer = await consume(broker, "mail")
    receiving = asyncio.ensure_future(consumer.receive(1))
    for _ in range(turns):
        await asyncio.sleep(0)

    await consumer.close()

    async with asyncio.timeout(HANGS):
        with pytest.raises(BrokerUnavailable):
            await receiving
    await broker.close()


def test_a_connection_that_the_broker_closes_ends_though_what_was_sent_cannot_leave(
    module_node: Node, exchange: str
) -> None:
    async def go(proxy: TcpProxy) -> None:
        session = SessionParameters(address=parse_url(f"amqp://127.0.0.1:{proxy.port}"), exchange=exchange)
        connection = await open_connection(session, "test")
        publisher = await Publisher.open(connection)
        proxy.stall("up")
        sent = publisher.send("", "nobody", Properties(), bytes(64_000_000))
        connection.raw.flush()

        module_node.evaluate(_CLOSE_ALL)

        # RabbitMQ itself waits for 30 seconds, and then ends the connection by TCP.
        async with asyncio.timeout(20):
            with pytest.raises(BrokerUnavailable, match="by the operator"):
                await sent
        assert connection.error is not None

    with TcpProxy(module_node.host, module_node.port) as proxy:
        asyncio.run(go(proxy))


async def test_two_slots_that_ask_about_a_worker_that_has_just_died_both_get_an_answer(
    session: SessionParameters,
) -> None:
    broker = await open_broker(session)
    assert isinstance(broker, RabbitmqBroker)
    silent = broker._silent_workers
    await silent.add_to(Reports((("~worker.dead", nobody()),), 1))

    found = await asyncio.gather(*(silent.add_to(Reports((), None)) for _ in range(3)))

    assert [list(each) for each in found] == [[], [], []]
    await broker.close()
