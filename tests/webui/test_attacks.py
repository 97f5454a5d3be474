"""Attacks on the pages: markup in jobs, paths, sizes, forged identities, guessing."""

import asyncio
import base64
import socket
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import quote

import pytest
from msgspec.structs import replace
from starlette.requests import Request

from palermo.contract.events import Subscription
from palermo.settings.settings import Settings
from palermo.webui import Role, User
from palermo.webui.security.auth import CLIENT, FileAuthentication, Throttle
from palermo.webui.security.request import MAX_BODY
from palermo.webui.security.user_file import password_line
from tests.inspector.jobs import failure, message, publish, publish_failed
from tests.webui.conftest import BROKER_PATIENCE, Serve
from tests.webui.scheduled_jobs import due, retrying, schedule
from tests.webui.server import CHEAP, Web

_XSS = "\"><script>alert(1)</script><img src=x onerror=alert(2)>'{{7*7}}"


@pytest.fixture
def web(shared_web: Web) -> Web:
    """One server for the module."""
    return shared_web


@pytest.fixture(scope="module")
def marked(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Web]:
    """Pages of jobs in all states whose every text is markup."""
    url = f"sqlite:///{tmp_path_factory.mktemp('marked')}/jobs.db"
    texts = {"job": _XSS, "preview": _XSS, "content_type": _XSS}
    trace = f'Traceback\n  File "{_XSS}", line 1, in {_XSS}\n{_XSS}: {_XSS}\n'
    with Web(Settings(url=url, publish_timeout=BROKER_PATIENCE)) as web:
        reason = replace(failure(_XSS, _XSS), stack_trace=trace)
        publish_failed(web.client, (message("bad", _XSS, **texts), reason), (message(f"1{_XSS}", **texts), reason))
        publish(web.client, message(f"2{_XSS}", _XSS, queue=_XSS, **texts), message("3", tenant=_XSS, **texts))
        web.client.enqueue("shop.mail", [_XSS], {_XSS: _XSS}, queue="mail", id=f"4{_XSS}")
        schedule(web.client, due(f"5{_XSS}", 900, _XSS, queue=_XSS, **texts), retrying("6", 900, queue=_XSS, **texts))
        web.inspector.put_recurring(_XSS, _XSS, every=3_600, args=[_XSS], queue=_XSS.replace("*", "x"))
        topics = Subscription(group=f"g{_XSS}", queue=f"palermo_g{_XSS}", topics=(f"o.{_XSS}",), function=_XSS)
        web.client.run(lambda broker: broker.events.subscribe(topics))
        yield web


@pytest.mark.parametrize(
    "path",
    [
        *(
            "/",
            "/queues",
            "/queues/mail",
            "/queues/{}",
            "/api/docs",
            "/{}",
            "/tenants?queue=mail",
            "/topics",
            "/classes",
        ),
        *("/problems", "/history", "/audit", "/search?q={}", "/recurring", "/recurring?ask=add", "/recurring?ask={}"),
        *("/recurring/{}", "/recurring/{}?ask=edit", "/classes/{}", "/scheduled", "/retries"),
        "/scheduled?queue={}&job={}&retries=yes",
        *("/scheduled/confirm?act=cancel&id=5{}", "/scheduled/confirm?act=cancel&all=1&queue={}"),
        *("/retries/confirm?act=retry&id=6", "/jobs/bad", "/jobs/2{}?queue={}", "/jobs/4{}", "/jobs/5{}", "/jobs/6"),
        *("/failures", "/failures?by=groups", "/failures?text={}&queue={}&since=", "/failures/bad/edit"),
        *("/failures/confirm?act=discard&id=1{}", "/failures/1{}/edit"),
    ],
)
def test_markup_in_any_field_is_text_on_every_page(marked: Web, path: str) -> None:
    page = marked.http.get(path.replace("{}", quote(_XSS, safe="")))

    assert page.status_code == (404 if path == "/{}" else 200), page.text
    assert page.headers["content-type"].startswith("text/html")
    assert "<script>alert" not in page.text
    assert "<img" not in page.text


