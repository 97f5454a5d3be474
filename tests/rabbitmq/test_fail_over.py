"""Several hosts in the URL: which one is tried first, and what one costs that does not answer."""

import asyncio
import socket
import time
from collections.abc import Iterator
from urllib.parse import urlsplit

import pytest

from palermo.client.client import Client
from palermo.contract.broker import Broker, Consumer
from palermo.core.address import parse_url
from palermo.errors import BrokerUnavailable
from palermo.settings.settings import Settings
from palermo.worker.parent.broker_session import BrokerSessions
from tests.contract.tools import PATIENT
from tests.helpers import HANGS, Stopwatch, eventually
from tests.rabbitmq_node import free_port
from tests.tcp_proxy import TcpProxy

pytestmark = pytest.mark.slow


def with_hosts(url: str, *ports: int) -> str:
    """The same URL with these ports of loopback as its hosts."""
    split = urlsplit(url)
    credentials, _, _ = split.netloc.rpartition("@")
    return split._replace(netloc=f"{credentials}@{','.join(f'127.0.0.1:{port}' for port in ports)}").geturl()


@pytest.fixture
def hosts(rabbitmq_url: str) -> Iterator[tuple[TcpProxy, TcpProxy]]:
    """Two ways to the broker, which both accept all connections."""
    broker = parse_url(rabbitmq_url).hosts[0]
    with TcpProxy(*broker) as first, TcpProxy(*broker) as second:
        yield first, second


def accepted(hosts: tuple[TcpProxy, TcpProxy]) -> list[int]:
    return [host.accepted for host in hosts]


@pytest.mark.parametrize(
    ("count", "expected"), [(1, [[True, False]] * 3), (2, [[True, False], [False, True], [True, False]])]
)
def test_a_program_whose_session_fails_begins_at_the_next_host(
    rabbitmq_url: str, exchange: str, hosts: tuple[TcpProxy, TcpProxy], count: int, expected: list[list[bool]]
) -> None:
    url = with_hosts(rabbitmq_url, *(host.port for host in hosts[:count]))
    with Client(Settings(url=url, exchange=exchange, publish_timeout=PATIENT)) as client:
        for connected in expected:
            client.enqueue("shop.mail.send", ())
            eventually(lambda connected=connected: [host.connections > 0 for host in hosts] == connected)
            hosts[connected.index(True)].hang_up()


def test_a_worker_that_cannot_take_jobs_at_one_host_begins_at_the_next(
    rabbitmq_url: str, exchange: str, hosts: tuple[TcpProxy, TcpProxy]
) -> None:
    url = with_hosts(rabbitmq_url, *(host.port for host in hosts))
    tried: list[list[int]] = []

    async def consume(broker: Broker) -> Consumer:
        tried.append(accepted(hosts))
        if len(tried) == 3:
            raise Seen
        raise BrokerUnavailable("Could not declare queue 'mail', as its leader is away.")

    async def work() -> None:
        session = Settings(url=url, exchange=exchange, publish_timeout=PATIENT).session("worker")
        sessions = BrokerSessions(session, give_up=False, consume=consume, opened=lambda _: None, lost=lambda: None)
        async with asyncio.timeout(HANGS):
            await sessions.keep_open()

    with pytest.raises(Seen):
        asyncio.run(work())
    assert tried == [[1, 0], [1, 1], [2, 1]]


class Seen(Exception):
    """Ends a worker's attempts."""


def test_silent_and_missing_hosts_do_not_use_up_the_whole_timeout(rabbitmq_url: str, exchange: str) -> None:
    split = urlsplit(rabbitmq_url)
    credentials, _, sound = split.netloc.rpartition("@")
    with socket.create_server(("127.0.0.1", 0)) as black_hole:
        hosts = f"127.0.0.1:{black_hole.getsockname()[1]},127.0.0.1:{free_port()},{sound}"
        url = split._replace(netloc=f"{credentials}@{hosts}").geturl()
        client = Client(Settings(url=url, exchange=exchange, publish_timeout=18))
        began, watch = time.monotonic(), Stopwatch()

        client.enqueue("shop.mail.send", ())

        assert time.monotonic() - began > 1
        # A third of the time, and what a machine may stand still.
        assert watch.seconds() < 14
        client.close()
