"""`palermo web` and `palermo web-user`; without users: this machine alone, by the link that was printed."""

import shlex
import signal
import stat
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from palermo.cli import main
from palermo.settings.settings import Settings
from tests.webui.conftest import Start
from tests.webui.process import PALERMO, WebProcess
from tests.webui.server import Web

_MODULE = """
import palermo

@palermo.job(name="shop.resize", queue="images")
def resize(path: str) -> None: ...
"""


def run(*arguments: str, stdin: str = "") -> Result:
    """The command, in this process."""
    return CliRunner().invoke(main, arguments, input=stdin)


@pytest.mark.slow
def test_jobs_of_its_modules_are_checked_when_enqueued_by_hand(start: Start, tmp_path: Path) -> None:
    (tmp_path / "webshop.py").write_text(_MODULE)
    web = start("webshop")

    wrong = web.http.post("/api/jobs", json={"job": "shop.resize", "args": []})
    right = web.http.post("/api/jobs", json={"job": "shop.resize", "args": ["x.png"]})

    assert wrong.status_code == 422
    assert right.json()["queue"] == "images"
    assert web.stop(signal.SIGTERM) == 0


@pytest.mark.slow
def test_its_users_sign_in(start: Start, tmp_path: Path) -> None:
    assert run("web-user", "ada", stdin="short\n").exit_code == 2
    password = run("web-user", "ada", "--role", "admin", stdin="correct horse\n")
    token = run("web-user", "deploy", "--token", "--role", "viewer")
    (tmp_path / "users").write_text(password.stdout + token.stdout)
    secret = token.stderr.split()[-1]
    assert secret not in token.stdout
    assert "correct horse" not in password.stdout

    web = start("--users", "users")

    assert web.stranger.get("/api/queues").status_code == 401
    assert web.stranger.get("/api/queues", auth=("ada", "correct horse")).status_code == 200
    assert web.stranger.get("/api/queues", headers={"Authorization": f"Bearer {secret}"}).status_code == 200
    assert web.stop(signal.SIGINT) == 0


def test_an_address_that_cannot_be_listened_on_is_said_in_one_line(tmp_path: Path) -> None:
    (tmp_path / "users").write_text(f"ada:admin:sha256:{'0' * 64}")
    (tmp_path / "users").chmod(0o600)  # else a line says that all can read it

    done = run("web", "--host", "192.0.2.1", "--users", "users")

    assert (done.exit_code, done.stderr.count("\n")) == (2, 1)
    assert "cannot listen on 192.0.2.1" in done.stderr


@pytest.mark.slow
def test_the_file_that_web_user_is_sent_to_is_for_nobody_elses_eyes(tmp_path: Path) -> None:
    users = tmp_path / "users"
    command = f"umask 022; exec {shlex.quote(PALERMO)} web-user ann --token >> {shlex.quote(str(users))}"

    subprocess.run(["sh", "-c", command], check=True, capture_output=True, timeout=100)

    assert stat.S_IMODE(users.stat().st_mode) == 0o600
    assert users.read_text().startswith("ann:")


@pytest.fixture(scope="module")
def _alone(tmp_path_factory: pytest.TempPathFactory) -> Iterator[WebProcess]:
    with WebProcess(tmp_path_factory.mktemp("alone"), PALERMO_METRICS_TOKEN="a scraper's own secret") as web:
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


@pytest.fixture(scope="module")
def trusting(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Web]:
    """Pages that trust a proxy."""
    with Web(Settings(url=f"sqlite:///{tmp_path_factory.mktemp('trusting')}/jobs.db"), trust_proxy=True) as web:
        yield web


@pytest.mark.slow
def test_another_program_of_this_machine_is_not_let_in_without_the_token(alone: WebProcess) -> None:
    nginx = {"Host": f"127.0.0.1:{alone.port}", "Connection": "close"}  # of `proxy_pass http://127.0.0.1:3000`
    for path in ("/", "/queues", "/api/queues", "/static/palermo.css", "/live", "/metrics", "/stats.txt", "/nothing"):
        assert alone.stranger.get(path, headers=nginx).status_code == 401, path

    answer = alone.stranger.post("/api/jobs", json={"job": "shop.mail"}, headers=nginx)

    assert answer.status_code == 401
    assert "open the link that this server printed when it started" in answer.json()["error"]
    assert not any(row["pending"] for row in alone.http.get("/api/queues").json()["rows"])


