"""Access to the pages: hosts, origins, users and roles, guessing, forms, applications around them, and proxies."""

import base64
import logging
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.routing import Mount
from starlette.types import ASGIApp

from palermo.errors import SettingInvalid
from palermo.settings.settings import Settings
from palermo.webui import ANYONE, Role, User, create_app, pages
from palermo.webui.pages import sign_in
from palermo.webui.security.auth import FileAuthentication
from palermo.webui.security.user_file import UserFile, password_line, token_line, verify
from tests.helpers import eventually
from tests.inspector.jobs import failure, message, publish_failed
from tests.inspector.workflows import add_steps, step
from tests.webui.conftest import Serve
from tests.webui.scheduled_jobs import due, retrying, schedule
from tests.webui.server import CHEAP, Web


def changing() -> Iterator[tuple[str, str]]:
    """All methods and addresses that change something, with the name mail in each, but those for signing in and out."""
    for prefix, routers in (("", pages.ROUTERS), ("/api", pages.API)):
        for route in [route for router in routers if router is not sign_in.router for route in router.routes]:
            for method in sorted(getattr(route, "methods", None) or ()):
                if method not in ("GET", "HEAD", "OPTIONS"):
                    yield method, prefix + re.sub(r"\{[^}]*\}", "mail", getattr(route, "path", ""))


def basic(name: str, password: str) -> httpx.BasicAuth:
    return httpx.BasicAuth(name.encode(), password.encode())


ADA, EVE = basic("ada", "pässwörd"), basic("eve", "viewer's own")


@pytest.fixture
def web(shared_web: Web) -> Web:
    """One server for the module."""
    return shared_web


@pytest.fixture
def users(tmp_path: Path) -> tuple[Path, str]:
    """A file of users with one of each role, and the operator's token."""
    token, line = token_line("deploy", Role.OPERATOR)
    path = tmp_path / "users"
    passwords = (("eve", Role.VIEWER, "viewer's own"), ("ada", Role.ADMIN, "pässwörd"))
    lines = [*(password_line(*each, hasher=CHEAP) for each in passwords), line]
    path.write_text("# who may\n\n" + "\n".join(lines) + "\n")
    return path, token


@pytest.fixture
def guarded(settings: Settings, serve: Serve, users: tuple[Path, str]) -> Web:
    return serve(settings, users=str(users[0]))


@pytest.mark.parametrize(
    "headers",
    [
        {"Sec-Fetch-Site": "cross-site"},
        {"Sec-Fetch-Site": "same-site"},
        {"Origin": "https://evil.example"},
        {"Origin": "https://evil.example", "Sec-Fetch-Site": "same-origin"},
        {"Origin": "null"},
        {"Origin": "http://127.0.0.1:1"},
        {"Origin": "http://evil@{host}"},
        {"Cookie": "palermo_session=x"},  # a browser too old to say where a form comes from
    ],
    ids=str,
)
def test_a_form_of_another_site_is_refused_first(web: Web, headers: dict[str, str]) -> None:
    host = web.url.removeprefix("http://")
    headers = {name: value.format(host=host) for name, value in headers.items()}

    with httpx.Client(base_url=web.url, timeout=60) as browser:
        for method, path in changing():
            answer = browser.request(method, path, headers=headers, content=b"{not even JSON")

            assert (answer.status_code, "Sec-Fetch-Site" in answer.text) == (403, True), (method, path)


def test_our_own_pages_and_scripts_without_a_browser_may_change_things(web: Web) -> None:
    cookie = {"Cookie": "palermo_session=x"}

    for headers in ({"Sec-Fetch-Site": "same-origin", **cookie}, {"Origin": web.url, **cookie}, {}):
        answer = httpx.post(f"{web.url}/api/jobs", json={"job": "shop.mail"}, headers=headers, timeout=60)

        assert answer.status_code == 201, headers


def test_a_request_for_another_host_is_refused(web: Web) -> None:
    for host in (
        *("evil.example", "127.0.0.1.evil.example", "localhost.evil.example:80", "[", "a b", "[::1]x"),
        *("evil.example@127.0.0.1", "evil.example@127.0.0.1:3000", "x:y@localhost"),
    ):
        for path in ("/queues", "/api/queues", "/static/palermo.css", "/metrics"):
            assert web.http.get(path, headers={"Host": host}).status_code == 400, host


