"""Behaviour of RabbitMQ alone: refusals, foreign declarations, queues deleted under us, cut streams."""

import asyncio
import hashlib
import json
import logging
import os
import random
import socket
from collections.abc import Awaitable, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pika
import pytest
from msgspec.structs import replace

from palermo.brokers.rabbitmq import RabbitmqBroker
from palermo.brokers.rabbitmq.amqp import parameters
from palermo.brokers.rabbitmq.amqp.connection import Connection, open_connection
from palermo.brokers.rabbitmq.amqp.publisher import Publisher
from palermo.brokers.rabbitmq.cluster.pauses_and_cancels import PausesAndCancels
from palermo.brokers.rabbitmq.consuming import poll
from palermo.brokers.rabbitmq.consuming.steering import Steering
from palermo.contract.broker import SessionParameters, open_broker
from palermo.contract.worker_info import WorkerInfo, ignore_command
from palermo.core.failure import Attempt, Failure
from palermo.core.lifecycle import Ack, fail, requeue
from palermo.core.message import Message
from palermo.core.queue_selection import QueueSelection
from palermo.errors import BrokerRefused, BrokerUnavailable, DeliveryLost, NotBrowsable, PalermoError, UrlInvalid
from tests.contract.tools import until
from tests.harness.rig import Rig
from tests.rabbitmq_node import Node, free_port, url_of
from tests.tcp_proxy import TcpProxy

pytestmark = pytest.mark.slow


@pytest.fixture
def channel(rabbitmq_url: str) -> Iterator[Any]:
    """Another program, on bare pika."""
    connection = pika.BlockingConnection(pika.URLParameters(rabbitmq_url))
    yield connection.channel()
    connection.close()


def a_message(id: str = "1", queue: str = "mail", **fields: Any) -> Message:
    return Message(**{"id": id, "queue": queue, "job": "shop.send", "body": b"[1]", **fields})


def nobody() -> WorkerInfo:
    return WorkerInfo(id="pid:1@h", host="h", pid=1, queues=("*",), slots=1, state="idle", started_at=1.0)


def with_broker(session: SessionParameters, work: Callable[[RabbitmqBroker], Awaitable[Any]]) -> Any:
    async def go() -> Any:
        broker = await open_broker(session)
        assert isinstance(broker, RabbitmqBroker)
        try:
            async with asyncio.timeout(110):
                return await work(broker)
        finally:
            await broker.close()

    return asyncio.run(go())


async def take(broker: RabbitmqBroker, queues: str) -> Message:
    consumer = await broker.consume(QueueSelection.parse(queues), slots=1, tag="pid:1@h", report=nobody)
    delivery = await consumer.receive(1)
    await consumer.settle(delivery, Ack())
    await consumer.close()
    return delivery.message


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
def test_a_broker_that_will_not_have_us_says_which_and_never_the_password(
    session: SessionParameters, change: dict[str, Any], kind: type[PalermoError], said: str
) -> None:
    refused = replace(session, address=replace(session.address, **change))

    with pytest.raises(kind, match=said) as caught:
        with_broker(refused, lambda broker: broker.workers())

    assert "wrong-one" not in str(caught.value)