def test_a_wrong_token_opens_nothing(alone: WebProcess) -> None:
    get = alone.stranger.get
    for token in ("wrong", "ä", "0" * 43):
        assert get("/queues", params={"token": token}).status_code == 401
        assert get("/api/queues", headers={"Authorization": f"Bearer {token}".encode()}).status_code == 401
        cookie = f"palermo_token_{alone.port}={token}"
        assert get("/api/queues", headers={"Cookie": cookie.encode()}).status_code == 401


def test_the_link_lets_a_browser_in_and_leaves_no_token_in_the_address(alone: WebProcess) -> None:
    first = alone.stranger.get("/queues", params={"token": alone.token, "sort": "name"})

    assert first.status_code == 303
    assert first.headers["location"] == "/queues?sort=name"
    [cookie] = first.headers.get_list("set-cookie")
    assert {"HttpOnly", "SameSite=strict", "Path=/"} <= {part.strip() for part in cookie.split(";")}
    assert alone.stranger.get("/queues").status_code == 200
    assert alone.stranger.get("/api/queues").status_code == 200
    elsewhere = alone.stranger.get(f"{alone.url}//evil.example/", params={"token": alone.token})
    assert elsewhere.headers["location"] == "/evil.example/"


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="other systems have one loopback address")
def test_the_link_opens_the_pages_at_each_address_of_loopback_and_path(start: Start) -> None:
    web = start("--host", "127.0.0.2", "--prefix", "/ops/jobs")

    first = web.stranger.get(f"http://127.0.0.2:{web.port}/queues", params={"token": web.token})

    assert web.link.startswith(f"http://127.0.0.2:{web.port}/ops/jobs/?token=")
    assert first.headers["location"] == "/ops/jobs/queues"
    assert "Path=/ops/jobs;" in first.headers["set-cookie"], "the cookie is for our path alone"
    cookie = first.headers["set-cookie"].partition(";")[0]
    for host, status in (("127.0.0.2", 200), ("127.0.0.3", 400)):
        headers = {"Host": f"{host}:{web.port}", "Cookie": cookie}
        assert web.stranger.get(f"http://127.0.0.2:{web.port}/queues", headers=headers).status_code == status


@pytest.mark.slow
def test_the_token_changes_with_each_start_and_is_said_once(alone: WebProcess, start: Start) -> None:
    web = start()
    web.stranger.get("/queues", params={"token": web.token})
    web.stranger.post("/queues/mail/purge", params={"token": web.token}, headers={"Origin": "http://evil.example"})
    web.stranger.get(f"/queues?token={web.token}", headers={"Host": "evil.example"})
    web.http.get("/nothing")
    pages = [web.stranger.get(path).text for path in ("/queues", "/nothing", "/api/nothing", "/api/openapi.json")]
    pages.append(web.stranger.get("/queues", params={"token": "wrong"}).text)
    web.stop()

    assert web.log.count(web.token) == 1
    assert not any(web.token in page for page in pages)
    assert web.token not in ("", alone.token)


@pytest.mark.slow
def test_monitors_and_who_wants_none_need_no_token(alone: WebProcess, without_token: WebProcess, start: Start) -> None:
    for web in (without_token, start(PALERMO_WEB_TOKEN="off")):
        assert (web.token, web.stranger.get("/queues").status_code) == ("", 200)
    scraper = {"Authorization": "Bearer a scraper's own secret"}

    assert alone.stranger.get("/healthz").json() == {"status": "ok"}
    assert alone.stranger.get("/metrics", headers=scraper).status_code in (200, 501)
    assert alone.stranger.get("/queues", headers=scraper).status_code == 401


def test_proxied_requests_need_users(alone: WebProcess, without_token: WebProcess, trusting: Web) -> None:
    for name, value in (
        *(("X-Forwarded-For", "192.0.2.7"), ("X-Forwarded-For", "127.0.0.1"), ("X-Real-IP", "192.0.2.7")),
        *(("X-Forwarded-Host", "jobs.example.com"), ("X-Forwarded-Proto", "https")),
        *(("Forwarded", "for=192.0.2.7"), ("Via", "1.1 proxy")),
    ):
        for http in (without_token.http, alone.http):
            answer = http.get("/api/queues", headers={name: value})
            assert answer.status_code == 403
            for told in ("palermo web-user NAME >> users", name.lower()):
                assert told in answer.json()["error"]
        assert alone.stranger.get("/queues", headers={name: value}, params={"token": alone.token}).is_error
        assert trusting.http.get("/api/queues", headers={name: value}).status_code in (400, 403)