def test_loopback_by_any_of_its_names_and_configured_names_are_us(settings: Settings, serve: Serve) -> None:
    web = serve(settings, auth=ANYONE, hosts=["jobs.example.com", "*.test"])

    for host in ("localhost", "LocalHost:3000", "127.0.0.1:80", "[::1]:3000", "jobs.example.com", "a.test:81"):
        assert web.http.get("/queues", headers={"Host": host}).status_code == 200, host
    assert web.http.get("/queues", headers={"Host": "example.com"}).status_code == 400


def test_without_authentication_only_this_machine_is_let_in(settings: Settings, serve: Serve) -> None:
    def from_afar(app: Any) -> Any:
        async def moved(scope: Any, receive: Any, send: Any) -> None:
            await app({**scope, "client": ("192.0.2.7", 1)} if scope["type"] == "http" else scope, receive, send)

        return moved

    assert serve(settings, around=from_afar).http.get("/queues").status_code == 403


def test_each_role_may_do_what_it_may_with_the_right_password(guarded: Web, users: tuple[Path, str]) -> None:
    guarded.client.enqueue("shop.mail", queue="mail")
    bearer = {"Authorization": f"Bearer {users[1]}"}
    http = guarded.http

    for auth in (None, *map(basic, ("ada", "nobody", "eve", ""), ("wrong", "pässwörd", "pässwörd", ""))):
        for path in ("/queues", "/api/queues", "/api/docs", "/nothing"):
            answer = http.get(path, auth=auth)
            assert (answer.status_code, answer.headers["www-authenticate"][:6]) == (401, "Basic "), path
    assert http.get("/api/queues", auth=EVE).status_code == 200
    assert http.post("/api/queues/mail/pause", auth=EVE).status_code == 403
    assert http.post("/api/queues/mail/pause", headers=bearer).status_code == 200
    assert http.post("/api/queues/mail/purge", headers=bearer).status_code == 403
    assert http.post("/api/queues/mail/purge", auth=ADA).json() == {"removed": 1}


def test_a_wrong_file_of_users_shows_no_secret_when_refused(settings: Settings, tmp_path: Path) -> None:
    for text, said in (
        ("ada:boss:$argon2id$v=19$m=8,t=1,p=1$c29tZXNhbHQ$aGFzaA", "'boss' is not a role"),
        ("ada:admin:secret-in-clear", "the third part is not a hash"),
        *(("ada", "is not a role"), (":admin:x", "the name is empty"), ("# nobody", "has no users")),
    ):
        (tmp_path / "users").write_text(text)
        with pytest.raises(SettingInvalid, match=said) as refused:
            create_app(settings=settings, users=str(tmp_path / "users"))
        assert "secret-in-clear" not in str(refused.value)


def test_a_users_file_for_everybody_is_warned_of(users: tuple[Path, str], caplog: pytest.LogCaptureFixture) -> None:
    for mode, told in ((0o640, False), (0o600, False), (0o644, True)):
        users[0].chmod(mode)
        UserFile(str(users[0]))
        lines = [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]
        assert [("chmod 600" in line, str(users[0]) in line) for line in lines] == [(True, True)] * told, mode


