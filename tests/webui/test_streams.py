"""Streams that tell pages of changes: many at once, and of users who may not look any more."""

import base64
import socket
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import httpx
import pytest
from starlette.requests import Request

from palermo.settings.settings import Settings
from palermo.webui import Role, User
from palermo.webui.pages.live import MAX_STREAMS
from palermo.webui.security.user_file import password_line, token_line
from tests.helpers import eventually
from tests.webui.conftest import Serve, Start
from tests.webui.process import has_ended
from tests.webui.server import CHEAP


@pytest.fixture
def streams() -> Iterator["Streams"]:
    with ExitStack() as stack:
        yield Streams(stack)


class Streams:
    """Opens streams, each by a connection of its own, which ends with it."""

    def __init__(self, stack: ExitStack) -> None:
        self._stack = stack

    def ask(self, url: str, authorization: str = "") -> socket.socket:
        """A connection on which a stream is asked for."""
        host, _, port = url.removeprefix("http://").partition(":")
        connection = self._stack.enter_context(socket.create_connection((host, int(port)), timeout=60))
        head = (
            f"GET /live?every=1 HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\nAuthorization: {authorization}\r\n\r\n"
        )
        connection.send(head.encode())
        return connection

    def open(self, url: str, authorization: str = "") -> socket.socket:
        """A stream that has begun."""
        connection = self.ask(url, authorization)
        assert status_of(connection) == "200"
        return connection


def status_of(connection: socket.socket) -> str:
    return connection.recv(12).decode().partition(" ")[2]


def basic(name: str, password: str) -> str:
    return f"Basic {base64.b64encode(f'{name}:{password}'.encode()).decode()}"


def test_a_stream_ends_when_its_user_is_removed_or_changes_role(
    settings: Settings, serve: Serve, streams: Streams, tmp_path: Path
) -> None:
    users = tmp_path / "users"
    lines = {name: password_line(name, Role.VIEWER, "a password", hasher=CHEAP) for name in ("eve", "joe", "ada")}
    token, lines["deploy"] = token_line("deploy", Role.OPERATOR)
    users.write_text("\n".join(lines.values()))
    url = serve(settings, users=str(users)).url
    opened = {name: streams.open(url, basic(name, "a password")) for name in ("eve", "joe", "ada")}
    opened["deploy"] = streams.open(url, f"Bearer {token}")

    users.write_text("\n".join([lines["joe"].replace(":viewer:", ":operator:"), lines["ada"]]))

    for name in ("eve", "joe", "deploy"):
        eventually(lambda name=name: has_ended(opened[name]), every=0.2)  # type: ignore[misc]
    assert not has_ended(opened["ada"])


def test_a_stream_ends_when_the_host_application_drops_its_user(
    settings: Settings, serve: Serve, streams: Streams
) -> None:
    known = [User("ada", Role.ADMIN)]

    async def auth(request: Request) -> User | None:
        return known[0] if known else None

    stream = streams.open(serve(settings, auth=auth).url)

    known.clear()

    eventually(lambda: has_ended(stream), every=0.2)


def test_a_change_is_told_at_two_looks(settings: Settings, serve: Serve, streams: Streams) -> None:
    stream = streams.open(serve(settings).url)
    told = b""

    while b": \n\n" not in told:
        more = stream.recv(1_000)
        assert more, told
        told += more

    assert told.count(b"event: change") == 2


def test_a_hundred_streams_get_changes_and_leave_room_for_pages(start: Start, streams: Streams) -> None:
    web = start()
    bearer = f"Bearer {web.token}"
    asked = [streams.ask(web.url, bearer) for _ in range(MAX_STREAMS + 30)]
    statuses = [status_of(connection) for connection in asked]
    opened = [connection for connection, status in zip(asked, statuses, strict=True) if status == "200"]

    assert sorted(statuses) == ["200"] * MAX_STREAMS + ["503"] * 30
    for connection in opened:
        until(connection, "event: change")
    assert web.http.get("/queues").status_code == 200
    assert web.http.post("/api/jobs", json={"job": "shop.mail", "queue": "mail"}).status_code == 201
    for connection in opened:
        assert "event: change" in until(connection, "event: change")
        connection.close()

    def room() -> bool:
        with httpx.stream("GET", f"{web.url}/live", headers=web.http.headers, timeout=60) as answer:
            return answer.status_code == 200

    eventually(room, every=0.5)


def until(connection: socket.socket, wanted: str) -> str:
    """What came, as far as this."""
    heard = ""
    while wanted not in heard:
        data = connection.recv(65_536)
        assert data, f"the stream ended after {heard[-200:]!r}"
        heard += data.decode()
    return heard
