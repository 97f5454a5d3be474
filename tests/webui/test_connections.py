"""Connections that send nothing, or too slowly, or take nothing: they end, and shut out nobody."""

import resource
import socket
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import httpx
import pytest

from tests.helpers import eventually
from tests.webui.process import WebProcess, has_ended

pytestmark = pytest.mark.slow


_SILENT = 1_100


@contextmanager
def files(most: int) -> Iterator[None]:
    """This process, and what it starts meanwhile, may have so many files open."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(most, hard), hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


@pytest.fixture(scope="module")
def web(tmp_path_factory: pytest.TempPathFactory) -> Iterator[WebProcess]:
    """With as many files as most systems allow."""
    with files(1_024):
        process = WebProcess(tmp_path_factory.mktemp("connections"))
    with process as web:
        yield web


def connected(web: WebProcess, stack: ExitStack, address: str = "127.0.0.1") -> socket.socket:
    """A connection from this address."""
    to = ("127.0.0.1", web.port)
    return stack.enter_context(socket.create_connection(to, timeout=60, source_address=(address, 0)))


@pytest.mark.parametrize("addresses", [1, _SILENT])
def test_a_thousand_silent_connections_shut_the_pages_for_nobody(web: WebProcess, addresses: int) -> None:
    with files(10_000), ExitStack() as stack:
        live = stack.enter_context(web.http.stream("GET", "/live", params={"every": 1}))
        told = live.iter_lines()
        silent = [connected(web, stack, f"127.0.{n // 250 + 1}.{n % 250 + 1}") for n in range(addresses)]
        silent += [connected(web, stack) for _ in range(_SILENT - addresses)]
        for connection in silent[::2]:
            connection.send(b"GET /queues HTTP/1.1\r\nHost: 127.0.0.1\r\nX-Slow: ")

        for path in ("/healthz", "/queues", "/api/queues"):
            # A browser that comes now: on a new connection each time.
            assert httpx.get(web.url + path, headers=web.http.headers, timeout=60).status_code == 200

        eventually(lambda: all(has_ended(connection) for connection in silent), every=0.5)
        assert [next(told) for _ in range(20)], "a stream ended with them"
        assert web.http.get("/queues").status_code == 200


@pytest.mark.parametrize("before", ["", "GET /healthz HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n"], ids=["first", "second"])
def test_the_head_of_a_request_that_comes_byte_by_byte_is_not_waited_for(web: WebProcess, before: str) -> None:
    with ExitStack() as stack:
        connection = connected(web, stack)
        if before:
            connection.send(before.encode())
            assert connection.recv(65_536).startswith(b"HTTP/1.1 200")
        connection.send(b"GET /queues HTTP/1.1\r\nX-Slow: ")

        def ended() -> bool:
            try:
                connection.send(b"x")
            except OSError:
                return True
            return has_ended(connection)

        eventually(ended, every=0.5)


def test_answers_that_nobody_takes_are_given_up(web: WebProcess) -> None:
    with ExitStack() as stack:
        connection = connected(web, stack)
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4_096)
        head = f"GET /static/htmx.min.js HTTP/1.1\r\nHost: 127.0.0.1\r\nAuthorization: Bearer {web.token}\r\n\r\n"
        connection.send(head.encode() * 500)

        eventually(lambda: not is_open_there(connection), every=0.5)


def is_open_there(connection: socket.socket) -> bool:
    """Whether the server's end is open: this one hears nothing of its end before it has read all that was sent."""
    server, client = (f"0100007F:{port:04X}" for _, port in (connection.getpeername(), connection.getsockname()))
    lines = [line.split() for line in Path("/proc/net/tcp").read_text().splitlines()]
    return any(line[1:4] == [server, client, "01"] for line in lines)
