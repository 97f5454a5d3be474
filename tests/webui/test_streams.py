"""Many pages at once: streams that tell them of changes, users who may look no more, and a broker that is frozen."""

import base64
import re
import socket
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from html import escape
from pathlib import Path

import httpx
import pytest
from msgspec.structs import replace
from starlette.types import ASGIApp, Receive, Scope, Send

from palermo.errors import BrokerUnavailable
from palermo.inspector.inspector import Inspector
from palermo.inspector.rates import Snapshot
from palermo.settings.settings import Settings
from palermo.webui import Role, tuning
from palermo.webui.security.user_file import password_line, token_line
from palermo.webui.state.refreshing import Refreshing
from tests.helpers import HANGS, eventually
from tests.tcp_proxy import TcpProxy
from tests.webui.conftest import Serve, Start
from tests.webui.process import has_ended
from tests.webui.server import CHEAP, Web

#: Asks for a stream on a connection of its own, which ends with the test.
Ask = Callable[..., socket.socket]


@pytest.fixture
def ask() -> Iterator[Ask]:
    with ExitStack() as stack:

        def ask(url: str, authorization: str = "", path: str = "/live?every=1") -> socket.socket:
            host, _, port = url.removeprefix("http://").partition(":")
            connection = stack.enter_context(socket.create_connection((host, int(port)), timeout=60))
            head = f"GET {path} HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n"
            connection.send(f"{head}Authorization: {authorization}\r\n\r\n".encode())
            return connection

        yield ask


def status_of(connection: socket.socket) -> str:
    return connection.recv(12).decode().partition(" ")[2]


def until(connection: socket.socket, wanted: str) -> str:
    """What came, as far as this."""
    heard = ""
    while wanted not in heard:
        data = connection.recv(65_536)
        assert data, f"the stream ended after {heard[-200:]!r}"
        heard += data.decode()
    return heard


def test_a_stream_ends_with_its_user_or_their_role(settings: Settings, serve: Serve, ask: Ask, tmp_path: Path) -> None:
    users = tmp_path / "users"
    lines = {name: password_line(name, Role.VIEWER, "a password", hasher=CHEAP) for name in ("eve", "joe", "ada")}
    token, lines["deploy"] = token_line("deploy", Role.OPERATOR)
    users.write_text("\n".join(lines.values()))
    url = serve(settings, users=str(users)).url
    basic = {name: f"Basic {base64.b64encode(f'{name}:a password'.encode()).decode()}" for name in lines}
    opened = {name: ask(url, basic[name]) for name in ("eve", "joe", "ada")} | {"deploy": ask(url, f"Bearer {token}")}
    assert {status_of(connection) for connection in opened.values()} == {"200"}

    users.write_text("\n".join([lines["joe"].replace(":viewer:", ":operator:"), lines["ada"]]))

    for name in ("eve", "joe", "deploy"):
        eventually(lambda name=name: has_ended(opened[name]), every=0.2)  # type: ignore[misc]
    assert not has_ended(opened["ada"])


@pytest.mark.parametrize(
    ("page", "events"),
    [
        ("/queues", "/live"),
        ("/history", "/live?of=history"),
        ("/jobs/a", "/live?of=job&id=a"),
        ("/recurring", "/live?of=recurring"),
        ("/scheduled?filter=queue:mail&page=2", "/live?of=scheduled&filter=queue%3Amail&page=2"),
    ],
)
def test_the_stream_of_a_page_tells_at_once_of_what_it_missed(served: Web, ask: Ask, page: str, events: str) -> None:
    served.client.enqueue("shop.mail", queue="mail", id="a")
    shown = eventually(lambda: answer if (answer := served.http.get(page)).status_code == 200 else None)

    assert re.findall(r'data-events="([^"]*)"', shown.text) == [escape(events)]
    assert until(ask(served.url, path=events), "event: change").count("event: hello") == 1


@pytest.mark.slow
def test_a_change_of_a_list_is_told_at_two_looks(web: Web, ask: Ask) -> None:
    stream = ask(web.url, path="/live?of=recurring&every=1")

    # The first look may be followed by one at a worker or a queue that was not seen yet.
    assert until(stream, ": \n\n").count("event: change") >= 2
    web.inspector.recurring.put("sweep", "shop.sweep", every=3_600)
    assert until(stream, ": \n\n").count("event: change") >= 2


