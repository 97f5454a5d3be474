"""A line that is cut, or silent, while Palermo logs in to RabbitMQ: that is no wrong password, and is tried again."""

import asyncio
import socket
from collections.abc import Iterator

import pytest
from msgspec.structs import replace

from palermo.client.client import Client
from palermo.contract.broker import SessionParameters, open_broker
from palermo.core.address import parse_url
from palermo.errors import BrokerUnavailable
from palermo.settings.settings import Settings
from tests.tcp_proxy import TcpProxy


@pytest.fixture
def proxy(rabbitmq_url: str) -> Iterator[TcpProxy]:
    with TcpProxy(*parse_url(rabbitmq_url).hosts[0]) as proxy:
        yield proxy


@pytest.fixture
def session(rabbitmq_url: str, proxy: TcpProxy) -> SessionParameters:
    through = replace(parse_url(rabbitmq_url), hosts=(("127.0.0.1", proxy.port),))
    return SessionParameters(address=through, exchange="cut", timeout=60)


@pytest.fixture
def login_bytes(session: SessionParameters, proxy: TcpProxy) -> int:
    """How many bytes RabbitMQ says until a session with it is open; a few of them follow the login."""
    asyncio.run(log_in(session))
    said, proxy.accepted = proxy.said, 0
    return said


async def log_in(session: SessionParameters) -> None:
    await (await open_broker(session)).close()


def complaint(session: SessionParameters) -> str:
    """Why the broker is unavailable; "" if it is not. Raises every other error."""
    try:
        asyncio.run(log_in(session))
    except BrokerUnavailable as error:
        return str(error)
    return ""


@pytest.mark.parametrize("reset", [False, True], ids=["farewell", "reset"])
def test_a_line_that_is_cut_anywhere_in_the_login_is_no_wrong_password(
    session: SessionParameters, proxy: TcpProxy, login_bytes: int, reset: bool
) -> None:
    # Within the head of a frame, within Start, and around Tune and OpenOk, with which the login ends.
    proxy.limits = [0, 1, 6, 7, 8, 60, *range(login_bytes // 2, login_bytes, 23)]
    proxy.resets = reset

    for cut in proxy.limits:
        said = complaint(session)
        assert "password" not in said, cut
        # The last bytes answer the farewell, when the session was open already.
        assert said or cut > login_bytes // 2, cut

    assert proxy.accepted >= len(proxy.limits)


def test_an_enqueue_outlasts_lines_that_are_cut_in_the_login(
    rabbitmq_url: str, exchange: str, proxy: TcpProxy, login_bytes: int
) -> None:
    proxy.limits = [0, 9, login_bytes // 4, login_bytes // 2]
    port = parse_url(rabbitmq_url).hosts[0][1]
    through = rabbitmq_url.replace(f":{port}", f":{proxy.port}")

    with Client(Settings(url=through, exchange=exchange, publish_timeout=60)) as client:
        client.enqueue("cut.job", [1], {}, queue="jobs")

    assert proxy.accepted > len(proxy.limits)


def test_a_broker_that_is_silent_in_the_login_is_unavailable_in_time(session: SessionParameters) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        there = replace(session.address, hosts=(("127.0.0.1", silent.getsockname()[1]),))
        with pytest.raises(BrokerUnavailable, match="in time"):
            asyncio.run(log_in(replace(session, address=there, timeout=0.5)))