@pytest.mark.parametrize("read_only", [False, True], ids=["viewer", "read-only"])
def test_readers_change_nothing(settings: Settings, serve: Serve, users: tuple[Path, str], read_only: bool) -> None:
    web = serve(settings, **({"read_only": True} if read_only else {"users": str(users[0])}))
    web.http.auth = EVE
    web.client.enqueue("shop.mail", queue="mail")
    publish_failed(web.client, (message("bad", queue="slow"), failure()))
    schedule(web.client, due("later", 900), retrying("again", 900))
    web.inspector.recurring.put("nightly", "shop.sweep", every=3_600)
    web.client.run(lambda broker: add_steps(broker, step("approved", signal=True)))

    asked = list(changing())
    statuses = []
    for method, path in asked:
        sent: dict[str, Any] = {"json": {"job": "shop.mail"}} if path.startswith("/api") else {"data": {}}
        statuses.append(web.http.request(method, path, **(sent if method != "DELETE" else {})).status_code)
        # A body that means nothing may be refused first.
        assert statuses[-1] in (403, 404, 422), (method, path)
    assert statuses.count(403) > 30
    for action, body in (("retry", None), ("signal", {"name": "approved"})):
        assert web.http.post(f"/api/workflows/w1/{action}", json=body).status_code == 403
    for path in ("/queues", "/failures", "/scheduled", "/retries", "/recurring", "/recurring/nightly", "/workers"):
        assert '<form method="post"' not in web.http.get(path).text, path
    for path in ("/queues/mail", "/jobs/bad", "/jobs/later", "/jobs/again", "/workflows/w1"):
        page = web.http.get(path)
        offers = ('<form method="post"', 'name="id"', "Send signal")
        assert (page.status_code, [offer for offer in offers if offer in page.text]) == (200, [])
    assert web.http.get("/enqueue").status_code == 403
    assert len(asked) > 70
    known = web.inspector
    assert (known.queues.size("mail"), len(known.failed.list()), len(known.scheduled.list())) == (1, 1, 2)
    assert known.workflows.show("w1")["waits_for"] == ["approved"]


def test_the_api_takes_changes_as_json_only(web: Web) -> None:
    for kind in ("text/plain", "application/x-www-form-urlencoded", "multipart/form-data; boundary=x", ""):
        answer = web.http.post("/api/jobs", content=b'{"job": "shop.mail"}', headers={"Content-Type": kind})
        assert (answer.status_code, "application/json" in answer.json()["error"]) == (415, True), kind


def test_every_answer_says_what_browsers_may_do_with_it(web: Web) -> None:
    for path in (
        *("/queues", "/nothing", "/static/palermo.css", "/healthz", "/api/docs"),
        *("/api/queues", "/api/queues/%3Cscript%3E/jobs", "/api/jobs/%3Cscript%3E", "/api/%3Cscript%3E"),
    ):
        headers = web.http.get(path).headers

        policy = headers["content-security-policy"]
        assert "unsafe" not in policy
        assert "default-src 'none'" in policy
        assert headers["x-content-type-options"] == "nosniff"
        assert headers["x-frame-options"] == "DENY"
        assert not path.startswith("/api") or path == "/api/docs" or headers["content-type"] == "application/json"
    assert web.http.get("/queues", headers={"Host": "evil.example"}).headers["x-frame-options"] == "DENY"


def test_a_broker_that_is_away_is_named_without_its_password(serve: Serve) -> None:
    web = serve(Settings(url="amqp://shop:hunter22@127.0.0.1:1/shop", publish_timeout=0.2))

    full = "127.0.0.1:1/shop/palermo"
    for path, status, place in (("/queues", 503, full), ("/problems", 200, full), ("/stats.txt", 503, full[:11])):
        eventually(lambda path=path, place=place: place in web.http.get(path).text)
        page = web.http.get(path)
        assert (page.status_code, "<html" in page.text) == (status, path != "/stats.txt")
        assert "hunter22" not in page.text


async def test_only_a_correct_password_is_remembered(users: tuple[Path, str], monkeypatch: pytest.MonkeyPatch) -> None:
    authenticate, hashed = FileAuthentication(str(users[0])), []
    monkeypatch.setattr("palermo.webui.security.auth.verify", lambda *each: (hashed.append(each), verify(*each))[1])

    async def ask(password: str) -> User | None:
        headers = [(b"authorization", b"Basic " + base64.b64encode(f"ada:{password}".encode()))]
        return await authenticate(Request({"type": "http", "headers": headers}))

    assert [await ask("pässwörd") for _ in range(3)] == [User("ada", Role.ADMIN)] * 3
    assert len(hashed) == 1
    assert [await ask("guess") for _ in range(3)] == [None] * 3
    assert len(hashed) == 4


