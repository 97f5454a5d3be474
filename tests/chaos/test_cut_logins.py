"""A line that is cut, or silent, while Palermo logs in to RabbitMQ: that is no wrong password, and is tried again."""

import asyncio
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress

import pytest
from msgspec.structs import replace

from palermo.client.client import Client
from palermo.contract.broker import SessionParameters, open_broker
from palermo.core.address import parse_url
from palermo.errors import BrokerUnavailable
from palermo.settings.settings import Settings


class Cutting:
    """Listens for one client after the other, and hands on only so many bytes of what RabbitMQ says to each.

    `limits` are those numbers, of one connection after the other; those that come later are not cut.
    """

    def __init__(self, target: tuple[str, int], limits: list[int], *, reset: bool = False) -> None:
        self._target = target
        self._limits = limits
        self._reset = reset
        #: How many bytes RabbitMQ said in all on the connections that were not cut.
        self.said = 0
        self.accepted = 0
        self._server = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._server.getsockname()[1]

    def serve(self) -> None:
        with suppress(OSError):
            while True:
                line, _ = self._server.accept()
                limit = self._limits[self.accepted] if self.accepted < len(self._limits) else None
                self.accepted += 1
                threading.Thread(target=self._join, args=(line, limit), daemon=True).start()

    def close(self) -> None:
        # A thread that waits in accept() is not woken by close() alone.
        with suppress(OSError):
            self._server.shutdown(socket.SHUT_RDWR)
        self._server.close()

    def _join(self, line: socket.socket, limit: int | None) -> None:
        with line, socket.create_connection(self._target) as broker, suppress(OSError):
            up = threading.Thread(target=self._up, args=(line, broker), daemon=True)
            up.start()
            left = limit
            while data := broker.recv(65_536):
                line.sendall(data if left is None else data[:left])
                if left is None:
                    self.said += len(data)
                elif (left := left - len(data)) <= 0:
                    break
            if self._reset:
                line.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
            # Wakes the other thread: while that reads, closing the line sends nothing.
            line.shutdown(socket.SHUT_RD if self._reset else socket.SHUT_RDWR)
            up.join(60)

    @staticmethod
    def _up(line: socket.socket, broker: socket.socket) -> None:
        with suppress(OSError):
            while data := line.recv(65_536):
                broker.sendall(data)
            broker.shutdown(socket.SHUT_RDWR)


@contextmanager
def cutting(url: str, limits: list[int], *, reset: bool = False) -> Iterator[tuple[Cutting, str]]:
    """The proxy, and the URL of RabbitMQ behind it."""
    address = parse_url(url)
    proxy = Cutting(address.hosts[0], limits, reset=reset)
    thread = threading.Thread(target=proxy.serve, daemon=True)
    thread.start()
    vhost = address.vhost.replace("/", "%2F")
    try:
        yield proxy, f"amqp://{address.username}:{address.password}@127.0.0.1:{proxy.port}/{vhost}"
    finally:
        proxy.close()
        thread.join(60)


async def _logged_in(session: SessionParameters) -> None:
    await (await open_broker(session)).close()


def _complaint(session: SessionParameters) -> str:
    """Why the broker is unavailable; "" if it is not. Raises every other error."""
    try:
        asyncio.run(_logged_in(session))
    except BrokerUnavailable as error:
        return str(error)
    return ""


@pytest.fixture(scope="module")
def login_bytes(rabbitmq_url: str) -> int:
    """How many bytes RabbitMQ says until a session with it is open; a few of them follow the login."""
    with cutting(rabbitmq_url, []) as (proxy, url):
        asyncio.run(_logged_in(SessionParameters(address=parse_url(url), exchange="cut", timeout=60)))
    return proxy.said


@pytest.mark.parametrize("reset", [False, True], ids=["farewell", "reset"])
def test_a_line_that_is_cut_anywhere_in_the_login_is_no_wrong_password(
    rabbitmq_url: str, login_bytes: int, reset: bool
) -> None:
    # Within the head of a frame, within Start, and around Tune and OpenOk, with which the login ends.
    cuts = [0, 1, 6, 7, 8, 60, *range(login_bytes // 2, login_bytes, 23)]

    with cutting(rabbitmq_url, cuts, reset=reset) as (proxy, url):
        session = SessionParameters(address=parse_url(url), exchange="cut", timeout=60)
        for cut in cuts:
            said = _complaint(session)
            assert "password" not in said, cut
            # The last bytes answer the farewell, when the session was open already.
            assert said or cut > login_bytes // 2, cut

    assert proxy.accepted >= len(cuts)


def test_an_enqueue_outlasts_lines_that_are_cut_in_the_login(
    rabbitmq_url: str, exchange: str, login_bytes: int
) -> None:
    cuts = [0, 9, login_bytes // 4, login_bytes // 2]

    with cutting(rabbitmq_url, cuts) as (proxy, url):
        client = Client(Settings(url=url, exchange=exchange, publish_timeout=60))
        try:
            client.enqueue("cut.job", [1], {}, queue="jobs")
        finally:
            client.close()

    assert proxy.accepted > len(cuts)


def test_a_broker_that_is_silent_in_the_login_is_unavailable_in_time(rabbitmq_url: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        address = parse_url(rabbitmq_url)
        there = replace(address, hosts=(("127.0.0.1", silent.getsockname()[1]),))
        with pytest.raises(BrokerUnavailable, match="in time"):
            asyncio.run(_logged_in(SessionParameters(address=there, exchange="cut", timeout=0.5)))