def test_jobs_whose_ids_are_markup_can_be_acted_on(marked: Web) -> None:
    for page, to, act, id in (
        ("/failures", "/failures/act", "discard", f"1{_XSS}"),
        ("/scheduled", "/scheduled/act", "cancel", f"5{_XSS}"),
    ):
        assert marked.form(page, to, act=act, id=id, number="1").status_code == 200
    marked.form("/recurring", f"/recurring/{quote(_XSS, safe='')}/remove")

    assert [row["id"] for row in marked.inspector.failed()] == ["bad"]
    assert [row["id"] for row in marked.inspector.scheduled()] == ["6"]
    assert marked.inspector.recurring() == []


@pytest.mark.parametrize("path", ["/api/queues/%3Cscript%3E/jobs", "/api/jobs/%3Cscript%3E", "/api/%3Cscript%3E"])
def test_the_api_never_answers_with_markup(web: Web, path: str) -> None:
    answer = web.http.get(path)

    assert answer.headers["content-type"] == "application/json"
    assert answer.headers["x-content-type-options"] == "nosniff"


@pytest.mark.parametrize(
    "path",
    [
        "/static/../app.py",
        "/static/..%2Fapp.py",
        "/static/%2e%2e/app.py",
        "/static/%2e%2e%2fapp.py",
        "/static/..%5capp.py",
        "/static//etc/passwd",
        "/static/%2Fetc%2Fpasswd",
        "/static/..%252f..%252fpyproject.toml",
        "/static/%00",
        "/static/",
        "/static",
    ],
)
def test_no_path_leads_out_of_the_packaged_files(web: Web, path: str) -> None:
    assert status(web, f"GET {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n") in (400, 404)


@pytest.mark.parametrize("query", ["limit=501", "limit=0", "limit=-1", "limit=x", "page=0", f"page={10**20}"])
def test_pages_are_of_a_bounded_size(web: Web, query: str) -> None:
    web.client.enqueue("shop.mail", queue="mail")

    assert web.http.get(f"/api/queues/mail/jobs?{query}").status_code == 422


def test_pages_lead_a_bounded_way_into_a_queue(web: Web) -> None:
    web.client.enqueue("shop.mail", queue="mail")

    assert web.http.get("/api/queues/mail/jobs?limit=500&page=20").json()["rows"] == []
    assert web.http.get("/api/queues/mail/jobs?limit=500&page=21").status_code == 422


