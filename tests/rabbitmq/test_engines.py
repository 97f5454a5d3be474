"""The engines under the adapter: a mutex between processes, probes and gets, requests and replies; and silent lines."""

import asyncio
import gc
from collections.abc import Iterator
from typing import Any

import pytest

from palermo.brokers.rabbitmq import RabbitmqBroker
from palermo.brokers.rabbitmq.amqp.connection import Connection, open_connection
from palermo.brokers.rabbitmq.amqp.messages import PERSISTENT_JSON, Properties
from palermo.brokers.rabbitmq.amqp.mutex import Mutex
from palermo.brokers.rabbitmq.amqp.publisher import Publisher
from palermo.brokers.rabbitmq.amqp.rpc import Responder, Rpc
from palermo.brokers.rabbitmq.cluster.worker_control import Reports
from palermo.contract.broker import SessionParameters
from palermo.core.address import parse_url
from palermo.core.queue_selection import QueueSelection
from palermo.core.topology import amqp_queue, internal
from palermo.errors import BrokerRefused, BrokerUnavailable, NotFound
from tests.contract.tools import message, stopped, until
from tests.contract.workers import Report, consume, take_and_ack
from tests.rabbitmq.conftest import Open
from tests.rabbitmq_node import Node, add_user, close_connections, set_permissions
from tests.tcp_proxy import TcpProxy


@pytest.fixture
def lock(exchange: str) -> str:
    return internal(exchange, "test.lock")


@pytest.fixture
def second(runner: asyncio.Runner, session: SessionParameters) -> Iterator[Connection]:
    second = runner.run(open_connection(session, "second"))
    yield second
    runner.run(second.close())


# -- mutex


async def test_a_mutex_is_held_by_one_session_and_task(connection: Connection, second: Connection, lock: str) -> None:
    ours, theirs = Mutex(lock), Mutex(lock)
    async with ours.held(connection) as mine, theirs.held(second, patience=0.0) as other:
        assert (mine, other) == (True, False)
        assert ((await second.probe(lock)).locked, (await connection.probe(lock)).locked) == (True, False)
        async with ours.held(connection, patience=0.05) as another_task:
            assert not another_task
    async with theirs.held(second, patience=0.0) as after:
        assert after
        second.raw.abort()
        # As the kernel ends a process that is killed.
        async with ours.held(connection, patience=60.0) as at_last:
            assert at_last


async def test_tasks_share_a_mutex_until_the_last_ends(connection: Connection, second: Connection, lock: str) -> None:
    mutex = Mutex(lock)
    async with mutex.shared(connection):
        async with mutex.shared(connection) as both:
            assert both
        assert (await second.probe(lock)).locked
    assert not (await second.probe(lock)).exists


async def test_a_session_that_gave_up_leaves_no_lock(connection: Connection, second: Connection, lock: str) -> None:
    for turns in range(20):
        taking = asyncio.ensure_future(Mutex(lock).take(connection))
        for _ in range(turns):
            await asyncio.sleep(0)
        await stopped(taking)
        if not taking.cancelled() and taking.exception() is None and (channel := taking.result()) is not None:
            channel.raw.queue_delete(lock, callback=lambda _: None)
            await channel.close()
    async with Mutex(lock).held(second, patience=60.0) as theirs:
        assert theirs


# -- probes and declarations


async def test_a_probe_leaves_the_connection_usable(connection: Connection, second: Connection, lock: str) -> None:
    missing = await connection.probe(lock)
    assert not missing.exists
    with pytest.raises(NotFound):
        _ = missing.messages
    async with Mutex(lock).held(second):
        locked = await connection.probe(lock)
        assert (locked.exists, locked.locked) == (True, True)
        with pytest.raises(BrokerRefused):
            _ = locked.messages
    assert await connection.declare(lock) is None
    probes = (connection.probe(name) for name in [lock, f"{lock}.missing"] * 20)
    assert [one.exists for one in await asyncio.gather(*probes)] == [True, False] * 20
    found = await connection.probe(lock)
    assert (found.exists, found.locked, found.messages, found.consumers) == (True, False, 0, 0)
    assert await connection.delete_unused(lock)
    assert await connection.purge(lock) is None


