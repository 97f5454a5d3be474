"""`palermo web` without users: this machine alone, by the link that was printed, and nobody whom a proxy brings."""

import re
import sys
from collections.abc import Iterator

import pytest

from palermo.settings.settings import Settings
from tests.webui.conftest import Serve, Start
from tests.webui.process import WebProcess
from tests.webui.server import Web

_FORWARDED = [
    ("X-Forwarded-For", "192.0.2.7"),
    ("X-Forwarded-For", "127.0.0.1"),
    ("X-Forwarded-Host", "jobs.example.com"),
    ("X-Forwarded-Proto", "https"),
    ("Forwarded", "for=192.0.2.7"),
    ("Via", "1.1 proxy"),
    ("X-Real-IP", "192.0.2.7"),
]


@pytest.fixture(scope="module")
def _alone(tmp_path_factory: pytest.TempPathFactory) -> Iterator[WebProcess]:
    with WebProcess(tmp_path_factory.mktemp("alone")) as web:
        yield web


@pytest.fixture
def alone(_alone: WebProcess) -> WebProcess:
    """`palermo web` as one begins with it."""
    _alone.stranger.cookies.clear()
    return _alone


@pytest.fixture(scope="module")
def without_token(tmp_path_factory: pytest.TempPathFactory) -> Iterator[WebProcess]:
    with WebProcess(tmp_path_factory.mktemp("without"), "--no-token") as web:
        yield web


def test_another_program_of_this_machine_is_not_let_in_without_the_token(alone: WebProcess) -> None:
    nginx = {"Host": f"127.0.0.1:{alone.port}", "Connection": "close"}  # of `proxy_pass http://127.0.0.1:3000`
    for path in ("/", "/queues", "/api/queues", "/static/palermo.css", "/live", "/metrics", "/stats.txt", "/nothing"):
        assert alone.stranger.get(path, headers=nginx).status_code == 401, path

    answer = alone.stranger.post("/api/jobs", json={"job": "shop.mail"}, headers=nginx)

    assert answer.status_code == 401
    assert "open the link that was printed when this server started" in answer.json()["error"]
    assert not any(row["pending"] for row in alone.http.get("/api/queues").json()["rows"])


@pytest.mark.parametrize("token", ["wrong", "ä", "0" * 43])
def test_a_wrong_token_opens_nothing(alone: WebProcess, token: str) -> None:
    cookie = f"palermo_token_{alone.port}={token}"
    get = alone.stranger.get

    assert get("/queues", params={"token": token}).status_code == 401
    assert get("/api/queues", headers={"Authorization": f"Bearer {token}".encode()}).status_code == 401
    assert get("/api/queues", headers={"Cookie": cookie.encode()}).status_code == 401


def test_the_link_lets_a_browser_in_and_leaves_no_token_in_the_address(alone: WebProcess) -> None:
    first = alone.stranger.get("/queues", params={"token": alone.token, "sort": "name"})

    assert first.status_code == 303
    assert first.headers["location"] == "/queues?sort=name"
    [cookie] = first.headers.get_list("set-cookie")
    assert {"HttpOnly", "SameSite=strict", "Path=/"} <= {part.strip() for part in cookie.split(";")}
    assert alone.stranger.get("/queues").status_code == 200
    assert alone.stranger.get("/api/queues").status_code == 200


def test_the_link_leads_to_no_other_site(alone: WebProcess) -> None:
    first = alone.stranger.get(f"{alone.url}//evil.example/", params={"token": alone.token})

    assert first.headers["location"] == "/evil.example/"


@pytest.mark.skipif(sys.platform != "linux", reason="other systems have one loopback address")
def test_the_link_opens_the_pages_at_each_address_of_loopback(start: Start) -> None:
    web = start("--host", "127.0.0.2")

    answer = web.stranger.get(web.link, follow_redirects=True)

    assert (answer.status_code, answer.url) == (200, f"{web.url}/")
    assert web.stranger.get(web.url, headers={"Host": f"127.0.0.3:{web.port}"}).status_code == 400


def test_the_cookie_is_for_our_path_alone(start: Start) -> None:
    web = start("--prefix", "/ops/jobs")

    first = web.stranger.get(f"http://127.0.0.1:{web.port}/queues", params={"token": web.token})

    assert web.link.startswith(f"http://127.0.0.1:{web.port}/ops/jobs/?token=")
    assert first.headers["location"] == "/ops/jobs/queues"
    assert "Path=/ops/jobs;" in first.headers["set-cookie"]


