"""Palermo and a program without it exchange events."""

import asyncio
import json
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from typing import Any

import pika
import pytest
from msgspec.structs import replace
from pika.adapters.blocking_connection import BlockingChannel

from palermo.brokers.rabbitmq import RabbitmqBroker
from palermo.contract.broker import SessionParameters, open_broker
from palermo.contract.events import ReplayFilter, Subscription
from palermo.core.address import parse_url
from palermo.core.lifecycle import Ack, Fail, fail, requeue
from palermo.core.message import Message
from palermo.core.topics import OCTETS, Event, group_queue
from palermo.errors import BrokerRefused, BrokerUnavailable
from tests.contract.tools import FAILURE, ids, look, message, until
from tests.contract.workers import consume, take

JSON = b'{"artifact": 17}'
TOPIC = "tracker.artifact.updated"


class Peer:
    """The other program, on a channel that confirms: what it pushed is there when `push` returns."""

    def __init__(self, connection: pika.BlockingConnection, prefix: str) -> None:
        self.channel: BlockingChannel = connection.channel()
        self.channel.confirm_delivery()
        self.prefix = prefix
        self.gateway = f"{prefix}_gateway"
        self.distributor = f"{prefix}_distributor"

    def push(self, topic: str, content: bytes) -> None:
        """Without id, content type and headers."""
        self.wire()
        self.channel.basic_publish(self.gateway, topic, content, pika.BasicProperties(delivery_mode=2))

    def listen(self, group: str, topic: str) -> None:
        """Bind a group's queue; `take` asks for what comes."""
        self.wire()
        name = f"{self.prefix}_{group}"
        self.channel.queue_declare(name, passive=False, durable=True, exclusive=False, auto_delete=False)
        self.channel.queue_bind(name, self.distributor, topic)

    def take(self, group: str) -> tuple[Any, pika.BasicProperties, bytes]:
        """The next event of a group."""
        method, properties, body = self.channel.basic_get(f"{self.prefix}_{group}", auto_ack=True)
        assert method is not None, f"no event for {group}"
        return method, properties, body

    def wire(self) -> None:
        self.channel.exchange_declare(self.gateway, "fanout", passive=False, durable=True, auto_delete=False)
        self.channel.exchange_declare(self.distributor, "topic", passive=False, durable=True, auto_delete=False)
        self.channel.exchange_bind(self.distributor, self.gateway)


@pytest.fixture
def session(rabbitmq_url: str, exchange: str) -> SessionParameters:
    return SessionParameters(address=parse_url(rabbitmq_url), exchange=exchange, timeout=30.0)


@pytest.fixture
def peer(rabbitmq_url: str, exchange: str) -> Iterator[Peer]:
    with pika.BlockingConnection(pika.URLParameters(rabbitmq_url)) as connection:
        yield Peer(connection, exchange)


@asynccontextmanager
async def opened(session: SessionParameters) -> AsyncIterator[RabbitmqBroker]:
    broker = await open_broker(session)
    assert isinstance(broker, RabbitmqBroker)
    try:
        yield broker
    finally:
        await broker.close()


def mail(session: SessionParameters, *topics: str) -> Subscription:
    queue = group_queue(session.exchange, session.prefix, "mail")
    return Subscription(group="mail", queue=queue, topics=topics or ("#",))


def event(topic: str = "a", id: str = "e1", **more: Any) -> Event:
    return Event(topic, message(id, queue="", job="", **more))


async def count(broker: RabbitmqBroker, queue: str) -> int:
    return len(await ids(broker, queue))


async def test_a_peers_event_comes_to_our_group_with_topic_and_id(session: SessionParameters, peer: Peer) -> None:
    group = mail(session, "tracker.*.updated")
    async with opened(session) as broker:
        await broker.events.subscribe(group)
        for body in (JSON, b"\xff\x00", b"plain"):
            peer.push(TOPIC, body)
        peer.push("tracker.artifact.deleted", JSON)
        consumer = await consume(broker, group.queue)

        async def taken() -> Message:
            delivery = await take(consumer)
            await consumer.settle(delivery, Fail(fail(delivery.message, FAILURE, worker="pid:1@h/worker-1")))
            return delivery.message

        first = await taken()
        (failed,) = await look(broker, "failed")
        await broker.publish(requeue(failed))
        others = [await taken() for _ in range(3)]

    assert (first.job, first.topic, first.body, first.content_type) == ("mail", TOPIC, JSON, OCTETS)
    assert first.id.endswith("@mail")
    assert (failed.id, failed.queue, failed.topic) == (first.id, group.queue, TOPIC)
    (requeued,) = (one for one in others if one.retries == 1)
    assert (requeued.id, requeued.topic, requeued.body) == (first.id, TOPIC, JSON)
    assert {one.body for one in others} == {b"\xff\x00", b"plain", JSON}
    assert len({one.id for one in others}) == 3


