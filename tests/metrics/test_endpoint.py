"""The worker's small server: what it answers, and what it will not be held up by."""

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator, Awaitable, Callable

import pytest

from palermo.metrics.endpoint import Answer, Endpoint

TOKEN = "a-token-for-prometheus"


async def page(accept: str, encoding: str) -> Answer:
    return f"{accept}/{encoding}".encode(), {"content-type": "text/x"}


@contextlib.asynccontextmanager
async def serving(answer: Callable[[str, str], Awaitable[Answer]] = page, token: str = "") -> AsyncIterator[int]:
    at = socket.create_server(("127.0.0.1", 0))
    port: int = at.getsockname()[1]
    endpoint = Endpoint(at, answer, token=token)
    await endpoint.open()
    try:
        yield port
    finally:
        await endpoint.close()


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


@pytest.mark.parametrize(
    ("request_text", "status", "body"),
    [
        ("GET /metrics HTTP/1.1\nAccept: a\nAccept-Encoding: gzip", "200 OK", "a/gzip"),
        ("GET /metrics?name[]=x HTTP/1.0", "200 OK", "/"),
        ("HEAD /metrics HTTP/1.1", "200 OK", ""),
        ("POST /metrics HTTP/1.1", "405 Method Not Allowed", "Metrics can only be read.\n"),
        ("GET / HTTP/1.1", "404 Not Found", "The metrics are at /metrics.\n"),
        ("nonsense", "404 Not Found", "The metrics are at /metrics.\n"),
    ],
)
async def test_one_page_is_served(request_text: str, status: str, body: str) -> None:
    async with serving() as port:
        head, found = await ask(port, request_text)

    assert head.startswith(f"HTTP/1.1 {status}\r\n")
    assert "connection: close" in head
    assert found == body


@pytest.mark.parametrize(
    ("header", "status"),
    [
        (f"Authorization: Bearer {TOKEN}", "200"),
        (f"authorization: bearer {TOKEN}", "200"),
        ("Authorization: Bearer another", "401"),
        (f"Authorization: Basic {TOKEN}", "401"),
        ("Authorization: Bearer \u00fc", "401"),
        ("Accept: */*", "401"),
    ],
)
async def test_a_token_is_asked_for_where_there_is_one(header: str, status: str) -> None:
    async with serving(token=TOKEN) as port:
        head, _ = await ask(port, f"GET /metrics HTTP/1.1\n{header}")

    assert head.split()[1] == status


async def test_many_who_say_nothing_keep_out_others_and_not_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    for patience in (0.3, 3.0, 30.0):
        monkeypatch.setattr("palermo.metrics.endpoint._PATIENCE", patience)
        async with serving() as port:
            silent = [await asyncio.open_connection("127.0.0.1", port) for _ in range(20)]
            refused, _ = await ask(port, "GET /metrics HTTP/1.1")
            ends = await asyncio.gather(*(reader.read() for reader, _ in silent), return_exceptions=True)
            assert all(end == b"" or isinstance(end, ConnectionError) for end in ends)
            for _, writer in silent:
                writer.close()
            served, _ = await ask(port, "GET /metrics HTTP/1.1")
        if not refused and served:
            break  # else the machine may have stood still for as long as that

    assert refused == ""
    assert served.startswith("HTTP/1.1 200")


async def test_the_page_is_made_once_for_all_who_ask_at_a_moment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("palermo.metrics.endpoint._HOLDS", 600.0)  # a moment, however slow the machine is
    made = list[str]()

    async def slow(accept: str, encoding: str) -> Answer:
        made.append(accept)
        await asyncio.sleep(0.05)
        return b"x", {}

    async with serving(slow) as port:
        answers = await asyncio.gather(*(ask(port, "GET /metrics HTTP/1.1") for _ in range(10)))

    assert [body for _, body in answers] == ["x"] * 10
    assert len(made) == 1


async def test_a_request_too_long_and_an_error_of_our_own_end_one_request(caplog: pytest.LogCaptureFixture) -> None:
    async def broken(accept: str, encoding: str) -> Answer:
        raise RuntimeError("no")

    async with serving(broken) as port:
        assert await ask(port, "GET /metrics HTTP/1.1") == ("", "")
        assert await ask(port, f"GET / HTTP/1.1\nX: {'x' * 100_000}") == ("", "")
        assert (await ask(port, "GET / HTTP/1.1"))[0].startswith("HTTP/1.1 404")
    assert "cannot tell metrics" in caplog.text
