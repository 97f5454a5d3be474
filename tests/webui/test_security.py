"""Access to the pages: hosts, origins, authentication, roles, read-only, tokens, sizes."""

import logging
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response

from palermo.errors import SettingInvalid
from palermo.settings.settings import Settings
from palermo.webui import ANYONE, Role, User, api, create_app, pages
from palermo.webui.pages import sign_in
from palermo.webui.security.user_file import password_line, token_line
from tests.inspector.jobs import failure, message, publish_failed
from tests.webui.conftest import Serve
from tests.webui.scheduled_jobs import due, retrying, schedule
from tests.webui.server import CHEAP, Web

_CHANGES = [
    ("POST", "/api/queues/mail/purge"),
    ("POST", "/api/queues/purge"),
    ("POST", "/api/queues/mail/pause"),
    ("POST", "/api/queues/mail/resume"),
    ("DELETE", "/api/queues/mail"),
    ("POST", "/api/jobs"),
    ("POST", "/api/jobs/some/cancel"),
    ("POST", "/api/workers/some/stop"),
    ("POST", "/queues/mail/purge"),
]


@pytest.fixture
def web(shared_web: Web) -> Web:
    """One server for the module."""
    return shared_web


@pytest.fixture
def users(tmp_path: Path) -> tuple[Path, str]:
    """A file of users with one of each role, and the operator's token."""
    token, line = token_line("deploy", Role.OPERATOR)
    path = tmp_path / "users"
    lines = [
        password_line("eve", Role.VIEWER, "viewer's own", hasher=CHEAP),
        password_line("ada", Role.ADMIN, "pässwörd", hasher=CHEAP),
        line,
    ]
    path.write_text("# who may\n\n" + "\n".join(lines) + "\n")
    return path, token


@pytest.fixture
def guarded(settings: Settings, serve: Serve, users: tuple[Path, str]) -> Web:
    return serve(settings, users=str(users[0]))


@pytest.mark.parametrize(("method", "path"), _CHANGES)
@pytest.mark.parametrize(
    "headers",
    [
        {"Sec-Fetch-Site": "cross-site"},
        {"Sec-Fetch-Site": "same-site"},
        {"Origin": "https://evil.example"},
        {"Origin": "null"},
        {"Origin": "http://127.0.0.1:1"},
        {"Referer": "https://evil.example/page"},
    ],
    ids=str,
)
def test_a_form_of_another_site_is_refused_first(web: Web, method: str, path: str, headers: dict[str, str]) -> None:
    answer = web.http.request(method, path, headers=headers, content=b"{not even JSON")

    assert answer.status_code == 403
    assert "only these pages may" in answer.text


def test_our_own_pages_and_scripts_without_a_browser_may_change_things(web: Web) -> None:
    for headers in ({"Sec-Fetch-Site": "same-origin"}, {"Origin": web.url}, {"Referer": f"{web.url}/queues"}, {}):
        answer = web.http.post("/api/jobs", json={"job": "shop.mail"}, headers=headers)

        assert answer.status_code == 201, headers


@pytest.mark.parametrize("host", ["evil.example", "127.0.0.1.evil.example", "localhost.evil.example:80", "[", "a b"])
def test_a_request_for_another_host_is_refused(web: Web, host: str) -> None:
    for path in ("/queues", "/api/queues", "/static/palermo.css"):
        assert web.http.get(path, headers={"Host": host}).status_code == 400


def test_loopback_by_any_of_its_names_is_us(web: Web) -> None:
    for host in ("localhost", "LocalHost:3000", "127.0.0.1:80", "[::1]:3000"):
        assert web.http.get("/api/queues", headers={"Host": host}).status_code == 200


def test_configured_names_are_us_too(settings: Settings, serve: Serve) -> None:
    web = serve(settings, auth=ANYONE, hosts=["jobs.example.com", "*.test"])

    assert web.http.get("/queues", headers={"Host": "jobs.example.com"}).status_code == 200
    assert web.http.get("/queues", headers={"Host": "a.test:81"}).status_code == 200
    assert web.http.get("/queues", headers={"Host": "example.com"}).status_code == 400


def test_without_authentication_only_this_machine_is_let_in(settings: Settings, serve: Serve) -> None:
    def from_afar(app: Any) -> Any:
        async def moved(scope: Any, receive: Any, send: Any) -> None:
            await app({**scope, "client": ("192.0.2.7", 1)} if scope["type"] == "http" else scope, receive, send)

        return moved

    assert serve(settings, around=from_afar).http.get("/queues").status_code == 403


