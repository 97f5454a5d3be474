"""Behaviour of RabbitMQ alone: foreign declarations, queues deleted under us, lines that are cut, several hosts."""

import asyncio
import logging
import socket
import time
from collections.abc import Awaitable
from typing import Any
from urllib.parse import urlsplit

import pytest
from msgspec.structs import replace

from palermo.brokers.rabbitmq import RabbitmqBroker
from palermo.brokers.rabbitmq.amqp import parameters
from palermo.brokers.rabbitmq.consuming import served_queues
from palermo.client.client import Client
from palermo.contract.broker import SessionParameters
from palermo.core.address import parse_url
from palermo.errors import BrokerRefused, BrokerUnavailable
from palermo.settings.settings import Settings
from tests.contract.prioritizing import urgent
from tests.contract.tools import PATIENT, message, until
from tests.contract.workers import consume, take_and_ack
from tests.helpers import Stopwatch, eventually
from tests.rabbitmq.conftest import Open
from tests.rabbitmq_node import free_port
from tests.tcp_proxy import TcpProxy

pytestmark = pytest.mark.slow


# -- opening a session


async def test_options_of_the_url_that_have_no_effect_are_warned_of_once(
    session: SessionParameters, another: Open, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(parameters, "_warned", set())
    options = (("socket_timeout", "5"), ("heartbeat", "30"), ("connection_attempts", "3"))
    given = {"address": replace(session.address, options=options), "takes": True}

    with caplog.at_level(logging.WARNING, "palermo.rabbitmq"):
        for each in ({}, {**given, "warns": False}, given, given):
            await another(**each)

    (said,) = (message for message in caplog.messages if "broker URL" in message)
    assert said.endswith("options=connection_attempts,socket_timeout")


async def test_only_a_worker_has_two_connections(far: RabbitmqBroker, proxy: TcpProxy) -> None:
    await far.publish(message())
    assert proxy.accepted == 1

    consumer = await consume(far)
    await take_and_ack(consumer)

    assert proxy.accepted == 2


# -- declarations of others


async def test_the_mark_of_a_migration_is_not_listed_as_a_paused_queue(broker: RabbitmqBroker) -> None:
    await broker.pause("mail")
    await broker.pause("~migrating.mail")

    assert [(row.name, row.paused) for row in await broker.queues()] == [("mail", True)]


@pytest.mark.parametrize("prioritized", [False, True], ids=["enqueued", "declared"])
async def test_priorities_that_change_nothing_are_warned_of_once(
    broker: RabbitmqBroker, another: Open, prioritized: bool, caplog: pytest.LogCaptureFixture
) -> None:
    await broker.publish(message("plain"))

    if prioritized:
        await consume(await another(prioritized=frozenset({"jobs", "new"})), "jobs,new")
    else:
        program = await another()
        for number in range(3):
            await program.publish(urgent(f"urgent-{number}", 9, "jobs"))

    assert caplog.text.count("priorities have little or no effect queue=jobs") == 1
    assert "palermo migrate jobs --type priority" in caplog.text
    assert "queue=new" not in caplog.text


# -- queues and exchanges deleted under us


async def test_a_deleted_queue_stays_deleted_until_an_enqueue(broker: RabbitmqBroker, another: Open) -> None:
    other = await another()
    await broker.publish_many([message("first"), message("other", queue="other")])
    consumer = await consume(broker, "*")
    for _ in range(2):
        await take_and_ack(consumer)
    waiting = asyncio.ensure_future(consumer.receive(1))
    await asyncio.sleep(0.1)
    await other.delete("jobs")
    await asyncio.sleep(0.3)
    assert [queue.name for queue in await other.queues()] == ["other"]

    await other.publish(message("again"))

    assert (await waiting).message.id == "again"


async def test_a_deleted_queue_that_another_program_makes_is_served_again(
    broker: RabbitmqBroker, another: Open, exchange: str, channel: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(served_queues, "RARELY", 0.2)
    await broker.publish(message("first"))
    consumer = await consume(broker, "*")
    await take_and_ack(consumer)
    waiting = asyncio.ensure_future(consumer.receive(1))
    channel.queue_delete(f"{exchange}.jobs")
    source = consumer._source
    await until(lambda: "jobs" not in source.queues)
    channel.queue_declare(f"{exchange}.jobs", durable=True, arguments={"x-queue-type": "classic"})
    channel.queue_bind(f"{exchange}.jobs", exchange, "jobs")

    await (await another()).publish(message("second"))

    assert (await waiting).message.id == "second"


# -- consuming


async def test_a_worker_with_too_many_slots_is_told_how_many_it_may_have(broker: RabbitmqBroker) -> None:
    most = (await broker._connections.to_consume()).raw.params.channel_max

    with pytest.raises(BrokerRefused, match=f"at most {most - 40:,} slots"):
        await consume(broker, slots=most)


# -- lines that are cut or silent


@pytest.mark.parametrize("turns", [0, 10, 100, 1_000])
async def test_a_worker_cut_off_as_it_begins_hears_of_it(far: RabbitmqBroker, proxy: TcpProxy, turns: int) -> None:
    async def work() -> None:
        await (await consume(far)).receive(1)

    beginning: Awaitable[None] = asyncio.ensure_future(work())
    for _ in range(turns):
        await asyncio.sleep(0)
    await asyncio.to_thread(proxy.hang_up)

    with pytest.raises(BrokerUnavailable):
        async with asyncio.timeout(60):
            await beginning


# -- several hosts in the URL


def with_hosts(url: str, *ports: int) -> str:
    """The same URL with these ports of loopback as its hosts."""
    split = urlsplit(url)
    credentials, _, _ = split.netloc.rpartition("@")
    return split._replace(netloc=f"{credentials}@{','.join(f'127.0.0.1:{port}' for port in ports)}").geturl()


def test_a_lost_session_tries_the_next_host(rabbitmq_url: str, exchange: str) -> None:
    broker = parse_url(rabbitmq_url).hosts[0]
    with TcpProxy(*broker) as first, TcpProxy(*broker) as second:
        url = with_hosts(rabbitmq_url, first.port, second.port)
        with Client(Settings(url=url, exchange=exchange, publish_timeout=PATIENT)) as client:
            for used, other in ((first, second), (second, first), (first, second)):
                client.enqueue("shop.mail.send", ())
                eventually(lambda used=used, other=other: used.connections > 0 and not other.connections)
                used.hang_up()


def test_silent_and_missing_hosts_do_not_use_up_the_whole_timeout(rabbitmq_url: str, exchange: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as black_hole, TcpProxy(*parse_url(rabbitmq_url).hosts[0]) as sound:
        url = with_hosts(rabbitmq_url, black_hole.getsockname()[1], free_port(), sound.port)
        with Client(Settings(url=url, exchange=exchange, publish_timeout=18)) as client:
            began, watch = time.monotonic(), Stopwatch()

            client.enqueue("shop.mail.send", ())

            assert time.monotonic() - began > 1
            # A third of the time, and what a machine may stand still.
            assert watch.seconds() < 14
