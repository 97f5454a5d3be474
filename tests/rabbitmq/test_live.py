"""Behaviour of RabbitMQ alone: refusals, foreign declarations, queues deleted under us, cut streams."""

import asyncio
import hashlib
import logging
import os
import random
import socket
from collections.abc import Awaitable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from msgspec.structs import replace

from palermo.brokers.rabbitmq import RabbitmqBroker
from palermo.brokers.rabbitmq.amqp import parameters
from palermo.brokers.rabbitmq.amqp.connection import Connection
from palermo.brokers.rabbitmq.cluster import worker_control
from palermo.brokers.rabbitmq.consuming import poll
from palermo.contract.broker import SessionParameters
from palermo.core.failure import Attempt, Failure
from palermo.core.lifecycle import Ack, fail, requeue
from palermo.core.message import Message
from palermo.core.topology import internal
from palermo.errors import BrokerRefused, BrokerUnavailable, DeliveryLost, PalermoError, UrlInvalid
from tests.contract.prioritizing import urgent
from tests.contract.tools import Report, consume, message, take_and_ack, until
from tests.helpers import HANGS
from tests.rabbitmq.conftest import Open, on_both_kinds
from tests.tcp_proxy import TcpProxy

pytestmark = pytest.mark.slow


@pytest.fixture
def proxy(session: SessionParameters) -> Iterator[TcpProxy]:
    with TcpProxy(*session.address.hosts[0]) as proxy:
        yield proxy


def by_way_of(session: SessionParameters, port: int, **options: str) -> dict[str, Any]:
    """What makes a session over this port, for `another`."""
    address = replace(session.address, hosts=(("127.0.0.1", port),), options=tuple(options.items()))
    return {"address": address}


async def take(broker: RabbitmqBroker, queues: str) -> Message:
    consumer = await consume(broker, queues)
    found = await take_and_ack(consumer)
    await consumer.close()
    return found


# -- opening a session


@pytest.mark.parametrize(
    ("change", "kind", "said"),
    [
        ({"password": "wrong-one"}, BrokerRefused, "wrong user name or password"),
        ({"vhost": "no-such"}, BrokerRefused, "virtual host 'no-such'"),
        ({"hosts": (("127.0.0.1", 1),)}, BrokerUnavailable, "127.0.0.1:1"),
        ({"options": (("heartbeat", "often"),)}, UrlInvalid, "heartbeat"),
        ({"options": (("no_such_option", "1"),)}, UrlInvalid, "no_such_option"),
    ],
)
async def test_a_broker_that_will_not_have_us_says_which_and_never_the_password(
    session: SessionParameters, another: Open, change: dict[str, Any], kind: type[PalermoError], said: str
) -> None:
    with pytest.raises(kind, match=said) as caught:
        await another(address=replace(session.address, **change))

    assert "wrong-one" not in str(caught.value)


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


