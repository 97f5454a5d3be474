"""Palermo and a program without it exchange events: T1 to T6 of the seed about exchange-to-exchange bindings."""

import asyncio
import json
from collections.abc import Awaitable, Callable, Iterator
from typing import Any

import pika
import pytest
from msgspec.structs import replace
from pika.adapters.blocking_connection import BlockingChannel

from palermo.brokers.rabbitmq import RabbitmqBroker
from palermo.contract.broker import SessionParameters, open_broker
from palermo.contract.events import ReplayFilter, Subscription
from palermo.core.address import parse_url
from palermo.core.lifecycle import Fail, fail, requeue
from palermo.core.topics import OCTETS, Event, group_queue
from palermo.errors import BrokerRefused, BrokerUnavailable
from tests.contract.tools import FAILURE, consume, ids, look, message, take, until
from tests.events.peer import Peer

JSON = b'{"artifact": 17}'


@pytest.fixture
def session(rabbitmq_url: str, exchange: str) -> SessionParameters:
    return SessionParameters(address=parse_url(rabbitmq_url), exchange=exchange, timeout=30.0)


@pytest.fixture
def peer(rabbitmq_url: str, exchange: str) -> Iterator[Peer]:
    with pika.BlockingConnection(pika.URLParameters(rabbitmq_url)) as connection:
        yield Peer(confirming(connection), exchange)


def confirming(connection: pika.BlockingConnection) -> BlockingChannel:
    """A channel on which what was pushed is there, for another session to find, when `push` returns."""
    channel = connection.channel()
    channel.confirm_delivery()
    return channel


def on(session: SessionParameters, work: Callable[[RabbitmqBroker], Awaitable[Any]]) -> Any:
    """What comes of work on a session of its own."""

    async def run() -> Any:
        broker = await open_broker(session)
        try:
            return await work(broker)  # type: ignore[arg-type]
        finally:
            await broker.close()

    return asyncio.run(run())


def group(session: SessionParameters, name: str, *topics: str) -> Subscription:
    queue = group_queue(session.exchange, session.prefix, name)
    return Subscription(group=name, queue=queue, topics=topics)


def test_t2_what_a_peer_publishes_comes_to_a_group_of_ours_with_its_topic_and_an_id(
    session: SessionParameters, peer: Peer
) -> None:
    mail = group(session, "mail", "tracker.*.updated")

    async def work(broker: RabbitmqBroker) -> Any:
        await broker.events.subscribe(mail)
        for body in (JSON, b"\xff\x00", b"plain"):
            peer.push("tracker.artifact.updated", body)
        peer.push("tracker.artifact.deleted", JSON)
        consumer = await consume(broker, mail.queue)
        first = await take(consumer)
        await consumer.settle(first, Fail(fail(first.message, FAILURE, worker="pid:1@h/worker-1")))
        (failed,) = await look(broker, "failed")
        await broker.publish(requeue(failed))
        return [first.message, failed, *[(await taken(consumer)) for _ in range(3)]]

    async def taken(consumer: Any) -> Any:
        delivery = await take(consumer)
        await consumer.settle(delivery, Fail(fail(delivery.message, FAILURE, worker="pid:1@h/worker-1")))
        return delivery.message

    first, failed, *others = on(session, work)

    assert (first.job, first.topic, first.body, first.content_type) == (
        "mail",
        "tracker.artifact.updated",
        JSON,
        OCTETS,
    )
    assert first.id.endswith("@mail")
    assert (failed.id, failed.queue, failed.topic) == (first.id, mail.queue, first.topic)
    requeued = next(one for one in others if one.retries == 1)
    assert (requeued.id, requeued.topic, requeued.body) == (first.id, first.topic, JSON)
    assert {one.body for one in others} == {b"\xff\x00", b"plain", JSON}
    assert len({one.id for one in others}) == 3


def test_t2_what_we_publish_comes_to_the_listener_of_a_peer(session: SessionParameters, peer: Peer) -> None:
    peer.listen("search", "tracker.#")

    async def work(broker: RabbitmqBroker) -> None:
        now = {"content_type": "application/json", "body": JSON}
        await broker.events.publish(Event("tracker.artifact.updated", message("e1", queue="", job="", **now)))

    on(session, work)

    found = peer.take("search")
    assert found is not None
    method, properties, body = found
    assert (method.routing_key, json.loads(body)) == ("tracker.artifact.updated", {"artifact": 17})
    assert (properties.delivery_mode, properties.message_id) == (2, "e1")


@pytest.mark.parametrize("kind", ["classic", "quorum"])
@pytest.mark.parametrize("first", ["ours", "theirs"])
def test_t5_either_side_declares_first_and_both_share_a_groups_queue(
    session: SessionParameters, peer: Peer, kind: str, first: str
) -> None:
    session = replace(session, queue_type=kind)
    mail = group(session, "mail", "tracker.#")

    async def work(broker: RabbitmqBroker) -> list[str]:
        await broker.events.publish(Event("a", message("wires", queue="", job="")))
        await broker.events.subscribe(mail)
        return []

    if first == "ours":
        on(session, work)
    peer.listen("mail", "tracker.#")
    if first == "theirs":
        on(session, work)
        peer.listen("mail", "tracker.#")
    peer.push("tracker.x", JSON)

    found = peer.take("mail")
    assert found is not None
    assert found[2] == JSON