@pytest.mark.parametrize("auth", [None, ("ada", "wrong"), ("nobody", "pässwörd"), ("eve", "pässwörd"), ("", "")])
def test_nobody_gets_in_without_the_right_password(guarded: Web, auth: tuple[str, str] | None) -> None:
    for path in ("/queues", "/api/queues", "/api/docs", "/nothing"):
        answer = guarded.http.get(path, auth=_utf8(auth) if auth else None)

        assert answer.status_code == 401
        assert answer.headers["www-authenticate"].startswith("Basic ")


def test_each_role_may_do_what_it_may(guarded: Web, users: tuple[Path, str]) -> None:
    guarded.client.enqueue("shop.mail", queue="mail")
    bearer = {"Authorization": f"Bearer {users[1]}"}
    ada, eve = _utf8(("ada", "pässwörd")), _utf8(("eve", "viewer's own"))
    http = guarded.http

    assert http.get("/api/queues", auth=eve).status_code == 200
    assert http.post("/api/queues/mail/pause", auth=eve).status_code == 403
    assert http.post("/api/queues/mail/pause", headers=bearer).status_code == 200
    assert http.post("/api/queues/mail/purge", headers=bearer).status_code == 403
    assert http.post("/api/queues/mail/purge", auth=ada).json() == {"removed": 1}


def test_users_who_are_taken_out_of_the_file_are_out_at_once(guarded: Web, users: tuple[Path, str]) -> None:
    eve = _utf8(("eve", "viewer's own"))
    assert guarded.http.get("/api/queues", auth=eve).status_code == 200

    users[0].write_text(token_line("other", Role.VIEWER)[1])

    assert guarded.http.get("/api/queues", auth=eve).status_code == 401


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("ada:boss:$argon2id$v=19$m=8,t=1,p=1$c29tZXNhbHQ$aGFzaA", "'boss' is no role"),
        ("ada:admin:secret-in-clear", "the third part is no hash"),
        ("ada", "is no role"),
        (":admin:x", "the name is empty"),
        ("# nobody", "holds no user"),
    ],
)
def test_a_file_of_users_that_is_wrong_is_refused_without_showing_secrets(
    settings: Settings, tmp_path: Path, text: str, said: str
) -> None:
    (tmp_path / "users").write_text(text)

    with pytest.raises(SettingInvalid, match=said) as refused:
        create_app(settings=settings, users=str(tmp_path / "users"))

    assert "secret-in-clear" not in str(refused.value)


def test_nothing_can_be_changed_when_read_only(settings: Settings, serve: Serve) -> None:
    web = serve(settings, read_only=True)
    web.client.enqueue("shop.mail", queue="mail")
    publish_failed(web.client, (message("bad", queue="slow"), failure()))
    schedule(web.client, due("later", 900), retrying("again", 900))
    web.inspector.put_recurring("nightly", "shop.sweep", every=3_600)

    for path, method in [*_changing(), *((path, method) for method, path in _CHANGES)]:
        sent: dict[str, Any] = {"json": {"job": "shop.mail"}} if path.startswith("/api") else {"data": {}}
        status = web.http.request(method, path, **(sent if method != "DELETE" else {})).status_code
        assert status in ((403,) if (method, path) in _CHANGES else (403, 404, 422)), (method, path, status)
    for path in ("/queues", "/failures", "/scheduled", "/retries", "/recurring", "/recurring/nightly", "/workers"):
        assert '<form method="post"' not in web.http.get(path).text, path
    for path in ("/queues/mail", "/jobs/bad", "/jobs/later", "/jobs/again"):
        page = web.http.get(path)
        assert (page.status_code, '<form method="post"' in page.text, 'name="id"' in page.text) == (200, False, False)
    assert web.http.get("/enqueue").status_code == 403
    assert web.inspector.size("mail") == 1


def test_a_host_application_says_who_it_is(settings: Settings, serve: Serve) -> None:
    async def auth(request: Request) -> User | Response | None:
        match request.headers.get("x-session"):
            case "ada":
                return User("ada", Role.ADMIN)
            case "stranger":
                return RedirectResponse("/login", 303)
            case _:
                return None

    web = serve(settings, auth=auth)

    assert web.http.get("/queues", headers={"X-Session": "ada"}).status_code == 200
    assert web.http.get("/queues", headers={"X-Session": "stranger"}).headers["location"] == "/login"
    assert web.http.get("/queues").status_code == 401


def test_a_form_without_its_token_is_refused(web: Web) -> None:
    web.client.enqueue("shop.mail", queue="mail")
    web.http.get("/queues")

    for token in ("", "0" * 64, "ä"):
        assert web.http.post("/queues/mail/purge", data={"token": token}).status_code == 403
    assert web.inspector.size("mail") == 1


