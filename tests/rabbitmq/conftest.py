"""Sessions, connections and the loop that many tests of the adapter for RabbitMQ use."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pika
import pytest
from msgspec.structs import replace
from pika.exceptions import ChannelClosedByBroker

from palermo.brokers.rabbitmq.amqp.connection import Connection, open_connection
from palermo.brokers.rabbitmq.broker import RabbitmqBroker, open_rabbitmq
from palermo.brokers.rabbitmq.cluster.facts import Facts
from palermo.brokers.rabbitmq.connections import Connections
from palermo.brokers.rabbitmq.publishing.declarer import QueueRegistration
from palermo.brokers.rabbitmq.publishing.outbox import Outbox
from palermo.contract.broker import Broker, SessionParameters
from palermo.core.address import parse_url
from palermo.core.message import Message
from palermo.errors import NotFound, PalermoError
from tests.contract.tools import PATIENT, ids, until
from tests.harness.rig import Rig
from tests.tcp_proxy import TcpProxy

#: Opens a session, with some parameters changed.
Open = Callable[..., Awaitable[RabbitmqBroker]]


@asynccontextmanager
async def connected(session: SessionParameters, name: str = "test") -> AsyncIterator[Connection]:
    """A bare connection."""
    connection = await open_connection(session, name)
    try:
        yield connection
    finally:
        await connection.close()


async def ids_in(broker: Broker, queue: str = "jobs") -> list[str]:
    """The sorted ids of the jobs in a queue, which may not exist."""
    try:
        return sorted(await ids(broker, queue))
    except NotFound:
        return []


async def too_large(broker: Broker, id: str) -> Message:
    """The job, once it is the only one in `failed`, because of headers that fit no frame of a connection."""
    await until(lambda: ids_in(broker, "failed"), [id])
    (failed,) = (await broker.browse("failed")).messages
    assert (failed.queue, failed.body, failed.extra["dropped-headers"]) == ("jobs", b"[1]", "note")
    assert failed.failure is not None
    assert failed.failure.exception_class == "palermo.errors.HeadersTooLarge"
    assert "frame_max" in failed.failure.message
    return failed


#: Runs a test on queues of both kinds, where the kind decides.
on_both_kinds = pytest.mark.parametrize("kind", ["classic", "quorum"])


@pytest.fixture
def kind() -> str:
    return "classic"


@pytest.fixture
def session(rabbitmq_url: str, exchange: str, kind: str) -> SessionParameters:
    return SessionParameters(address=parse_url(rabbitmq_url), exchange=exchange, timeout=PATIENT, queue_type=kind)


@pytest.fixture
def channel(rabbitmq_url: str) -> Iterator[Any]:
    """Another program, on bare pika, whose messages are stored when a publish returns."""
    connection = pika.BlockingConnection(pika.URLParameters(rabbitmq_url))
    channel = connection.channel()
    channel.confirm_delivery()
    yield channel
    if connection.is_open:
        connection.close()


@pytest.fixture
def another(runner: asyncio.Runner, session: SessionParameters) -> Iterator[Open]:
    """Opens sessions, which end with the test."""
    opened = list[RabbitmqBroker]()

    async def another(**changes: Any) -> RabbitmqBroker:
        opened.append(await open_rabbitmq(replace(session, **changes)))
        return opened[-1]

    yield another
    while opened:
        runner.run(opened.pop(0).close())


@pytest.fixture
def broker(runner: asyncio.Runner, another: Open) -> RabbitmqBroker:
    return runner.run(another())


@pytest.fixture
def connection(runner: asyncio.Runner, session: SessionParameters) -> Iterator[Connection]:
    """A bare connection, beside all sessions."""
    connection = runner.run(open_connection(session, "test"))
    yield connection
    runner.run(connection.close())


def outbox_on(connection: Connection, session: SessionParameters) -> Outbox:
    """What publishes on this connection."""
    facts = Facts(session.exchange, connection, lambda: outbox.open(), patience=session.timeout)
    declarer = QueueRegistration(session, facts, Connections(session, connection)).declarer(connection)
    outbox = Outbox(session, connection, declarer)
    return outbox


@pytest.fixture
def small(session: SessionParameters) -> dict[str, Any]:
    """What makes a session with small frames, for `another`."""
    return {"address": replace(session.address, options=(("frame_max", "8192"),))}


@pytest.fixture
def errors(monkeypatch: pytest.MonkeyPatch) -> list[BaseException]:
    """Gets each error by which RabbitMQ closes a channel: it logs each."""
    found, translated = list[BaseException](), Connection.translated

    def noted(connection: Connection, error: BaseException) -> PalermoError:
        if isinstance(error, ChannelClosedByBroker):
            found.append(error)
        return translated(connection, error)

    monkeypatch.setattr(Connection, "translated", noted)
    return found


@pytest.fixture
def proxy(session: SessionParameters) -> Iterator[TcpProxy]:
    with TcpProxy(*session.address.hosts[0]) as proxy:
        yield proxy


@pytest.fixture
def far(runner: asyncio.Runner, another: Open, session: SessionParameters, proxy: TcpProxy) -> RabbitmqBroker:
    """A session by way of the proxy."""
    return runner.run(another(address=replace(session.address, hosts=(("127.0.0.1", proxy.port),))))


@pytest.fixture(scope="module")
def loop() -> Iterator[asyncio.AbstractEventLoop]:
    """A loop for all tests of the module."""
    loop = asyncio.new_event_loop()
    yield loop
    loop.close()


@pytest.fixture
def rig(tmp_path: Path, rabbitmq_url: str, exchange: str) -> Iterator[Rig]:
    """Workers on the broker that all tests share."""
    with Rig(tmp_path, url=rabbitmq_url, exchange=exchange) as rig:
        yield rig