def test_t5_what_a_peer_published_before_is_told_to_a_group_from_the_start_and_again(
    session: SessionParameters, peer: Peer
) -> None:
    mail = group(session, "mail", "tracker.*.updated")

    async def work(broker: RabbitmqBroker) -> Any:
        await broker.events.publish(Event("other", message("wires", queue="", job="")))
        for _ in range(2):
            peer.push("tracker.artifact.updated", JSON)
        told = await broker.events.subscribe(mail, from_start=True)
        again = await broker.events.replay("mail", ReplayFilter(topic="#"))
        return told, again, await look(broker, mail.queue)

    told, again, jobs = on(session, work)

    assert (told, again) == (2, 3)
    topic = "tracker.artifact.updated"
    assert [one.topic for one in jobs] == [topic, topic, "other", topic, topic]
    assert [one.body for one in jobs] == [JSON, JSON, b"[1]", JSON, JSON]
    assert len({one.id for one in jobs}) == 5


def test_a_start_from_the_beginning_that_was_broken_off_doubles_nothing(
    session: SessionParameters, peer: Peer, monkeypatch: pytest.MonkeyPatch
) -> None:
    mail = group(session, "mail", "#")

    async def work(broker: RabbitmqBroker) -> Any:
        for number in range(3):
            await broker.events.publish(Event("a", message(f"e{number}", queue="", job="")))
        for _ in range(2):
            peer.push("a", JSON)

        async def dies(_: Subscription) -> None:
            raise BrokerUnavailable("cut")

        with monkeypatch.context() as broken:
            broken.setattr(broker.events._list, "put", dies)
            with pytest.raises(BrokerUnavailable, match="cut"):
                await broker.events.subscribe(mail, from_start=True)
        peer.push("a", b"bound by now")
        told = await broker.events.subscribe(mail, from_start=True)
        await until(lambda: _count(broker, mail.queue), 6)
        return told, await look(broker, mail.queue)

    told, jobs = on(session, work)

    assert told == 0
    assert len({one.id for one in jobs}) == 6
    assert sorted(one.body for one in jobs) == sorted([b"[1]"] * 3 + [JSON] * 2 + [b"bound by now"])


def test_a_prefix_of_its_own_is_that_of_the_other_program(
    session: SessionParameters, rabbitmq_url: str, exchange: str
) -> None:
    prefix = f"{exchange}-tuleap"
    session = replace(session, events_prefix=prefix)
    mail = group(session, "mail", "#")
    connection = pika.BlockingConnection(pika.URLParameters(rabbitmq_url))
    peer = Peer(confirming(connection), prefix)
    try:
        peer.listen("mail", "#")

        async def work(broker: RabbitmqBroker) -> Any:
            await broker.events.subscribe(mail)
            peer.push("a.b", JSON)
            await until(lambda: _count(broker, mail.queue), 1)
            (found,) = await look(broker, mail.queue)
            await broker.delete(mail.queue)
            return found

        found = on(session, work)
        assert (found.job, found.topic, found.queue) == ("mail", "a.b", f"={prefix}_mail")
    finally:
        for name in (peer.gateway, peer.distributor):
            peer.channel.exchange_delete(name)
        connection.close()


def test_bindings_that_were_taken_away_are_mended(session: SessionParameters, peer: Peer) -> None:
    mail = group(session, "mail", "#")

    async def work(broker: RabbitmqBroker) -> list[str]:
        await broker.events.subscribe(mail)
        for exchange in (peer.gateway, peer.distributor):
            peer.channel.exchange_delete(exchange)
        await broker.events.publish(Event("a", message("e1", queue="", job="")))
        return await ids(broker, mail.queue)

    assert on(session, work) == ["e1@mail"]


def test_a_queue_that_is_deleted_under_a_worker_is_bound_again(session: SessionParameters, peer: Peer) -> None:
    mail = group(session, "mail", "#")

    async def work(broker: RabbitmqBroker) -> str:
        await broker.events.subscribe(mail)
        consumer = await consume(broker, mail.queue)
        waiting = asyncio.ensure_future(take(consumer))
        await until(lambda: _consumers(broker, mail.queue), 1)
        peer.channel.queue_delete(f"{session.prefix}_mail")
        while not waiting.done():
            peer.push("a", JSON)
            await asyncio.wait({waiting}, timeout=0.1)
        return (await waiting).message.topic

    assert on(session, work) == "a"


def test_a_groups_queue_keeps_its_declaration(session: SessionParameters) -> None:
    mail = group(session, "mail", "#")

    async def work(broker: RabbitmqBroker) -> None:
        await broker.events.subscribe(mail)
        with pytest.raises(BrokerRefused, match="group"):
            await broker.migrate(mail.queue, "quorum")

    on(session, work)


def test_an_exchange_of_another_kind_is_named(session: SessionParameters, peer: Peer) -> None:
    peer.channel.exchange_declare(peer.gateway, "direct", durable=True)

    async def work(broker: RabbitmqBroker) -> None:
        with pytest.raises(BrokerRefused, match="events_prefix"):
            await broker.events.publish(Event("a", message("e1", queue="", job="")))

    on(session, work)


async def _count(broker: RabbitmqBroker, queue: str) -> int:
    return len(await ids(broker, queue))


async def _consumers(broker: RabbitmqBroker, queue: str) -> int:
    counted = await broker._declarer.count(queue)
    return counted[1] if counted else 0
