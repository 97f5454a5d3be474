"""A session whose line is silent, and that is given up by someone who does not wait long."""

import asyncio
import gc

import pytest

from palermo.contract.broker import SessionParameters, open_broker
from palermo.contract.worker_info import WorkerInfo
from palermo.core.address import parse_url
from palermo.core.queue_selection import QueueSelection
from palermo.errors import BrokerUnavailable
from tests.contract.tools import message, take_and_ack
from tests.tcp_proxy import TcpProxy


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
