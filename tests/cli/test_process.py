"""The installed command as a process: what only shows outside of this one."""

import contextlib
import json
import os
import shlex
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from palermo.client.client import Client
from tests.cli.conftest import COMMAND, Process, on_terminal, read_until
from tests.harness.rig import PROGRAMS
from tests.helpers import eventually
from tests.inspector.jobs import failure, message, publish, publish_failed

pytestmark = pytest.mark.slow


@pytest.fixture
def silent() -> Iterator[socket.socket]:
    """A server that accepts connections and never says a word."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.settimeout(60)
        yield server


def interrupt(terminal: int, pid: int) -> int:
    """Press Ctrl-C until the process ends: pressed before the prompt has begun to read, it would wait for a key.

    Not often: a second one that finds Python on its way out ends it by the signal, without its exit code.
    """
    ended = [0, 0]

    def has_ended() -> bool:
        ended[:] = os.waitpid(pid, os.WNOHANG)
        return ended[0] == pid

    def press() -> bool:
        os.write(terminal, b"\x03")
        with contextlib.suppress(AssertionError):
            eventually(has_ended, within=5)
        return ended[0] == pid

    eventually(press)
    return os.waitstatus_to_exitcode(ended[1])


def test_the_installed_command_says_its_version_and_help_imports_no_broker(process: Process) -> None:
    version = process("--version")
    assert (version.returncode, "palermo" in version.stdout, version.stderr) == (0, True, "")

    code = "import sys; from palermo.cli import main; main(['--help'], standalone_mode=False); print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)

    unneeded = {"pika", "sqlite3", "rich", "asyncio", "palermo.client.client", "palermo.jobs.definition"}
    assert not unneeded.intersection(done.stdout.split())


def test_a_password_on_the_command_line_is_not_in_the_process_title(silent: socket.socket) -> None:
    host = f"127.0.0.1:{silent.getsockname()[1]}"
    running = subprocess.Popen(
        [COMMAND, "queues", "--url", f"amqp://me:secret@{host}/"], stderr=subprocess.PIPE, text=True
    )
    with silent.accept()[0]:
        title = Path(f"/proc/{running.pid}/cmdline").read_bytes()
        running.send_signal(signal.SIGINT)
        _, errors = running.communicate(timeout=60)

    assert b"secret" not in title
    assert b"***" in title
    assert running.returncode == 130
    assert "secret" not in errors
    assert "Traceback" not in errors


def test_a_name_that_is_not_utf_8_is_one_line() -> None:
    done = subprocess.run(
        [COMMAND, "enqueue", b"\xff", "-q", "a"], capture_output=True, env={**os.environ, "PALERMO_URL": "sqlite:///x"}
    )

    assert (done.returncode, len(done.stderr.splitlines())) == (2, 1), done.stderr


@pytest.mark.parametrize("more", [[], ["--json"]], ids=["table", "json"])
def test_a_reader_that_goes_away_is_no_complaint(client: Client, url: str, more: list[str]) -> None:
    publish(client, *(message(str(n), "x" * 1_000) for n in range(500)))
    listing = subprocess.Popen(
        [COMMAND, "jobs", "mail", "--limit", "500", *more],
        env={**os.environ, "PALERMO_URL": url},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    assert listing.stdout is not None

    listing.stdout.close()

    assert listing.communicate(timeout=60)[1] == b""


@pytest.mark.parametrize(
    ("arguments", "closed", "code"),
    [("queues", "<&- >&- 2>&-", 0), ("purge mail", "<&-", 2), ("worker crew --burst", "<&- >&- 2>&-", 0)],
)
def test_a_command_runs_where_its_standard_streams_are_closed(url: str, arguments: str, closed: str, code: int) -> None:
    command = f"exec {shlex.quote(sys.executable)} -m palermo {arguments} {closed}"
    environment = {**os.environ, "PALERMO_URL": url}

    done = subprocess.run(["sh", "-c", command], cwd=PROGRAMS, env=environment, stderr=subprocess.PIPE, timeout=100)

    assert (done.returncode, b"unexpected" in done.stderr) == (code, False)


def test_a_worker_runs_the_atexit_functions_of_its_parent_once(url: str) -> None:
    program = (
        "import atexit, sys; atexit.register(print, 'left'); sys.argv = ['palermo', 'worker', 'crew', '--burst'];"
        " from palermo.__main__ import main; main()"
    )
    environment = {**os.environ, "PALERMO_URL": url}

    done = subprocess.run(
        [sys.executable, "-c", program], cwd=PROGRAMS, env=environment, capture_output=True, text=True, timeout=100
    )

    assert (done.returncode, done.stdout.splitlines().count("left")) == (0, 1), done.stderr


def test_output_for_a_terminal_that_is_not_utf_8_is_escaped_and_not_lost(process: Process, client: Client) -> None:
    publish(client, message("1", job="façade"))

    done = process("jobs", "mail", PYTHONIOENCODING="ascii")
    as_json = process("jobs", "mail", "--json", PYTHONIOENCODING="ascii")

    assert (done.returncode, as_json.returncode) == (0, 0)
    assert json.loads(as_json.stdout)[0]["job"] == "façade"


def test_on_a_terminal_a_listing_is_a_table_and_no_color_is_obeyed(client: Client, url: str) -> None:
    publish(client, message("1", job="shop.[red]x[/red]"))

    with on_terminal(["jobs", "mail"], url, NO_COLOR="1") as (terminal, pid):
        text = read_until(terminal, "[red]x[/red]")

    assert "Id" in text
    assert "\x1b[3" not in text
    os.waitpid(pid, 0)


def test_requeue_of_all_asks_on_a_terminal_and_shows_a_bar(client: Client, url: str) -> None:
    publish_failed(client, *((message(str(n)), failure()) for n in range(3)))

    with on_terminal(["failed", "requeue", "--all"], url) as (terminal, pid):
        assert "3 failed jobs" in read_until(terminal, "[y/N]")
        os.write(terminal, b"y\n")
        text = read_until(terminal, "requeued 3 jobs")
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0

    assert "requeue" in text.partition("requeued")[0]
    assert client.run(lambda broker: broker.browse("failed")).total == 0


def test_ctrl_c_at_a_question_does_nothing_and_ends_in_130(client: Client, url: str) -> None:
    publish(client, message("1"), message("2"))

    with on_terminal(["purge", "mail"], url) as (terminal, pid):
        assert "2 waiting jobs" in read_until(terminal, "[y/N]")
        assert interrupt(terminal, pid) == 130
    assert client.run(lambda broker: broker.browse("mail")).total == 2