def test_the_token_changes_with_each_start_and_is_said_once(start: Start) -> None:
    web = start()
    web.stranger.get("/queues", params={"token": web.token})
    web.stranger.post("/queues/mail/purge", params={"token": web.token}, headers={"Origin": "http://evil.example"})
    web.stranger.get(f"/queues?token={web.token}", headers={"Host": "evil.example"})
    web.http.get("/nothing")
    pages = [web.stranger.get(path).text for path in ("/queues", "/nothing", "/api/nothing", "/api/openapi.json")]
    pages.append(web.stranger.get("/queues", params={"token": "wrong"}).text)
    web.stop()
    said = web.log

    assert said.count(web.token) == 1
    assert not any(web.token in page for page in pages)
    assert start().token not in ("", web.token)


def test_a_form_is_sent_with_the_cookie(alone: WebProcess) -> None:
    browser = alone.stranger
    alone.http.post("/api/jobs", json={"job": "shop.mail", "queue": "mail"})
    browser.get("/", params={"token": alone.token})
    form = re.search(r'name="token" value="([0-9a-f]+)"', browser.get("/queues/mail").text)
    assert form

    done = browser.post("/queues/mail/purge", data={"token": form[1]}, headers={"Origin": alone.url})

    assert done.status_code == 303
    assert alone.http.get("/api/queues/mail/jobs").json()["total"] == 0


def test_monitors_need_no_token_for_what_tells_nothing(start: Start) -> None:
    web = start(PALERMO_METRICS_TOKEN="a scraper's own secret")

    assert web.stranger.get("/healthz").json() == {"status": "ok"}
    assert web.stranger.get("/metrics").status_code == 401
    scraper = {"Authorization": "Bearer a scraper's own secret"}
    assert web.stranger.get("/metrics", headers=scraper).status_code in (200, 501)
    assert web.stranger.get("/queues", headers=scraper).status_code == 401


def test_who_wants_no_token_needs_none(without_token: WebProcess, start: Start) -> None:
    for web in (without_token, start(PALERMO_WEB_TOKEN="off")):
        assert web.token == ""
        assert web.stranger.get("/queues").status_code == 200


@pytest.mark.parametrize(("name", "value"), _FORWARDED)
def test_a_proxied_request_without_users_is_refused(without_token: WebProcess, name: str, value: str) -> None:
    answer = without_token.http.get("/api/queues", headers={name: value})

    assert answer.status_code == 403
    assert name.lower() in answer.json()["error"]
    assert "palermo web-user NAME >> users" in answer.json()["error"]


def test_what_a_proxy_passed_on_is_refused_with_the_token_too(alone: WebProcess) -> None:
    assert alone.http.get("/queues", headers={"X-Forwarded-For": "192.0.2.7"}).status_code == 403
    assert alone.http.get("/queues", headers={"X-Forwarded-For": "192.0.2.7"}, params={"token": alone.token}).is_error


def test_a_trusted_proxy_is_refused_without_users_too(settings: Settings, serve: Serve) -> None:
    web = serve(settings, trust_proxy=True)

    assert web.http.get("/queues", headers={"X-Forwarded-For": "127.0.0.1"}).status_code == 403


@pytest.mark.parametrize("origin", ["https://evil.example", "null", "http://127.0.0.1:1", "http://evil@{host}"])
def test_a_foreign_origin_is_always_refused(shared_web: Web, origin: str) -> None:
    host = shared_web.url.removeprefix("http://")
    headers = {"Origin": origin.format(host=host), "Sec-Fetch-Site": "same-origin"}

    answer = shared_web.http.post("/api/jobs", json={"job": "shop.mail"}, headers=headers)

    assert answer.status_code == 403
    assert host in answer.json()["error"]


@pytest.mark.parametrize("host", ["evil.example@127.0.0.1", "evil.example@127.0.0.1:3000", "x:y@localhost", "[::1]x"])
def test_a_host_with_a_user_in_it_is_refused(shared_web: Web, host: str) -> None:
    assert shared_web.http.get("/api/queues", headers={"Host": host}).status_code == 400