def in_starlette(app: ASGIApp) -> ASGIApp:
    return Starlette(routes=[Mount("/ops/jobs", app)])


def by_hand(app: ASGIApp) -> ASGIApp:
    """As a dispatcher beside Django's ASGI application does it."""

    async def dispatch(scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] == "http":
            assert scope["path"].startswith("/ops/jobs/")
            scope = {**scope, "root_path": "/ops/jobs"}
        await app(scope, receive, send)

    return dispatch


def check_whole(web: Web, root: str, seen: str, **headers: str) -> None:
    """Pages, files, forms and API work below `root`, and lead to what the browser sees as `seen`."""
    web.client.enqueue("shop.mail", queue="a/b")
    web.http.headers.update(headers)

    page = web.http.get(f"{root}/queues/a%2Fb").text

    assert f'action="{seen}/queues/a%2Fb/purge"' in page
    assert f'href="{seen}/static/palermo.css?v=' in page
    assert web.http.get(f"{root}/static/palermo.css").status_code == 200
    assert web.http.get(f"{root}/api/openapi.json").json()["servers"] == [{"url": seen or "/"}]
    assert web.http.get(f"{root}/api/queues/a%2Fb/jobs").json()["total"] == 1
    assert web.http.get(f"{root}/healthz").status_code == 200
    done = web.http.post(f"{root}/queues/a%2Fb/purge")
    assert (done.status_code, done.headers["location"]) == (303, f"{seen}/queues/a%2Fb")


@pytest.mark.parametrize(
    ("options", "root", "seen"),
    [
        ({"around": in_starlette}, "/ops/jobs", "/ops/jobs"),
        ({"around": by_hand}, "/ops/jobs", "/ops/jobs"),
        ({"prefix": "/ops/jobs"}, "", "/ops/jobs"),
        ({"around": in_starlette, "prefix": "/x"}, "/ops/jobs", "/ops/jobs/x"),
    ],
    ids=["Starlette", "by hand", "a proxy that strips a prefix", "an application behind a proxy"],
)
def test_it_works_at_any_path(settings: Settings, serve: Serve, options: dict[str, Any], root: str, seen: str) -> None:
    check_whole(serve(settings, **options), root, seen)


@pytest.mark.slow
def test_a_proxy_says_what_it_strips_where_it_is_trusted_and_that_is_a_path(settings: Settings, serve: Serve) -> None:
    untrusted, web = serve(settings, auth=ANYONE), serve(settings, trust_proxy=True, auth=ANYONE)
    check_whole(web, "", "/ops/jobs", **{"X-Forwarded-Prefix": "/ops/jobs"})

    for prefix in ("//evil.example", "https://evil.example", '/"><script>', "/a/../b", "evil"):
        page = web.http.get("/queues", headers={"X-Forwarded-Prefix": prefix}).text
        assert 'href="/static/palermo.css' in page, prefix
    for name, value in (("Prefix", "/evil"), ("Host", "evil.example"), ("Proto", "https")):
        page = untrusted.http.get("/queues", headers={f"X-Forwarded-{name}": value}).text
        assert 'href="/static/palermo.css' in page
        paused = untrusted.http.post("/queues/pause", headers={f"X-Forwarded-{name}": value})
        assert "Secure" not in paused.headers["set-cookie"]


def test_a_trusted_proxy_names_the_visitor(settings: Settings, serve: Serve, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "palermo.audit")
    web = serve(settings, trust_proxy=True, auth=ANYONE, hosts=["jobs.example.com"])

    assert "Secure" in web.http.post("/queues/pause", headers={"X-Forwarded-Proto": "https"}).headers["set-cookie"]
    assert web.http.get("/queues", headers={"X-Forwarded-Host": "evil.example"}).status_code == 400
    assert web.http.post("/api/queues/none/purge", headers={"X-Forwarded-For": "127.0.0.1, 192.0.2.7"}).is_error
    assert "from=192.0.2.7" in caplog.text
    web.http.headers.update({"X-Forwarded-Host": "jobs.example.com", "X-Forwarded-Proto": "https"})
    assert "curl https://jobs.example.com/api/queues" in web.http.get("/api/docs").text