async def test_our_event_comes_to_the_listener_of_a_peer(session: SessionParameters, peer: Peer) -> None:
    peer.listen("search", "tracker.#")

    async with opened(session) as broker:
        await broker.events.publish(event(TOPIC, content_type="application/json", body=JSON))

    method, properties, body = peer.take("search")
    assert (method.routing_key, json.loads(body)) == (TOPIC, {"artifact": 17})
    assert (properties.delivery_mode, properties.message_id) == (2, "e1")


@pytest.mark.parametrize("kind", ["classic", "quorum"])
@pytest.mark.parametrize("first", ["ours", "theirs"])
async def test_either_side_may_declare_a_queue(session: SessionParameters, peer: Peer, kind: str, first: str) -> None:
    async with opened(replace(session, queue_type=kind)) as broker:
        if first == "theirs":
            peer.listen("mail", "tracker.#")
        await broker.events.publish(event())
        await broker.events.subscribe(mail(session, "tracker.#"))
        peer.listen("mail", "tracker.#")
        peer.push("tracker.x", JSON)

    assert peer.take("mail")[2] == JSON


async def test_earlier_events_of_a_peer_come_from_the_start_and_again(session: SessionParameters, peer: Peer) -> None:
    group = mail(session, "tracker.*.updated")
    async with opened(session) as broker:
        await broker.events.publish(event("other"))
        for _ in range(2):
            peer.push(TOPIC, JSON)

        assert await broker.events.subscribe(group, from_start=True) == 2
        assert await broker.events.replay("mail", ReplayFilter(topic="#")) == 3
        jobs = await look(broker, group.queue)

    assert [one.topic for one in jobs] == [TOPIC, TOPIC, "other", TOPIC, TOPIC]
    assert [one.body for one in jobs] == [JSON, JSON, b"[1]", JSON, JSON]
    assert len({one.id for one in jobs}) == 5


async def test_a_start_from_the_beginning_that_was_broken_off_doubles_nothing(
    session: SessionParameters, peer: Peer, monkeypatch: pytest.MonkeyPatch
) -> None:
    group = mail(session)
    async with opened(session) as broker:
        for number in range(3):
            await broker.events.publish(event(id=f"e{number}"))
        for _ in range(2):
            peer.push("a", JSON)

        async def dies(_: Subscription) -> None:
            raise BrokerUnavailable("cut")

        with monkeypatch.context() as broken:
            broken.setattr(broker.events, "_store", dies)
            with pytest.raises(BrokerUnavailable, match="cut"):
                await broker.events.subscribe(group, from_start=True)

        assert await broker.events.subscribe(group, from_start=True) == 0
        await until(lambda: count(broker, group.queue), 5)
        jobs = await look(broker, group.queue)

    assert len({one.id for one in jobs}) == 5
    assert sorted(one.body for one in jobs) == sorted([b"[1]"] * 3 + [JSON] * 2)


async def test_the_prefix_may_be_that_of_the_other_program(session: SessionParameters, peer: Peer) -> None:
    session = replace(session, events_prefix=f"{session.exchange}-tuleap")
    other = Peer(peer.channel.connection, session.events_prefix)
    other.listen("mail", "#")
    group = mail(session)
    try:
        async with opened(session) as broker:
            await broker.events.subscribe(group)
            other.push("a.b", JSON)
            await until(lambda: count(broker, group.queue), 1)
            (found,) = await look(broker, group.queue)
            await broker.delete(group.queue)
    finally:
        for name in (other.gateway, other.distributor):
            other.channel.exchange_delete(name)

    assert (found.job, found.topic, found.queue) == ("mail", "a.b", f"={session.events_prefix}_mail")


async def test_deleted_exchanges_and_a_groups_queue_are_bound_again(session: SessionParameters, peer: Peer) -> None:
    group = mail(session)

    async with opened(session) as broker:

        async def waits() -> bool:
            counts = await broker._outbox.declarer.count(group.queue)
            return counts is not None and counts[1] == 1

        await broker.events.subscribe(group)
        for exchange in (peer.gateway, peer.distributor):
            peer.channel.exchange_delete(exchange)
        await broker.events.publish(event())
        consumer = await consume(broker, group.queue)
        delivery = await take(consumer)
        assert delivery.message.id == "e1@mail"
        await consumer.settle(delivery, Ack())

        # And the queue, while a worker waits there.
        waiting = asyncio.ensure_future(take(consumer))
        await until(waits, True)
        peer.channel.queue_delete(f"{session.prefix}_mail")
        while not waiting.done():
            peer.push("a", JSON)
            await asyncio.wait({waiting}, timeout=0.1)

        assert (await waiting).message.topic == "a"


async def test_a_groups_queue_stays_and_a_wrong_exchange_is_named(session: SessionParameters, peer: Peer) -> None:
    group = mail(session)
    async with opened(session) as broker:
        await broker.events.subscribe(group)
        with pytest.raises(BrokerRefused, match="group"):
            await broker.migrate(group.queue, "quorum")
    peer.channel.exchange_delete(peer.gateway)
    peer.channel.exchange_declare(peer.gateway, "direct", durable=True)

    async with opened(session) as broker:
        with pytest.raises(BrokerRefused, match="events_prefix"):
            await broker.events.publish(event())