async def test_a_session_is_lost_though_it_settles(far: RabbitmqBroker, proxy: TcpProxy, lock: str) -> None:
    """As when the leader gives back a tenant's job whose publish was not confirmed."""
    connection = far._connection
    await connection.declare(lock)
    publisher, holder = await Publisher.open(connection), await connection.channel()
    await publisher.send("", lock, PERSISTENT_JSON, b"{}")
    got = await holder.get(lock)
    assert got is not None
    could = []

    def unconfirmed(_: object) -> None:
        could.append(holder.is_open)
        if holder.is_open:
            holder.requeue(got.tag)

    proxy.stall("down")
    publisher.post("", lock, b"".join(PERSISTENT_JSON.encode()), b"{}", unconfirmed, None)
    proxy.hang_up(reset=True)
    await until(connection.lost.is_set)

    assert (could, holder.is_open) == ([False], False)


@pytest.mark.parametrize("call", ["get_each", "close"])
async def test_silent_calls_end(connection: Connection, lock: str, call: str, monkeypatch: pytest.MonkeyPatch) -> None:
    channel = await connection.channel()
    with monkeypatch.context() as patch:
        patch.setattr("palermo.brokers.rabbitmq.amqp.connection.CALL_TIMEOUT", 2.0)
        patch.setattr("palermo.brokers.rabbitmq.amqp.connection._FROZEN_AFTER", 0.5)
        patch.setattr(connection.raw if call == "get_each" else channel.raw, call, lambda *_: None)
        with pytest.raises(BrokerUnavailable, match="did not answer in time"):
            await (channel.get(lock) if call == "get_each" else channel.close())


@pytest.mark.parametrize("call", ["probe", "get"])
async def test_a_frozen_broker_ends_the_session(far: RabbitmqBroker, proxy: TcpProxy, lock: str, call: str) -> None:
    channel = await far._connection.channel()
    proxy.stall("down")
    with pytest.raises(BrokerUnavailable, match="stopped answering"):
        await getattr(channel, call)(lock)


# -- requests and replies


async def responder(connection: Connection, queue: str, *, delay: float = 0.0) -> Responder:
    channel = await Mutex(queue).take(connection)
    assert channel is not None
    made = Responder(channel, queue, await Publisher.open(connection))

    async def later(body: bytes) -> bytes:
        await asyncio.sleep(delay)
        return body

    await made.start(lambda body: body if body == b"now" else later(body))
    return made


async def test_each_request_gets_its_own_reply(connection: Connection, second: Connection, lock: str) -> None:
    await responder(second, lock, delay=0.05)
    client = Rpc(connection, lock)
    # The last one comes in parts.
    bodies = [b"now", *(f"{number}".encode() for number in range(50)), b"long" * 600_000]
    assert await asyncio.gather(*(client.ask(body, silence=60.0) for body in bodies)) == bodies


@pytest.mark.slow
async def test_a_slow_reply_of_a_live_process_is_awaited(connection: Connection, second: Connection, lock: str) -> None:
    # Where no sign of life comes none of them is answered; where the machine stands still the longest is.
    for number, silence in enumerate((1.5, 5.0, 15.0)):
        await responder(second, f"{lock}.{number}", delay=2 * silence)
        if reply := await Rpc(connection, f"{lock}.{number}").ask(b"1", silence=silence):
            break

    assert reply == b"1"


async def test_a_request_that_nobody_answers_ends(connection: Connection, second: Connection, lock: str) -> None:
    client = Rpc(connection, lock)
    for is_there in (False, True):
        if is_there:  # a queue that has no consumer
            await Mutex(lock).take(second)
        assert await client.ask(b"1", silence=0.3) is None


# -- many queues together: one that is missing or differs does the others no harm

