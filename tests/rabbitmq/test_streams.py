"""Streams that sessions share, above all that of the names of queues: how they begin, stay bounded and are missed."""

import asyncio
import json
from collections import Counter
from functools import partial
from typing import Any

import pytest
from msgspec.structs import replace

from palermo.brokers.rabbitmq import journal
from palermo.brokers.rabbitmq.amqp import versions
from palermo.brokers.rabbitmq.amqp.connection import Connection, open_connection
from palermo.brokers.rabbitmq.amqp.messages import PERSISTENT_JSON, read_object
from palermo.brokers.rabbitmq.amqp.publisher import MissingQueues, Publisher
from palermo.brokers.rabbitmq.amqp.stream import Follower, Record, Stream, exists
from palermo.brokers.rabbitmq.broker import RabbitmqBroker
from palermo.brokers.rabbitmq.cluster import facts
from palermo.brokers.rabbitmq.cluster.facts import PAUSE, QUEUE, fact
from palermo.brokers.rabbitmq.consuming.served_queues import ServedQueues
from palermo.brokers.rabbitmq.journal import StreamReader
from palermo.brokers.rabbitmq.publishing import declarer
from palermo.contract.broker import Broker, SessionParameters
from palermo.contract.journal import FROM_START
from palermo.core.address import parse_url
from palermo.core.journal_records import encode, encode_record
from palermo.core.queue_selection import NONE_PAUSED, PausedQueues, QueueSelection
from palermo.core.topology import FAILED_QUEUE, amqp_queue, internal
from palermo.errors import BrokerUnavailable
from tests.contract.tools import PATIENT, message, until
from tests.contract.workers import consume, take_and_ack
from tests.helpers import HANGS
from tests.rabbitmq.conftest import Open
from tests.rabbitmq_node import Node, add_user, binary, set_permissions, url_of
from tests.tcp_proxy import TcpProxy

pytestmark = pytest.mark.usefixtures("patient")


async def test_a_question_on_a_closing_connection_ends_with_its_error(connection: Connection, exchange: str) -> None:
    """Otherwise a queue that is missing seems to exist, and a session looks for the next free name for ever."""
    assert not await exists(connection, internal(exchange, "facts.2"))

    closing = asyncio.ensure_future(connection.close())
    await asyncio.sleep(0)
    assert connection.error is None
    with pytest.raises(BrokerUnavailable, match="has been closed"):
        await exists(connection, internal(exchange, "facts.2"))
    await closing


async def test_a_reader_of_a_stream_that_became_shorter_ends(connection: Connection, exchange: str) -> None:
    """It asks where the stream ends, and then reads up to there: somebody may delete the stream between the two."""
    stream = Stream(internal(exchange, "records"), partial(Publisher.open, connection), patience=PATIENT, holds="")
    await stream.write({"number": 1})
    end, found = await stream.end(connection), list[Any]()
    assert end is not None

    follower = Follower(await connection.channel(), found.append)
    await follower.start(stream.name)
    async with asyncio.timeout(PATIENT):
        assert not await follower.has_come_to(end + 1, patience=0.2)

    assert found[-1] == {"format": 1, "number": 1}


async def test_a_reader_of_a_shorter_journal_ends(broker: RabbitmqBroker, monkeypatch: pytest.MonkeyPatch) -> None:
    """And is not said to have caught up."""
    monkeypatch.setattr(journal, "CALL_TIMEOUT", 0.2)
    found = list[Any]()
    await broker.journal.append(b"[]")
    last = await broker.journal._stream.last(broker._connection)
    assert last is not None
    end, stored_at = last

    reader = StreamReader(await broker._connection.channel(), found.append, end + 1, None)
    await reader.start(broker.journal._stream.name, FROM_START, stored_at)
    await until(reader.ended.is_set)

    assert len(found) == end + 1
    assert not reader.caught_up.is_set()