def test_bodies_are_of_a_bounded_size_whether_they_say_so_or_not(web: Web) -> None:
    json = {"Content-Type": "application/json"}
    chunks = (b"x" * 65_536 for _ in range(MAX_BODY // 65_536 + 2))

    assert web.http.post("/api/jobs", content=b"x" * (MAX_BODY + 1), headers=json).status_code == 413
    assert web.http.post("/api/jobs", content=chunks, headers=json).status_code == 413


def test_addresses_and_headers_are_of_a_bounded_size(web: Web) -> None:
    assert web.http.get(f"/queues?{'x' * 9_000}").status_code == 414
    assert web.http.get("/queues", headers={f"X-{n}": "x" * 1_000 for n in range(70)}).status_code in (400, 431)


@pytest.mark.parametrize(
    "content",
    [b"[" * 100_000, b'{"job": "a", "args": ' + b"[" * 5_000 + b"]" * 5_000 + b"}", b"\xff", b"", b"null", b"NaN"],
)
def test_bodies_that_are_no_job_are_refused(web: Web, content: bytes) -> None:
    answer = web.http.post("/api/jobs", content=content, headers={"Content-Type": "application/json"})

    assert 400 <= answer.status_code < 500
    assert "error" in answer.json()


@pytest.mark.parametrize("path", ["/api/queues/%FF/jobs", "/queues/%C3%28"])
def test_an_address_that_is_no_text_is_refused(web: Web, path: str) -> None:
    assert web.http.get(path).status_code == 400


def test_saying_that_one_is_an_administrator_makes_nobody_one(settings: Settings, serve: Serve, tmp_path: Path) -> None:
    (tmp_path / "users").write_text(password_line("eve", Role.VIEWER, "viewer's own", hasher=CHEAP))
    web = serve(settings, users=str(tmp_path / "users"))
    web.client.enqueue("shop.mail", queue="mail")
    forged = {
        "X-Role": "admin",
        "X-User": "ada",
        "X-Forwarded-For": "127.0.0.1",
        "Cookie": "role=admin",
    }

    for headers in (forged, {**forged, "Authorization": f"Bearer {base64.b64encode(b'ada:admin').decode()}"}):
        assert web.http.get("/api/queues", headers=headers).status_code == 401
    for query, refusal in (("", 403), ("?role=admin", 422)):
        answer = web.http.post(f"/api/queues/mail/purge{query}", headers=forged, auth=("eve", "viewer's own"))
        assert answer.status_code == refusal
    assert web.inspector.size("mail") == 1


@pytest.fixture
def _a_moment(monkeypatch: pytest.MonkeyPatch) -> None:
    """No time passes for those who guess: a machine that stands still for a second would let them guess again."""
    monkeypatch.setattr("palermo.webui.security.auth.Throttle", lambda _: Throttle(lambda: 100.0))


@pytest.mark.usefixtures("_a_moment")
def test_guessing_passwords_is_slowed(settings: Settings, serve: Serve, tmp_path: Path) -> None:
    (tmp_path / "users").write_text(password_line("ada", Role.ADMIN, "correct horse", hasher=CHEAP))
    web = serve(settings, users=str(tmp_path / "users"))

    answers = [web.http.get("/api/queues", auth=("ada", f"guess {n}")) for n in range(8)]

    assert [answer.status_code for answer in answers[:5]] == [401] * 5
    assert answers[-1].status_code == 429
    assert int(answers[-1].headers["retry-after"]) >= 1
    assert web.http.get("/api/queues", auth=("ada", "correct horse")).status_code == 429


@pytest.mark.usefixtures("_a_moment")
def test_a_signed_in_user_is_not_locked_out_by_others(settings: Settings, serve: Serve, tmp_path: Path) -> None:
    (tmp_path / "users").write_text(password_line("ada", Role.ADMIN, "correct horse", hasher=CHEAP))
    web = serve(settings, users=str(tmp_path / "users"))
    assert web.http.get("/api/queues", auth=("ada", "correct horse")).status_code == 200

    guesses = [web.http.get("/api/queues", auth=("ada", f"guess {n}")).status_code for n in range(8)]

    assert guesses[-1] == 429
    assert web.http.get("/api/queues", auth=("ada", "correct horse")).status_code == 200


def test_right_passwords_are_never_slowed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("palermo.webui.security.auth._CACHED", 0.0)
    (tmp_path / "users").write_text(password_line("ada", Role.ADMIN, "correct horse", hasher=CHEAP))
    authenticate = FileAuthentication(str(tmp_path / "users"))
    header = b"Basic " + base64.b64encode(b"ada:correct horse")

    async def sign_in_from(address: str) -> User | None:
        return await authenticate(Request({"type": "http", "headers": [(b"authorization", header)], CLIENT: address}))

    async def sign_in_from_many() -> list[User | None]:
        return [await sign_in_from(f"10.0.{n // 100}.{n % 100}") for n in range(102)]

    assert asyncio.run(sign_in_from_many()) == [User("ada", Role.ADMIN)] * 102


def test_a_sign_in_gives_others_no_new_guesses() -> None:
    throttle = Throttle(lambda: 100.0)
    for _ in range(4):
        throttle.failed("name ada")

    throttle.failed("name ada")
    throttle.take_back("name ada")

    assert (throttle.wait("name ada", 4), throttle.wait("name ada", 5)) == (1, 0)


def test_waiting_doubles_with_each_failure_up_to_a_minute() -> None:
    now = 100.0
    throttle = Throttle(lambda: now)
    waits = []

    for _ in range(13):
        waits.append(throttle.wait("ada", 5))
        throttle.failed("ada")

    assert waits == [0, 0, 0, 0, 0, 1, 2, 4, 8, 16, 32, 60, 60]


def test_failures_are_forgotten_in_time_and_when_there_are_too_many() -> None:
    now = [0.0]
    throttle = Throttle(lambda: now[0])
    for name in ("ada", *(f"name {n}" for n in range(10_000))):
        throttle.failed(name)

    assert throttle.wait("ada", 0) == 0
    assert throttle.wait("name 9999", 0) > 0
    now[0] = 901
    assert throttle.wait("name 9999", 0) == 0


def status(web: Web, request: str) -> int:
    """The status that a request has which no HTTP client would make."""
    address = web.url.removeprefix("http://").split(":")
    with socket.create_connection((address[0], int(address[1])), timeout=60) as connection:
        connection.sendall(request.encode())
        return int(connection.makefile("rb").readline().split()[1])