#: More than are asked about at once behind a queue that is missing or differs.
NAMES = [f"many-{number:02}" for number in range(30)]

#: Of these, one is deleted behind Palermo's back, and two are there with other arguments.
DELETED, SHORT, QUORUM = NAMES[3], NAMES[11], NAMES[12]


@pytest.fixture
def filled(runner: asyncio.Runner, broker: RabbitmqBroker, exchange: str, channel: Any) -> RabbitmqBroker:
    """A session that has put a job into each of these queues, of which one was deleted then."""
    channel.queue_declare(amqp_queue(exchange, SHORT), durable=True, arguments={"x-expires": 3_600_000})
    channel.queue_declare(amqp_queue(exchange, QUORUM), durable=True, arguments={"x-queue-type": "quorum"})
    runner.run(broker.publish_many([message(name, queue=name) for name in NAMES]))
    channel.queue_delete(amqp_queue(exchange, DELETED))
    return broker


async def test_all_are_seen_and_served(filled: RabbitmqBroker, another: Open, caplog: pytest.LogCaptureFixture) -> None:
    there = [name for name in NAMES if name != DELETED]
    assert any("x-expires" in record.getMessage() for record in caplog.get_records("setup"))
    onlooker = await another()

    async def listed() -> dict[str, int]:
        return {info.name: info.pending for info in await onlooker.queues()}

    # The names of those that others have made are written a moment later.
    await until(listed, dict.fromkeys(there, 1))
    levels = {finding.check: finding.level for finding in await filled.diagnose()}
    expected = {f"queue {name}": "ok" for name in there}
    expected |= {f"queue {SHORT}": "problem", f"queue {QUORUM}": "warning"}
    assert {check: level for check, level in levels.items() if check.startswith("queue many")} == expected

    worker = await consume(filled, "*")

    assert [(await take_and_ack(worker)).id for _ in there] == there
    # It made the deleted one again.
    await filled.publish(message("again", queue=DELETED))
    assert (await take_and_ack(worker)).id == "again"


#: A body of several frames, which pika reads, and so not our own reader.
LONG = b"long" * 100_000


@pytest.fixture
def mail(channel: Any, exchange: str) -> str:
    """A queue with three messages, the second of them long."""
    name = amqp_queue(exchange, "mail")
    channel.queue_declare(name, durable=True)
    for body in b"first", LONG, b"last":
        channel.basic_publish("", name, body)
    return name


async def test_several_are_asked_for_at_once(connection: Connection, exchange: str, mail: str, channel: Any) -> None:
    empty = amqp_queue(exchange, "empty")
    channel.queue_declare(empty, durable=True)
    asking = await connection.channel()

    found = await asking.get_each([mail, empty, mail, mail, mail])

    expected = [(b"first", 2), None, (LONG, 1), (b"last", 0), None]
    assert [got and (got.body, got.left) for got in found] == expected
    assert await asking.get_each([]) == []


async def test_whoever_asked_and_is_cancelled_gives_back_what_came(connection: Connection, mail: str) -> None:
    channel = await connection.channel()
    asking = asyncio.ensure_future(channel.get_each([mail, mail]))
    await asyncio.sleep(0)  # asked, and not answered yet
    await stopped(asking)

    assert asking.cancelled()
    assert [got and got.body for got in await channel.get_each([mail] * 4)] == [b"first", LONG, b"last", None]


async def test_a_missing_queue_among_them_ends_the_channel(connection: Connection, exchange: str, mail: str) -> None:
    channel = await connection.channel()
    with pytest.raises(NotFound):
        await channel.get_each([mail, amqp_queue(exchange, "missing"), mail])
    assert not channel.is_open

    another = await connection.channel()
    await another.prefetch(1)
    (got,) = await another.get_each([mail])
    assert got is not None
    assert got.body == b"first"


# -- sessions whose line is silent, and that are given up by someone who does not wait long


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
    await stopped(asking)
    assert channel.missing


@pytest.mark.slow
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

        await asyncio.to_thread(close_connections, shared_node, "closed")

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
