"""The worker's small server: its answers, and the clients that cannot hold it up."""

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator, Iterable

import pytest
from prometheus_client import CollectorRegistry
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from palermo.metrics.endpoint import Endpoint, _Handler

TOKEN = "a-token-for-prometheus"


class Page(Collector):
    """One metric; or the error of another collector."""

    def __init__(self, error: Exception | None = None) -> None:
        self._error = error

    def collect(self) -> Iterable[Metric]:
        if self._error is not None:
            raise self._error
        return [GaugeMetricFamily("shown", "A number.", 7)]


@contextlib.asynccontextmanager
async def serving(page: Page | None = None, token: str = "") -> AsyncIterator[int]:
    at = socket.create_server(("127.0.0.1", 0))
    port: int = at.getsockname()[1]
    registry = CollectorRegistry()
    registry.register(page or Page())
    endpoint = Endpoint(at, registry, token=token)
    endpoint.serve(asyncio.get_running_loop())
    try:
        yield port
    finally:
        endpoint.close(asyncio.get_running_loop())


async def ask(port: int, request: str) -> tuple[str, str]:
    """The head of the answer, and its body; "" if the connection just ends."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(request.replace("\n", "\r\n").encode() + b"\r\n\r\n")
    try:
        head, _, body = (await reader.read()).decode().partition("\r\n\r\n")
    except ConnectionError:
        head, body = "", ""
    finally:
        writer.close()
    return head, body


#: With a token and without one: what is asked, and how the answer begins and what it says.
REQUESTS = {
    "": [
        ("GET /metrics HTTP/1.1", "200 OK", "shown 7.0"),
        ("GET /metrics?name[]=x HTTP/1.0", "200 OK", "shown 7.0"),
        ("POST /metrics HTTP/1.1", "405 Method Not Allowed", "use OPTIONS or GET"),
        ("GET / HTTP/1.1", "404 Not Found", "The metrics are at /metrics."),
    ],
    TOKEN: [
        (f"GET /metrics HTTP/1.1\nAuthorization: Bearer {TOKEN}", "200", "shown"),
        (f"GET /metrics HTTP/1.1\nauthorization: bearer {TOKEN}", "200", "shown"),
        ("GET /metrics HTTP/1.1\nAuthorization: Bearer another", "401", ""),
        (f"GET /metrics HTTP/1.1\nAuthorization: Basic {TOKEN}", "401", ""),
        ("GET /metrics HTTP/1.1\nAuthorization: Bearer \u00fc", "401", ""),
        ("GET /metrics HTTP/1.1\nAccept: */*", "401", ""),
    ],
}


@pytest.mark.parametrize("token", REQUESTS)
async def test_one_page_is_served_and_a_token_asked_for_where_there_is_one(token: str) -> None:
    async with serving(token=token) as port:
        for request, status, body in REQUESTS[token]:
            head, found = await ask(port, request)
            assert head.partition(" ")[2].startswith(status), request
            assert body in found


async def test_silent_clients_keep_others_out_only_for_a_while(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_Handler, "timeout", 3.0)
    async with serving() as port:
        silent = [await asyncio.open_connection("127.0.0.1", port) for _ in range(20)]
        assert await ask(port, "GET /metrics HTTP/1.1") == ("", "")
        await asyncio.gather(*(reader.read() for reader, _ in silent), return_exceptions=True)
        served = ""
        while not served:  # the last thread may end a moment later
            served, _ = await ask(port, "GET /metrics HTTP/1.1")
        for _, writer in silent:
            writer.close()

    assert served.split()[1] == "200"


async def test_a_request_too_long_and_an_error_of_our_own_end_one_request() -> None:
    async with serving(Page(RuntimeError("no"))) as port:
        assert (await ask(port, "GET /metrics HTTP/1.1"))[0].split()[1] == "500"
        assert "200" not in (await ask(port, f"GET /metrics HTTP/1.1\nX: {'x' * 100_000}"))[0]