@pytest.mark.slow
async def test_a_stream_is_made_although_the_task_that_makes_it_is_cancelled(
    far: RabbitmqBroker, connection: Connection, exchange: str, proxy: TcpProxy
) -> None:
    """Else others would find it without a leader, and RabbitMQ 3.10 would close their connections."""
    name, lock = internal(exchange, "starts"), internal(exchange, "making.starts")

    def stream(connection: Connection) -> Stream:
        return Stream(name, partial(Publisher.open, connection), patience=PATIENT, holds="the record of starts")

    proxy.delay = 0.1
    making = asyncio.ensure_future(stream(far._connection).make())
    await until(lambda: exists(connection, lock))
    making.cancel()
    assert isinstance((await asyncio.gather(making, return_exceptions=True))[0], asyncio.CancelledError)

    await until(lambda: exists(connection, lock), False)
    assert await stream(connection).end(connection) == 0
    await far.close()


@pytest.mark.slow
async def test_a_stream_that_opens_late_replaces_its_stand_in(session: SessionParameters, shared_node: Node) -> None:
    """It is down for as long as one that is broken, and comes back within the time of grace."""
    session = replace(session, address=parse_url(url_of(shared_node)))
    connection = await open_connection(session, "test")
    if versions.ends_connections(connection.version):
        await connection.close()
        return  # no stream can be taken down there without its data

    def stream() -> Stream:
        name = internal(session.exchange, "records")
        return Stream(name, partial(Publisher.open, connection), patience=PATIENT, holds="", grace=3.0)

    stand_in = internal(session.exchange, "records.2")
    await stream().write({"number": 1})
    record = f"{{resource, {binary('/')}, queue, {binary(stream().name)}}}"
    shared_node.evaluate(f"begin [Q] = ets:lookup(rabbit_queue, {record}), persistent_term:put(taken, Q) end")
    shared_node.evaluate(f"mnesia:dirty_delete(rabbit_queue, {record})")
    found = list[Record]()
    following = asyncio.ensure_future(stream().follow(connection, found.append))
    await until(lambda: exists(connection, stand_in))
    shared_node.evaluate("mnesia:dirty_write(rabbit_queue, persistent_term:get(taken))")

    assert await following is not None
    assert found == [{"format": 1}, {"format": 1, "number": 1}]
    assert not await exists(connection, stand_in)
    await connection.close()


# -- the names of queues

_WORKERS = 20


async def records(connection: Connection, exchange: str) -> list[Record]:
    """The facts that the stream still has."""
    stream = Stream(internal(exchange, "facts"), lambda: Publisher.open(connection), patience=5.0, holds="")
    end = await stream.end(connection) or 0
    return [read_object(one.body) async for _, one in stream.deliveries(connection, "first", end)]


async def make_and_delete(publisher: Publisher, session: SessionParameters, count: int) -> None:
    """Write what sessions write that make so many queues and delete them."""
    bodies = [json.dumps(fact(QUEUE, f"gone-{n}", value)).encode() for n in range(count) for value in (True, None)]
    place = internal(session.exchange, "facts")
    await asyncio.gather(*(publisher.send("", place, PERSISTENT_JSON, body) for body in bodies))


async def names(broker: Broker) -> list[str]:
    return [info.name for info in await broker.queues()]


@pytest.mark.slow
async def test_workers_that_start_together_leave_few_records_of_each_queue(
    another: Open, connection: Connection, session: SessionParameters, monkeypatch: pytest.MonkeyPatch
) -> None:
    # None looks before the streams are made: on a busy machine RabbitMQ 4.3 needs longer for that than _SOON.
    monkeypatch.setattr(declarer, "_SOON", (HANGS, HANGS))
    monkeypatch.setattr(declarer, "LAST_WORDS", HANGS)
    brokers = await asyncio.gather(*(another() for _ in range(_WORKERS)))
    await asyncio.gather(*(consume(broker, "mail,images") for broker in brokers))
    for broker in brokers:
        await broker._registration.done()
        assert await names(broker) == ["images", "mail"]

    found = Counter(str(one["name"]) for one in await records(connection, session.exchange) if one.get("kind") == QUEUE)
    # One, as a rule. A session that misses the queue just before it is made may write another one.
    assert found.keys() == {"mail", "images"}
    assert max(found.values()) <= _WORKERS / 2