async def test_a_host_that_accepts_and_never_answers_is_given_up_in_time(
    session: SessionParameters, another: Open
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent, pytest.raises(BrokerUnavailable, match="in time"):
        await another(**by_way_of(session, silent.getsockname()[1]), timeout=0.5)


@pytest.mark.parametrize("answers", [0, 1, 2])
async def test_a_broker_that_stops_during_the_login_is_away_and_refuses_nobody(
    session: SessionParameters, another: Open, answers: int
) -> None:
    def serve() -> None:
        line, _ = server.accept()
        with line, socket.create_connection(session.address.hosts[0]) as broker:
            for _ in range(answers):
                broker.sendall(line.recv(65_536))
                line.sendall(broker.recv(65_536))
            line.recv(65_536)

    with socket.create_server(("127.0.0.1", 0)) as server, ThreadPoolExecutor(1) as threads:
        serving = threads.submit(serve)
        with pytest.raises(BrokerUnavailable, match="closed the connection"):
            await another(**by_way_of(session, server.getsockname()[1]))
        serving.result(60)


async def test_a_program_that_only_enqueues_has_one_connection_and_a_worker_two(
    session: SessionParameters, another: Open, proxy: TcpProxy
) -> None:
    broker = await another(**by_way_of(session, proxy.port))
    await broker.publish(message())
    assert proxy.accepted == 1

    await take(broker, "jobs")

    assert proxy.accepted == 2


# -- declarations of others


@pytest.mark.parametrize(
    ("arguments", "said", "served"),
    [({"x-queue-type": "quorum"}, "x-queue-type", "jobs"), ({"x-max-length": 5}, "x-max-length", "jobs,other")],
)
async def test_a_queue_with_other_arguments_is_used_as_it_is_with_a_warning(
    broker: RabbitmqBroker,
    exchange: str,
    channel: Any,
    arguments: dict[str, Any],
    said: str,
    served: str,
    caplog: pytest.LogCaptureFixture,
) -> None:
    channel.queue_declare(f"{exchange}.jobs", durable=True, arguments=arguments)

    with caplog.at_level(logging.WARNING, "palermo.rabbitmq"):
        await broker.publish(message("1"))
        assert (await take(broker, served)).id == "1"
    assert said in caplog.text


async def test_a_queue_that_another_program_made_is_listed_once_we_publish_to_it(
    broker: RabbitmqBroker, another: Open, exchange: str, channel: Any
) -> None:
    channel.queue_declare(f"{exchange}.ünder the sea", durable=True)

    await broker.publish(message(queue="ünder the sea"))
    await broker.close()

    assert [queue.name for queue in await (await another()).queues()] == ["ünder the sea"]


async def test_an_exchange_of_another_kind_is_refused_by_name(
    broker: RabbitmqBroker, exchange: str, channel: Any
) -> None:
    channel.exchange_declare(exchange, "fanout", durable=True)

    with pytest.raises(BrokerRefused, match="--exchange"):
        await broker.publish(message())
    channel.exchange_delete(exchange)


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

    assert caplog.text.count("priorities change little or nothing in this queue queue=jobs") == 1
    assert "palermo migrate jobs --type priority" in caplog.text
    assert "queue=new" not in caplog.text


# -- queues and exchanges deleted under us


@pytest.mark.parametrize("anew", [False, True], ids=["gone", "made-anew"])
async def test_workers_answer_and_pause_although_their_exchange_was_deleted(
    broker: RabbitmqBroker,
    another: Open,
    connection: Connection,
    exchange: str,
    anew: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(worker_control, "_BIND_EVERY", 0.2)
    onlooker, workers = await another(), [await consume(broker)]
    async with connection.spare_channel() as channel:
        await channel.call(channel.raw.exchange_delete, internal(exchange, "control"))
    await onlooker.pause("jobs")
    if anew:
        workers.append(await consume(broker, report=Report("jobs", pid=2)))

    async def seen() -> tuple[list[bool], list[set[str]]]:
        paused = [worker._consumer._steering._pauses.state.queues for worker in workers]  # type: ignore[attr-defined]
        return [one.answers for one in await onlooker.workers()], paused

    await until(seen, ([True] * len(workers), [{"jobs"}] * len(workers)))


async def test_a_queue_deleted_since_its_declaration_is_made_again(
    broker: RabbitmqBroker, exchange: str, channel: Any
) -> None:
    await broker.publish(message("before"))
    channel.queue_delete(f"{exchange}.jobs")
    await broker.publish(message("after"))
    channel.queue_delete(f"{exchange}.jobs")
    await broker.publish_many(message(str(number)) for number in range(2_500))

    assert (await broker.browse("jobs", limit=0)).total == 2_500


@pytest.mark.parametrize("served", ["jobs", "other,jobs", "j*"])
async def test_a_queue_deleted_under_a_waiting_worker_is_served_again(
    broker: RabbitmqBroker, another: Open, exchange: str, channel: Any, served: str
) -> None:
    await broker.publish(message("first"))
    consumer = await consume(broker, served, slots=2)
    first = await consumer.receive(1)
    waiting = asyncio.ensure_future(consumer.receive(2))
    await asyncio.sleep(0.1)
    channel.queue_delete(f"{exchange}.jobs")
    await consumer.settle(first, Ack())
    await asyncio.sleep(0.1)

    await (await another()).publish(message("second"))

    assert (await waiting).message.id == "second"


async def test_a_deleted_queue_stays_deleted_under_a_worker_until_an_enqueue(
    broker: RabbitmqBroker, another: Open
) -> None:
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


@pytest.mark.parametrize("served", ["*", "other,j*"])
async def test_a_deleted_queue_that_another_program_makes_is_served_again(
    broker: RabbitmqBroker,
    another: Open,
    exchange: str,
    channel: Any,
    served: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(poll, "_FIND_EVERY", 0.2)
    await broker.publish(message("first"))
    consumer = await consume(broker, served)
    await take_and_ack(consumer)
    waiting = asyncio.ensure_future(consumer.receive(1))
    channel.queue_delete(f"{exchange}.jobs")
    source = consumer._consumer._source  # type: ignore[attr-defined]
    await until(lambda: asyncio.sleep(0, "jobs" in source.queues), False)
    channel.queue_declare(f"{exchange}.jobs", durable=True, arguments={"x-queue-type": "classic"})
    channel.queue_bind(f"{exchange}.jobs", exchange, "jobs")

    await (await another()).publish(message("second"))

    assert (await waiting).message.id == "second"


# -- consuming


async def test_a_worker_with_too_many_slots_is_told_how_many_it_may_have(
    broker: RabbitmqBroker,
) -> None:
    most = (await broker._consume_connection()).raw.params.channel_max

    with pytest.raises(BrokerRefused, match=f"at most {most - 40:,} slots"):
        await consume(broker, slots=most)


async def test_a_delivery_whose_channel_is_gone_is_lost(broker: RabbitmqBroker) -> None:
    await broker.publish(message("only"))
    consumer = await consume(broker)
    delivery = await consumer.receive(1)
    await delivery.token[0].close()

    with pytest.raises(DeliveryLost):
        await consumer.settle(delivery, Ack())

    assert (await consumer.receive(1)).message.id == "only"


async def test_the_consumer_tag_names_pid_host_and_slot(broker: RabbitmqBroker) -> None:
    """It is what `rabbitmqctl list_consumers` shows."""
    consumer = await consume(broker, slots=2)
    waiting = [asyncio.ensure_future(consumer.receive(slot)) for slot in (1, 2)]
    raw = (await broker._consume_connection()).raw

    async def tags() -> list[str]:
        found = [tag for opened in raw._channels.values() for tag in opened.consumer_tags]
        return sorted(tag for tag in found if tag.startswith("pid:"))

    await until(tags, ["pid:4711@example/worker-1", "pid:4711@example/worker-2"])
    for task in waiting:
        task.cancel()
    await asyncio.wait(waiting)


@on_both_kinds
async def test_a_failure_is_cut_to_the_frames_that_the_connection_allows(another: Open, small: dict[str, Any]) -> None:
    failure = Failure(exception_class="shop.Full", message="no " * 700, stack_trace="line\n" * 4_000, failed_at=5)
    earlier = tuple(Attempt.of(failure, number) for number in range(1, 40))
    failed = fail(message("1", attempts=earlier, extra={"note": "n" * 500}), failure, worker="w")
    broker = await another(**small)

    await broker._outbox.publish(failed, "failed")

    (found,) = (await broker.browse("failed", limit=10)).messages
    assert (found.id, found.body, found.extra) == ("1", b"[1]", {"note": "n" * 500})
    assert found.failure is not None
    assert (found.failure.exception_class, found.failure.message[:3]) == ("shop.Full", "no ")
    await broker.publish(requeue(replace(failed, extra={})))
    assert (await take(broker, "jobs")).retries == 1


# -- lines that are cut or silent


@pytest.mark.parametrize("cut", [1, 7, 8, 4_096], ids=lambda size: f"{size}-bytes")
async def test_every_frame_boundary_may_be_cut(session: SessionParameters, another: Open, cut: int) -> None:
    """Deliveries, returns, gets and confirms of all sizes come through a stream cut into pieces."""
    sizes = [0, 1, 1_000, 131_064, 131_065] if cut > 8 else [0, 1, 3_000]
    bodies = {str(number): os.urandom(random.choice(sizes)) for number in range(40 if cut > 8 else 12)}
    got = dict[str, str]()

    with TcpProxy(*session.address.hosts[0], cut=cut) as proxy:
        broker = await another(**by_way_of(session, proxy.port), timeout=100)
        await broker.publish_many(message(id, body=body) for id, body in bodies.items())
        consumer = await consume(broker, "jobs,other")
        while len(got) < len(bodies):
            found = await take_and_ack(consumer)
            got[found.id] = hashlib.md5(found.body).hexdigest()
        await consumer.close()
        await broker.close()

    assert got == {id: hashlib.md5(body).hexdigest() for id, body in bodies.items()}


# A heartbeat of a second would end the session of a machine that stands still before its line does.
async def test_a_broker_that_goes_silent_is_noticed_by_its_heartbeat(
    session: SessionParameters, another: Open, proxy: TcpProxy
) -> None:
    broker = await another(**by_way_of(session, proxy.port, heartbeat="4"))
    consumer, named = await consume(broker), broker.describe()
    proxy.stall()

    async with asyncio.timeout(HANGS):
        lost = asyncio.ensure_future(broker.lost())
        with pytest.raises(BrokerUnavailable):
            await consumer.receive(1)
        assert "heartbeat" in str(await lost)
    assert broker.describe() == named


@pytest.mark.parametrize("turns", [0, 10, 100, 1_000])
async def test_a_worker_whose_line_is_cut_while_it_begins_hears_of_it(
    session: SessionParameters, another: Open, proxy: TcpProxy, turns: int
) -> None:
    broker = await another(**by_way_of(session, proxy.port))

    async def work() -> None:
        await (await consume(broker)).receive(1)

    beginning: Awaitable[None] = asyncio.ensure_future(work())
    for _ in range(turns):
        await asyncio.sleep(0)
    await asyncio.to_thread(proxy.hang_up)

    with pytest.raises(BrokerUnavailable):
        async with asyncio.timeout(60):
            await beginning