def test_a_forms_token_is_worth_nothing_in_another_browser(web: Web) -> None:
    web.client.enqueue("shop.mail", queue="mail")
    token = web.http.get("/queues").text.partition('name="token" value="')[2].partition('"')[0]

    with httpx.Client(base_url=web.url, timeout=60) as other:
        other.get("/queues")
        assert other.post("/queues/mail/purge", data={"token": token}).status_code == 403
    assert web.http.post("/queues/mail/purge", data={"token": token}).status_code == 303


@pytest.mark.parametrize(
    "kind", ["text/plain", "application/x-www-form-urlencoded", "multipart/form-data; boundary=x", ""]
)
def test_the_api_takes_changes_as_json_only(web: Web, kind: str) -> None:
    answer = web.http.post("/api/jobs", content=b'{"job": "shop.mail"}', headers={"Content-Type": kind})

    assert answer.status_code == 415
    assert "application/json" in answer.json()["error"]


def test_every_answer_says_what_browsers_may_do_with_it(web: Web) -> None:
    for path in ("/queues", "/api/queues", "/api/docs", "/nothing", "/api/nothing", "/static/palermo.css", "/healthz"):
        headers = web.http.get(path).headers

        policy = headers["content-security-policy"]
        assert "unsafe" not in policy
        assert "default-src 'none'" in policy
        assert headers["x-content-type-options"] == "nosniff"
        assert headers["x-frame-options"] == "DENY"
    assert web.http.get("/queues", headers={"Host": "evil.example"}).headers["x-frame-options"] == "DENY"


def test_cookies_are_for_us_and_no_script(web: Web) -> None:
    [cookie] = web.http.get("/queues").headers.get_list("set-cookie")

    assert "HttpOnly" in cookie
    assert "SameSite=lax" in cookie


def test_who_did_what_is_in_the_audit_log(web: Web, caplog: pytest.LogCaptureFixture) -> None:
    web.client.enqueue("shop.mail", queue="mail")
    caplog.set_level(logging.INFO, "palermo.audit")

    web.http.post("/api/queues/mail/purge")

    assert "purge by=local role=admin from=127.0.0.1 queue=mail removed=1" in caplog.messages


def test_the_broker_is_named_without_its_password(serve: Serve, tmp_path: Path) -> None:
    web = serve(Settings(url="amqp://shop:hunter22@127.0.0.1:1/shop", publish_timeout=1))

    page = web.http.get("/queues")

    assert page.status_code == 503
    assert "127.0.0.1:1/shop/palermo" in page.text
    assert "hunter22" not in page.text


def _utf8(auth: tuple[str, str]) -> httpx.BasicAuth:
    return httpx.BasicAuth(auth[0].encode(), auth[1].encode())


def test_wrong_tokens_do_not_shut_out_right_passwords_of_the_same_address(guarded: Web) -> None:
    wrong = [guarded.http.get("/api/queues", headers={"Authorization": f"Bearer wrong-{n}"}) for n in range(60)]

    assert {answer.status_code for answer in wrong} == {401, 429}
    assert guarded.http.get("/api/queues", auth=_utf8(("ada", "pässwörd"))).status_code == 200


def test_a_viewer_reads_failed_jobs_but_forces_no_reading(guarded: Web) -> None:
    eve, ada = _utf8(("eve", "viewer's own")), _utf8(("ada", "pässwörd"))
    statuses = {}

    for name, auth in (("eve", eve), ("ada", ada)):
        page = guarded.http.get("/failures", auth=auth).text
        token = page.partition('name="token" value="')[2].partition('"')[0]
        statuses[name] = guarded.http.post("/failures/read", auth=auth, data={"token": token}).status_code

    assert statuses == {"eve": 403, "ada": 303}


def test_a_viewer_may_send_nothing_that_changes_anything(guarded: Web) -> None:
    http, eve = guarded.http, _utf8(("eve", "viewer's own"))
    token = http.get("/failures", auth=eve).text.partition('name="token" value="')[2].partition('"')[0]
    answers = {}

    for path, method in _changing():
        if path.startswith("/api"):
            sent: dict[str, Any] = {"json": {}} if method != "DELETE" else {}
        else:
            sent = {"data": {"token": token}}
        answers[method, path] = http.request(method, path, auth=eve, **sent).status_code

    assert len(answers) > 40
    assert {asked: status for asked, status in answers.items() if status < 400} == {}


def _changing() -> Iterator[tuple[str, str]]:
    """All addresses that take something else than GET, with some name in each, but those for signing in and out."""
    for prefix, routers in (("", pages.ROUTERS), ("/api", api.ROUTERS)):
        for route in [route for router in routers if router is not sign_in.router for route in router.routes]:
            for method in sorted(getattr(route, "methods", None) or ()):
                if method not in ("GET", "HEAD", "OPTIONS"):
                    yield prefix + re.sub(r"\{[^}]*\}", "some", getattr(route, "path", "")), method
