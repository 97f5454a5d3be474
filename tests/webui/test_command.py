"""`palermo web` and `palermo web-user`, as processes of their own."""

import signal
import subprocess
from pathlib import Path

import httpx
import pytest

from tests.webui.conftest import Start
from tests.webui.process import PALERMO

_MODULE = """
import palermo

@palermo.job(name="shop.resize", queue="images")
def resize(path: str) -> None: ...
"""


def run(*arguments: str, stdin: str = "", folder: Path | None = None) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        [PALERMO, *arguments], input=stdin, capture_output=True, text=True, timeout=100, check=False, cwd=folder
    )


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT], ids=lambda number: number.name)
def test_it_serves_until_it_is_told_to_end_and_ends_well(start: Start, number: signal.Signals) -> None:
    web = start()
    assert web.http.get("/queues").status_code == 200

    assert web.stop(number) == 0


def test_jobs_of_its_modules_are_checked_when_enqueued_by_hand(start: Start, tmp_path: Path) -> None:
    (tmp_path / "webshop.py").write_text(_MODULE)
    http = start("webshop").http

    wrong = http.post("/api/jobs", json={"job": "shop.resize", "args": []})
    right = http.post("/api/jobs", json={"job": "shop.resize", "args": ["x.png"]})

    assert wrong.status_code == 422
    assert right.json()["queue"] == "images"


def test_its_users_sign_in(start: Start, tmp_path: Path) -> None:
    password = run("web-user", "ada", "--role", "admin", stdin="correct horse\n")
    token = run("web-user", "deploy", "--token", "--role", "viewer")
    (tmp_path / "users").write_text(password.stdout + token.stdout)
    secret = token.stderr.split()[-1]
    assert secret not in token.stdout
    assert "correct horse" not in password.stdout

    url = start("--users", "users").url

    with httpx.Client(base_url=url, timeout=60) as http:
        assert http.get("/api/queues").status_code == 401
        assert http.get("/api/queues", auth=("ada", "correct horse")).status_code == 200
        assert http.get("/api/queues", headers={"Authorization": f"Bearer {secret}"}).status_code == 200


@pytest.mark.parametrize("arguments", [("--host", "0.0.0.0"), ("--host", "::"), ("--allow-host", "jobs.example.com")])
def test_others_are_not_let_in_without_authentication(tmp_path: Path, arguments: tuple[str, ...]) -> None:
    done = run("web", *arguments, folder=tmp_path)

    assert done.returncode == 2
    assert done.stderr.count("\n") == 1
    assert "authentication" in done.stderr


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--users", "nowhere"), "cannot be read"),
        (("--prefix", "jobs"), "beginning of a path"),
        (("no_such_module",), "cannot be imported"),
        (("--port", "70000"), "70000"),
        (("--host", "192.0.2.1", "--users", "users"), "cannot listen on 192.0.2.1"),
    ],
)
def test_what_cannot_be_served_is_said_in_one_line(tmp_path: Path, arguments: tuple[str, ...], said: str) -> None:
    (tmp_path / "users").write_text(f"ada:admin:sha256:{'0' * 64}")
    (tmp_path / "users").chmod(0o600)  # else a line says that all can read it

    done = run("web", *arguments, folder=tmp_path)

    assert done.returncode == 2
    assert done.stderr.count("\n") == 1
    assert said in done.stderr


def test_a_password_that_is_too_short_is_refused() -> None:
    assert run("web-user", "ada", stdin="short\n").returncode == 2