def test_options_of_the_url_that_have_no_effect_are_warned_of_once(
    session: SessionParameters, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(parameters, "_warned", set())
    options = (("socket_timeout", "5"), ("heartbeat", "30"), ("connection_attempts", "3"))
    given = replace(session, address=replace(session.address, options=options), takes=True)

    with caplog.at_level(logging.WARNING, "palermo.rabbitmq"):
        for each in (session, replace(given, warns=False), given, given):
            with_broker(each, told)

    (said,) = (message for message in caplog.messages if "broker URL" in message)
    assert said.endswith(
        "have no effect, since Palermo opens the socket itself; remove them options=connection_attempts,socket_timeout"
    )


def test_u3_a_virtual_host_without_permissions_ends_a_worker_and_a_command_with_what_to_do(
    private_node: Node, tmp_path: Path, exchange: str
) -> None:
    private_node.ctl("add_vhost", "noperm")
    said = "refused virtual host 'noperm' to user 'guest': the user has no permissions there."

    with Rig(tmp_path, url_of(private_node, vhost="noperm"), exchange, module="shop") as rig:
        worker, command = rig.worker(), rig.run("enqueue", "some.job")

        assert worker.wait() == 3
        assert command.returncode == 3
    for told in (worker.log, command.stderr):
        assert said in told
        assert "`rabbitmqctl set_permissions -p noperm guest '.*' '.*' '.*'`" in told


def test_the_next_host_is_tried_when_the_first_is_away(session: SessionParameters) -> None:
    hosts = (("127.0.0.1", 1), ("127.0.0.1", free_port()), *session.address.hosts)
    away = replace(session, address=replace(session.address, hosts=hosts))

    assert str(hosts[2][1]) in with_broker(away, told)


def test_a_lost_session_names_the_brokers_version(session: SessionParameters) -> None:
    async def lost(broker: RabbitmqBroker) -> tuple[str, str]:
        before = broker.describe()
        broker._connection.raw.abort()
        await broker.lost()
        return before, broker.describe()

    before, after = with_broker(session, lost)
    assert before == after


async def told(broker: RabbitmqBroker) -> str:
    return broker.describe()


def test_a_host_that_accepts_and_never_answers_is_given_up_in_time(session: SessionParameters) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        address = replace(session.address, hosts=(silent.getsockname(),))
        with pytest.raises(BrokerUnavailable, match="in time"):
            with_broker(replace(session, address=address, timeout=0.5), told)


@pytest.mark.parametrize("answers", [0, 1, 2])
def test_a_broker_that_stops_during_the_login_is_away_and_refuses_nobody(
    session: SessionParameters, answers: int
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
        address = replace(session.address, hosts=(server.getsockname(),))
        with pytest.raises(BrokerUnavailable, match="closed the connection"):
            with_broker(replace(session, address=address), told)
        serving.result(60)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [({"x-queue-type": "quorum"}, "x-queue-type"), ({"x-max-length": 5}, "x-max-length")],
    ids=["quorum", "length"],
)
@pytest.mark.parametrize("served", ["mail", "mail,other"])
def test_a_queue_with_other_arguments_is_used_as_it_is_with_a_warning(
    session: SessionParameters,
    exchange: str,
    channel: Any,
    arguments: dict[str, Any],
    said: str,
    served: str,
    caplog: pytest.LogCaptureFixture,
) -> None:
    channel.queue_declare(f"{exchange}.mail", durable=True, arguments=arguments)

    async def work(broker: RabbitmqBroker) -> Message:
        await broker.publish(a_message())
        return await take(broker, served)

    with caplog.at_level(logging.WARNING, "palermo.rabbitmq"):
        assert with_broker(session, work).id == "1"
    assert said in caplog.text


def test_a_quorum_queue_is_counted_and_never_read_in_order_to_be_shown(
    session: SessionParameters, exchange: str, channel: Any
) -> None:
    channel.queue_declare(f"{exchange}.mail", durable=True, arguments={"x-queue-type": "quorum"})

    async def work(broker: RabbitmqBroker) -> list[int]:
        await broker.publish(a_message())
        with pytest.raises(NotBrowsable, match="quorum"):
            await broker.browse("mail")
        return [queue.pending for queue in await broker.queues()]

    assert with_broker(session, work) == [1]


def test_a_plain_declaration_of_another_program_and_ours_agree(
    session: SessionParameters, exchange: str, channel: Any
) -> None:
    channel.exchange_declare(exchange, "direct", durable=True)
    channel.queue_declare(f"{exchange}.mail", durable=True)
    channel.queue_bind(f"{exchange}.mail", exchange, "mail")
    channel.basic_publish(exchange, "mail", b'["x"]', pika.BasicProperties(headers={"job-class": "a.b"}))

    taken = with_broker(session, lambda broker: take(broker, "mail"))

    assert (taken.job, taken.body, taken.content_type, len(taken.id)) == ("a.b", b'["x"]', "application/json", 36)
    channel.queue_declare(f"{exchange}.mail", durable=True)


def test_a_queue_that_another_program_made_is_listed_once_we_publish_to_it(
    session: SessionParameters, exchange: str, channel: Any
) -> None:
    channel.queue_declare(f"{exchange}.theirs", durable=True)

    with_broker(session, lambda broker: broker.publish(a_message(queue="theirs")))

    assert [queue.name for queue in with_broker(session, lambda broker: broker.queues())] == ["theirs"]


def test_an_exchange_of_another_kind_is_refused_by_name(
    session: SessionParameters, exchange: str, channel: Any
) -> None:
    channel.exchange_declare(exchange, "fanout", durable=True)

    with pytest.raises(BrokerRefused, match="--exchange"):
        with_broker(session, lambda broker: broker.publish(a_message()))
    channel.exchange_delete(exchange)


def test_a_queue_deleted_since_it_was_declared_is_made_again_by_the_publisher(
    session: SessionParameters, exchange: str, channel: Any
) -> None:
    async def work(broker: RabbitmqBroker) -> int:
        await broker.publish(a_message("before"))
        channel.queue_delete(f"{exchange}.mail")
        await broker.publish(a_message("after"))
        channel.queue_delete(f"{exchange}.mail")
        await broker.publish_many(a_message(str(number)) for number in range(2_500))
        return (await broker.browse("mail", limit=0)).total

    assert with_broker(session, work) == 2_500


@pytest.mark.parametrize("served", ["mail", "other,mail", "m*"])
def test_a_queue_deleted_under_a_waiting_worker_is_served_again(
    session: SessionParameters, exchange: str, channel: Any, served: str
) -> None:
    async def work(broker: RabbitmqBroker) -> str:
        await broker.publish(a_message("first"))
        consumer = await broker.consume(QueueSelection.parse(served), slots=2, tag="pid:1@h", report=nobody)
        first = await consumer.receive(1)
        waiting = asyncio.ensure_future(consumer.receive(2))
        await asyncio.sleep(0.1)
        channel.queue_delete(f"{exchange}.mail")
        await consumer.settle(first, Ack())
        await asyncio.sleep(0.1)
        other = await open_broker(session)
        await other.publish(a_message("second"))
        delivery = await waiting
        await other.close()
        return delivery.message.id

    assert with_broker(session, work) == "second"


def test_a_queue_that_is_deleted_stays_so_under_a_worker_on_all_queues_until_someone_enqueues(
    session: SessionParameters,
) -> None:
    async def work(broker: RabbitmqBroker) -> tuple[list[str], str]:
        await broker.publish(a_message("first"))
        await broker.publish(a_message("other", queue="other"))
        consumer = await broker.consume(QueueSelection.parse("*"), slots=1, tag="pid:1@h", report=nobody)
        for _ in range(2):
            await consumer.settle(await consumer.receive(1), Ack())
        waiting = asyncio.ensure_future(consumer.receive(1))
        await asyncio.sleep(0.1)
        other = await open_broker(session)
        await other.delete("mail")
        await asyncio.sleep(0.3)
        left = [queue.name for queue in await other.queues()]
        await other.publish(a_message("again"))
        delivery = await waiting
        await other.close()
        return left, delivery.message.id

    assert with_broker(session, work) == (["other"], "again")


@pytest.mark.parametrize("served", ["*", "other,m*"])
def test_a_queue_that_was_deleted_and_is_made_by_another_program_is_served_again(
    session: SessionParameters, exchange: str, channel: Any, served: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(poll, "_FIND_EVERY", 0.2)

    async def work(broker: RabbitmqBroker) -> str:
        await broker.publish(a_message("first"))
        consumer: Any = await broker.consume(QueueSelection.parse(served), slots=1, tag="pid:1@h", report=nobody)
        await consumer.settle(await consumer.receive(1), Ack())
        waiting = asyncio.ensure_future(consumer.receive(1))
        channel.queue_delete(f"{exchange}.mail")
        await until(lambda: asyncio.sleep(0, "mail" in consumer._source.queues), False)
        channel.queue_declare(f"{exchange}.mail", durable=True, arguments={"x-queue-type": "classic"})
        channel.queue_bind(f"{exchange}.mail", exchange, "mail")
        other = await open_broker(session)
        await other.publish(a_message("second"))
        delivery = await waiting
        await other.close()
        return str(delivery.message.id)

    assert with_broker(session, work) == "second"


def test_a_worker_with_more_slots_than_a_connection_may_have_channels_is_told_how_many_it_may_have(
    session: SessionParameters,
) -> None:
    async def work(broker: RabbitmqBroker) -> None:
        most = (await broker._consume_connection()).raw.params.channel_max
        with pytest.raises(BrokerRefused, match=f"at most {most - 40:,} slots"):
            await broker.consume(QueueSelection.parse("mail"), slots=most, tag="pid:1@h", report=nobody)

    with_broker(session, work)


@pytest.mark.parametrize("kind", ["classic", "quorum"])
def test_a_failure_is_cut_to_the_frames_that_the_connection_allows(session: SessionParameters, kind: str) -> None:
    address = replace(session.address, options=(("frame_max", "8192"),))
    small = replace(session, address=address, queue_type=kind)
    failure = Failure(exception_class="shop.Full", message="no " * 700, stack_trace="line\n" * 4_000, failed_at=5)
    earlier = tuple(Attempt.of(failure, number) for number in range(1, 40))
    failed = fail(a_message(attempts=earlier, extra={"note": "n" * 500}), failure, worker="w")

    async def work(broker: RabbitmqBroker) -> None:
        await broker._outbox.publish(failed, "failed")
        (found,) = (await broker.browse("failed", limit=10)).messages
        assert (found.id, found.body, found.extra) == ("1", b"[1]", {"note": "n" * 500})
        assert found.failure is not None
        assert (found.failure.exception_class, found.failure.message[:3]) == ("shop.Full", "no ")
        await broker.publish(requeue(replace(failed, extra={})))
        assert (await take(broker, "mail")).retries == 1

    with_broker(small, work)


def test_a_delivery_whose_channel_is_gone_is_lost_and_not_acknowledged_on_another(
    session: SessionParameters, exchange: str
) -> None:
    async def work(broker: RabbitmqBroker) -> str:
        await broker.publish(a_message("only"))
        consumer = await broker.consume(QueueSelection.parse("mail"), slots=1, tag="pid:1@h", report=nobody)
        delivery = await consumer.receive(1)
        await delivery.token[0].close()
        with pytest.raises(DeliveryLost):
            await consumer.settle(delivery, Ack())
        return (await consumer.receive(1)).message.id

    assert with_broker(session, work) == "only"


def test_the_consumer_tag_names_pid_host_and_slot(session: SessionParameters, exchange: str, channel: Any) -> None:
    """P12: the tag is what rabbitmqctl list_consumers shows; a second consumer with it is refused by pika."""

    async def work(broker: RabbitmqBroker) -> list[str]:
        consumer = await broker.consume(QueueSelection.parse("mail"), slots=2, tag="pid:7@host", report=nobody)
        waiting = [asyncio.ensure_future(consumer.receive(slot)) for slot in (1, 2)]
        found: list[str] = []
        while len(found) < 2:
            await asyncio.sleep(0.01)
            raw = broker._consuming.raw  # type: ignore[union-attr]
            tags = [tag for opened in raw._channels.values() for tag in opened.consumer_tags]
            found = sorted(tag for tag in tags if tag.startswith("pid:"))
        for task in waiting:
            task.cancel()
        await asyncio.wait(waiting)
        return found

    assert with_broker(session, work) == ["pid:7@host/worker-1", "pid:7@host/worker-2"]


def test_a_program_that_only_enqueues_has_one_connection_and_a_worker_two(session: SessionParameters) -> None:
    async def work(broker: RabbitmqBroker) -> tuple[bool, bool]:
        await broker.publish(a_message())
        alone = broker._consuming is None
        await take(broker, "mail")
        return alone, broker._consuming is not None

    assert with_broker(session, work) == (True, True)


def test_names_of_queues_survive_the_program_that_made_them_and_go_with_the_queue(session: SessionParameters) -> None:
    async def make(broker: RabbitmqBroker) -> None:
        for name in ("b", "a", "ünder the sea"):
            await broker.publish(a_message(queue=name))

    async def names(broker: RabbitmqBroker) -> list[str]:
        return [queue.name for queue in await broker.queues()]

    with_broker(session, make)
    assert with_broker(session, names) == ["a", "b", "ünder the sea"]
    with_broker(session, lambda broker: broker.delete("a"))
    assert with_broker(session, names) == ["b", "ünder the sea"]


def test_a_registry_record_of_a_later_version_is_skipped(
    session: SessionParameters, exchange: str, channel: Any
) -> None:
    with_broker(session, lambda broker: broker.publish(a_message()))
    for record in (b"not json", b"[1]", json.dumps({"kind": "from the future"}).encode()):
        channel.basic_publish("", f"{exchange}.~registry", record, pika.BasicProperties(delivery_mode=2))

    assert [queue.name for queue in with_broker(session, lambda broker: broker.queues())] == ["mail"]


@pytest.mark.parametrize("cut", [1, 2, 7, 8, 4_096], ids=lambda size: f"{size}-bytes")
def test_every_frame_boundary_may_be_cut(session: SessionParameters, cut: int) -> None:
    """Deliveries, returns, gets and confirms of all sizes come through a stream cut into pieces."""
    sizes = [0, 1, 1_000, 131_064, 131_065] if cut > 8 else [0, 1, 3_000]
    bodies = {str(number): os.urandom(random.choice(sizes)) for number in range(40 if cut > 8 else 12)}

    async def go() -> dict[str, str]:
        with TcpProxy(*session.address.hosts[0], cut=cut) as proxy:
            address = replace(session.address, hosts=(("127.0.0.1", proxy.port),))
            broker = await open_broker(replace(session, address=address, timeout=100))
            await broker.publish_many(a_message(id, body=body) for id, body in bodies.items())
            consumer = await broker.consume(QueueSelection.parse("mail,other"), slots=1, tag="t", report=nobody)
            got: dict[str, str] = {}
            while len(got) < len(bodies):
                delivery = await consumer.receive(1)
                got[delivery.message.id] = hashlib.md5(delivery.message.body).hexdigest()
                await consumer.settle(delivery, Ack())
            await consumer.close()
            await broker.close()
            return got

    assert asyncio.run(go()) == {id: hashlib.md5(body).hexdigest() for id, body in bodies.items()}


# A heartbeat of a second would end the session of a machine that stands still before its line does.
async def test_a_broker_that_goes_silent_is_noticed_by_its_heartbeat(session: SessionParameters) -> None:
    with TcpProxy(*session.address.hosts[0]) as proxy:
        async with asyncio.timeout(100):
            address = replace(session.address, hosts=(("127.0.0.1", proxy.port),), options=(("heartbeat", "4"),))
            broker = await open_broker(replace(session, address=address))
            consumer = await broker.consume(QueueSelection.parse("mail"), slots=1, tag="t", report=nobody)
            proxy.stall()
            with pytest.raises(BrokerUnavailable):
                await consumer.receive(1)
            await broker.close()


def test_a_lost_session_is_told_while_nobody_asks_it_for_anything(session: SessionParameters) -> None:
    async def go() -> str:
        with TcpProxy(*session.address.hosts[0]) as proxy:
            async with asyncio.timeout(100):
                address = replace(session.address, hosts=(("127.0.0.1", proxy.port),), options=(("heartbeat", "4"),))
                broker = await open_broker(replace(session, address=address))
                await broker.consume(QueueSelection.parse("mail"), slots=1, tag="t", report=nobody)
                proxy.stall()
                error = await broker.lost()
                await broker.close()
                return str(error)

    assert "heartbeat" in asyncio.run(go())


@pytest.mark.parametrize("turns", [0, 1, 10])
async def test_a_worker_whose_line_is_cut_while_it_asks_what_is_paused_hears_of_it(
    session: SessionParameters, turns: int
) -> None:
    link = await open_connection(session, "test")

    async def reading() -> Connection:
        return link

    marks = PausesAndCancels(
        session.exchange, link, reading, lambda: Publisher.open(link), publish_timeout=session.timeout
    )
    steering = Steering(marks, link, on_command=ignore_command, pause=lambda _: None, held=list)
    beginning = asyncio.ensure_future(steering.begin())
    for _ in range(turns):
        await asyncio.sleep(0)
    link.raw.abort()
    with pytest.raises(BrokerUnavailable):
        async with asyncio.timeout(60):
            await beginning
    await steering.close()


async def test_the_mark_of_a_migration_is_not_listed_as_a_paused_queue(session: SessionParameters) -> None:
    broker = await open_broker(session)
    await broker.pause("mail")
    await broker.pause("~migrating.mail")

    assert [(row.name, row.paused) for row in await broker.queues()] == [("mail", True)]
    await broker.close()
