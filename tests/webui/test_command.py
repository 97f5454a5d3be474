"""`palermo web` and `palermo web-user`."""

import shlex
import signal
import stat
import subprocess
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from palermo.cli import main
from tests.webui.conftest import Start
from tests.webui.process import PALERMO

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


def test_the_file_that_web_user_is_sent_to_is_for_nobody_elses_eyes(tmp_path: Path) -> None:
    users = tmp_path / "users"
    command = f"umask 022; exec {shlex.quote(PALERMO)} web-user ann --token >> {shlex.quote(str(users))}"

    subprocess.run(["sh", "-c", command], check=True, capture_output=True, timeout=100)

    assert stat.S_IMODE(users.stat().st_mode) == 0o600
    assert users.read_text().startswith("ann:")