async def test_a_name_is_written_though_the_session_that_made_the_queue_dies(
    broker: RabbitmqBroker, another: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    dying, registering = await another(), asyncio.Event()

    async def hang(_: str) -> None:
        registering.set()
        await asyncio.Event().wait()

    monkeypatch.setattr(dying._registration, "register", hang)
    making = asyncio.ensure_future(dying.publish(message(queue="mail")))
    await registering.wait()
    await broker.publish(message(queue="mail"))
    making.cancel()
    await dying.close()

    assert await names(broker) == ["mail"]


@pytest.mark.slow
async def test_the_facts_are_bounded_and_forget_no_queue_that_exists_and_no_pause(
    another: Open, connection: Connection, session: SessionParameters, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(facts, "_BOUNDS", {"x-max-length-bytes": 60_000, "x-stream-max-segment-size-bytes": 20_000})
    monkeypatch.setattr(facts, "_FAR", 50)
    leader, broker = await another(), await another()
    for queue in ("mail", "images"):
        await broker.publish(message(queue=queue))
    await broker.pause("elsewhere")
    # Not all queues: a worker on all would make those that are only written down here.
    consumer = await consume(broker, "m*,i*,n*")
    assert {(await take_and_ack(consumer)).queue for _ in range(2)} == {"images", "mail"}
    assert await leader._facts.write_again(connection) == 0

    publisher = await Publisher.open(connection)
    for _ in range(12):
        await make_and_delete(publisher, session, 100)
        assert await leader._facts.write_again(connection) == 3
        assert await leader._facts.write_again(connection) == 0

    async def is_short() -> bool:
        return len(await records(connection, session.exchange)) < 1_500  # of more than 2,400

    await until(is_short, True)
    late = await another()
    assert await late._paused() == PausedQueues(frozenset({"elsewhere"}))
    assert await names(late) == ["elsewhere", "images", "mail"]
    await late.publish(message(queue="new"))
    assert (await take_and_ack(consumer)).queue == "new"
    assert await names(broker) == await names(leader) == ["elsewhere", "images", "mail", "new"]


async def test_names_that_are_written_again_are_no_news_to_a_worker(
    broker: RabbitmqBroker, another: Open, connection: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(facts, "_FAR", -1)
    monkeypatch.setattr(facts, "_FAR_PER_FACT", 0)
    told, other = list[set[str]](), await another()

    async def know(names: set[str]) -> None:
        told.append(names)

    await broker.publish(message(queue="mail"))
    declarer, everything = broker._registration.declarer(connection), QueueSelection.parse("*")
    served = ServedQueues(connection, declarer, broker._facts, broker._exchange, everything, lambda _: None)
    monkeypatch.setattr(served, "know", know)
    await served.begin()

    await other._facts.put(QUEUE, "images")
    assert await other._facts.write_again(connection) == 1  # there is no queue "images"
    await other._facts.put(QUEUE, "new")

    await until(lambda: told, [{"mail"}, {"images", "mail"}, {"images", "mail", "new"}])


async def test_deleted_facts_are_written_again_from_a_workers_memory(broker: RabbitmqBroker, another: Open) -> None:
    await broker.publish(message(queue="mail"))
    await broker.pause("mail")
    await broker.cancel(["a"])
    await consume(await another(), "other")

    for stream in ("facts", "cancels"):
        await broker._connection.delete(internal(broker._exchange, stream))

    late = await another()

    async def known() -> tuple[list[str], bool, set[str]]:
        paused, cancels = await late._paused(), await late._cancels.read(late._connection)
        return await names(late), "mail" in paused, set(cancels.marks)

    await until(known, (["mail", "other"], True, {"a"}))
    await late.resume("mail")
    assert await broker._paused() == NONE_PAUSED


async def test_facts_of_a_later_version_are_ignored_and_kept(broker: RabbitmqBroker, connection: Connection) -> None:
    publisher, later = await Publisher.open(connection), {"format": 2, "kind": "shard", "name": "a", "value": [1]}
    paused = {**fact(PAUSE, "mail", {"by": "me", "until": 5}), "format": 2, "zone": "eu"}
    await broker.publish(message(queue="mail"))
    for record in (later, paused):
        body = json.dumps(record).encode()
        await publisher.send("", internal(broker._exchange, "facts"), PERSISTENT_JSON, body)
    assert "mail" in await broker._paused()

    await broker._connection.delete(internal(broker._exchange, "facts"))

    assert "mail" in await broker._paused()
    assert [one for one in await records(connection, broker._exchange) if one.get("format") == 2] == [later, paused]
    assert broker._connection.unreadable.counts == {}


async def test_all_entries_of_a_new_journal_can_be_read(broker: RabbitmqBroker) -> None:
    await broker.journal.append(encode("w", [encode_record({"kind": "started", "at": 1.0})]))

    await broker.journal.examine()

    assert broker._connection.unreadable.counts == {}


# -- what is not there yet


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


async def test_looks_before_there_is_anything_are_no_errors_and_hide_nothing(
    broker: RabbitmqBroker, maker: RabbitmqBroker, errors: list[BaseException]
) -> None:
    for is_served in (False, True):
        if is_served:
            await consume(maker, "other")
        await look(broker)
        errors.clear()
        for _ in range(3):
            await look(broker)
        assert errors == []

    await maker.pause("mail")
    await maker.publish(message("a", queue="mail"))
    await maker.publish(message("b", queue=FAILED_QUEUE))

    shown = [(each.name, each.pending, each.paused) for each in await broker.queues()]
    assert shown == [(FAILED_QUEUE, 1, False), ("mail", 1, True), ("other", 0, False)]
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


async def test_a_foreign_failed_queue_is_seen_in_time(broker: RabbitmqBroker, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(facts, "RARELY", 0.0)
    assert await broker.queues() == []

    await broker._connection.declare(amqp_queue(broker._exchange, FAILED_QUEUE))

    assert [each.name for each in await broker.queues()] == [FAILED_QUEUE]
    await broker._connection.delete(amqp_queue(broker._exchange, FAILED_QUEUE))


async def test_a_user_who_may_only_read_sees_the_first_pause(another: Open, shared_node: Node, exchange: str) -> None:
    add_user(shared_node, "pauses", "secret")
    set_permissions(shared_node, "pauses", "^$", f"^{exchange}", ".*")
    maker = await another(address=parse_url(url_of(shared_node)))
    viewer = await another(address=parse_url(url_of(shared_node, user="pauses", password="secret")))
    for _ in range(3):
        assert await viewer._paused() == NONE_PAUSED

    await maker.pause("mail")

    assert "mail" in await viewer._paused()


async def test_one_probe_at_most_gets_into_a_missing_queue(broker: RabbitmqBroker, session: SessionParameters) -> None:
    connection, name = broker._connection, internal(session.exchange, "records")
    publisher = await Publisher.open(connection)
    missing = MissingQueues(connection)
    for _ in range(2):
        assert not (await missing.probe(connection, name)).exists
    await connection.declare(name)
    await publisher.send("", name, PERSISTENT_JSON, b"{}")

    for _ in range(4):
        assert (await missing.probe(connection, name)).exists

    assert (await connection.probe(name)).messages == 2
    await connection.delete(name)
    assert not (await missing.probe(connection, name)).exists