@pytest.mark.slow
def test_a_page_is_told_when_an_absent_broker_is_back(web: Web, ask: Ask, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also if nothing has changed there, and if the pages have shown what was known last meanwhile."""
    monkeypatch.setattr(tuning, "GLANCE", 0.0)
    is_back, snapshot = threading.Event(), Inspector.snapshot
    assert web.http.get("/queues").status_code == 200  # there is a state to show while the broker is away
    stream = ask(web.url)
    until(stream, ": \n\n")

    def away(inspector: Inspector) -> Snapshot:
        if not is_back.is_set():
            raise BrokerUnavailable("no broker")
        return snapshot(inspector)

    monkeypatch.setattr(Inspector, "snapshot", away)
    eventually(lambda: "no broker" in web.http.get("/queues").text)
    until(stream, ": \n\n")
    is_back.set()

    assert any("event: change" in until(stream, "\n\n") for _ in range(20))
    eventually(lambda: "no broker" not in web.http.get("/queues").text)


@pytest.mark.slow
def test_a_hundred_streams_get_changes_and_leave_room_for_pages(start: Start, ask: Ask) -> None:
    web = start()
    asked = [ask(web.url, f"Bearer {web.token}") for _ in range(tuning.THREADS + 30)]
    statuses = [status_of(connection) for connection in asked]
    opened = [connection for connection, status in zip(asked, statuses, strict=True) if status == "200"]

    assert sorted(statuses) == ["200"] * tuning.THREADS + ["503"] * 30
    for connection in opened:
        until(connection, "event: change")
    assert web.http.get("/queues").status_code == 200
    assert web.http.post("/api/jobs", json={"job": "shop.mail", "queue": "mail"}).status_code == 201
    for connection in opened:
        until(connection, "event: change")
        connection.close()

    def room() -> bool:
        with httpx.stream("GET", f"{web.url}/live", headers=web.http.headers, timeout=60) as answer:
            return answer.status_code == 200

    eventually(room, every=0.5)


#: Addresses that ask the broker each time.
PAGES = ("/tenants", "/api/queues")

#: Seconds that a page waits for the broker.
PATIENCE = 15.0


def test_all_that_wait_for_the_same_answer_hear_its_error() -> None:
    came, asked, go_on = list[int](), list[int](), threading.Event()

    def make() -> None:
        asked.append(1)
        go_on.wait(HANGS)
        raise BrokerUnavailable("no broker")

    def get(nth: int) -> None:
        came.append(nth)
        with pytest.raises(BrokerUnavailable):
            cached.get()

    cached = Refreshing(make, fresh=60.0)
    with ThreadPoolExecutor(20) as readers:
        answers = readers.map(get, range(20))
        eventually(lambda: len(came) == 20)
        go_on.set()
        list(answers)
    # One that comes after the error asks again.
    assert len(asked) < 20


@pytest.mark.slow
def test_pages_say_that_the_broker_does_not_answer(
    proxied: tuple[TcpProxy, Settings], serve: Serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tuning, "PATIENCE", 0.1)
    came = list[str]()

    def around(app: ASGIApp) -> ASGIApp:
        async def counted(scope: Scope, receive: Receive, send: Send) -> None:
            came.append(scope["type"])
            await app(scope, receive, send)

        return counted

    proxy, settings = proxied
    web = serve(replace(settings, publish_timeout=PATIENCE), around=around)
    assert web.http.get("/healthz").status_code == 200
    assert [web.http.get(page).status_code for page in PAGES] == [200] * len(PAGES)
    proxy.stall(new_too=True)
    before = len(came)
    with ThreadPoolExecutor(tuning.THREADS) as visitors:
        asked = [visitors.submit(web.http.get, PAGES[n % len(PAGES)], timeout=6 * PATIENCE) for n in range(60)]
        eventually(lambda: len(came) >= before + len(asked))

        file = web.http.get("/static/palermo.css")
        health = [eventually(lambda: web.http.get("/healthz").status_code == 503) for _ in range(2)]

        assert (file.status_code, health) == (200, [True, True])
        assert not any(each.done() for each in asked), "they waited for the pages"
        answers = [each.result() for each in asked]
    assert {answer.status_code for answer in answers} == {503}
    assert all(re.search("did not answer within|stopped answering|before the login", each.text) for each in answers)
