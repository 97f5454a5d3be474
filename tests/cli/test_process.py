"""The installed command as a process: what only shows outside of this one."""

import contextlib
import json
import os
import pty
import select
import shlex
import signal
import socket
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest

from palermo.client.client import Client
from tests.harness.rig import PROGRAMS
from tests.helpers import eventually
from tests.inspector.jobs import failure, message, publish, publish_failed
from tests.rabbitmq_node import free_port

pytestmark = pytest.mark.slow


Process = Callable[..., "subprocess.CompletedProcess[str]"]

COMMAND = str(Path(sys.executable).with_name("palermo"))


@pytest.fixture
def silent() -> Iterator[socket.socket]:
    """A server that accepts connections and never says a word."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.settimeout(60)
        yield server


@pytest.fixture
def closed_port() -> int:
    return free_port()


@contextmanager
def on_terminal(arguments: Sequence[str], url: str, **environment: str) -> Iterator[tuple[int, int]]:
    """The command with a terminal for all three streams; gives the terminal's other end, and the pid."""
    pid, terminal = pty.fork()
    if pid == 0:
        os.environ.update({"PALERMO_URL": url, "TERM": "xterm", "COLUMNS": "120", **environment})
        os.execv(COMMAND, [COMMAND, *arguments])
    try:
        yield terminal, pid
    finally:
        os.close(terminal)


def read_until(terminal: int, text: str) -> str:
    seen = b""
    deadline = time.monotonic() + 60
    while text.encode() not in seen:
        assert time.monotonic() < deadline, seen
        if select.select([terminal], [], [], 0.1)[0]:
            try:
                chunk = os.read(terminal, 65_536)
            except OSError:  # Linux says EIO once the other side has gone
                chunk = b""
            if not chunk:
                break
            seen += chunk
    return seen.decode()


def exit_of(pid: int) -> int:
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


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


def test_help_starts_fast_because_it_imports_no_broker(process: Process) -> None:
    code = "import sys; from palermo.cli import main; main(['--help'], standalone_mode=False); print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)

    unneeded = {"pika", "sqlite3", "rich", "asyncio", "palermo.client.client", "palermo.jobs.definition"}
    assert not unneeded.intersection(done.stdout.split())


@pytest.mark.parametrize(
    "arguments",
    [
        ["queues"],
        ["jobs", "mail"],
        ["workers"],
        ["failed", "list"],
        ["failed", "show", "1"],
        ["failed", "requeue", "1"],
        ["failed", "discard", "1", "--yes"],
        ["purge", "mail", "--yes"],
        ["delete", "mail", "--yes"],
        ["enqueue", "shop.send", "-q", "mail"],
        ["dequeue", "shop.send", "-q", "mail", "--yes"],
    ],
)
def test_a_broker_that_is_down_ends_in_3_and_names_host_and_port(
    process: Process, closed_port: int, arguments: list[str]
) -> None:
    done = process(*arguments, "--url", f"amqp://me:secret@127.0.0.1:{closed_port}/")

    (line,) = done.stderr.splitlines()
    assert (done.returncode, done.stdout) == (3, "")
    assert "BrokerUnavailable" in line
    assert f"127.0.0.1:{closed_port}" in line
    assert "secret" not in line


def test_a_password_on_the_command_line_is_not_in_the_process_title(silent: socket.socket) -> None:
    host = f"127.0.0.1:{silent.getsockname()[1]}"
    running = subprocess.Popen(
        [COMMAND, "queues", "--url", f"amqp://me:secret@{host}/"], stderr=subprocess.PIPE, text=True
    )
    with silent.accept()[0]:
        title = Path(f"/proc/{running.pid}/cmdline").read_bytes()
        _, errors = running.communicate(timeout=60)

    assert b"secret" not in title
    assert b"***" in title
    assert running.returncode == 3
    assert "secret" not in errors
    assert host in errors


@pytest.mark.parametrize("arguments", [["queues"], ["enqueue", "shop.send", "-q", "mail"]])
def test_a_file_that_is_not_a_database_is_one_line(process: Process, tmp_path: Path, arguments: list[str]) -> None:
    (tmp_path / "note.txt").write_text("not a database, but long enough to be looked at as one" * 100)

    done = process(*arguments, "--url", "sqlite:///note.txt")

    assert (done.returncode, len(done.stderr.splitlines())) == (3, 1)
    assert "note.txt" in done.stderr
    assert (tmp_path / "note.txt").read_text().startswith("not a database")


def test_somebody_elses_database_is_left_alone(process: Process, tmp_path: Path) -> None:
    with sqlite3.connect(tmp_path / "other.db") as other:
        other.execute("create table customers (name)")
    other.close()

    done = process("queues", "--url", "sqlite:///other.db")

    assert len(done.stderr.splitlines()) <= 1
    assert "Traceback" not in done.stderr


def test_a_directory_is_no_database(process: Process, tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()

    done = process("queues", "--url", "sqlite:///folder")

    assert (done.returncode, len(done.stderr.splitlines())) == (3, 1)


@pytest.mark.parametrize(
    ("content", "code"), [("url = 5", 2), ("not toml", 2), ("nonsense = 1", 2), ('exchange = "a.b"', 2)]
)
def test_a_bad_settings_file_is_one_line(process: Process, tmp_path: Path, content: str, code: int) -> None:
    (tmp_path / "palermo.toml").write_text(content)

    done = process("queues", env={"PALERMO_URL": ""})

    assert (done.returncode, len(done.stderr.splitlines())) == (code, 1)
    assert "palermo.toml" in done.stderr


def test_enqueue_with_code_knows_queue_and_arguments(process: Process, tmp_path: Path, client: Client) -> None:
    (tmp_path / "shop.py").write_text("import palermo\n@palermo.job(queue='slow')\ndef resize(path): ...\n")
    imports = {"PALERMO_IMPORTS": "shop"}

    good = process("enqueue", "shop.resize", "--args", '["x"]', env=imports)
    bad = process("enqueue", "shop.resize", "--kwargs", '{"width": 1}', env=imports)

    assert (good.returncode, good.stderr) == (0, "")
    assert [message.id for message in client.run(lambda broker: broker.browse("slow")).messages] == [
        good.stdout.strip()
    ]
    assert (bad.returncode, len(bad.stderr.splitlines())) == (2, 1)


def test_a_name_that_is_not_utf_8_is_one_line(process: Process) -> None:
    for arguments in (["jobs", b"\xff"], ["enqueue", b"\xff", "-q", "a"], ["enqueue", "a", "--id", b"\xff"]):
        done = subprocess.run(
            [COMMAND, *arguments], capture_output=True, env={**os.environ, "PALERMO_URL": "sqlite:///x"}
        )
        assert (done.returncode, len(done.stderr.splitlines())) == (2, 1), done.stderr


def test_a_reader_that_goes_away_is_no_complaint(process: Process, client: Client, url: str) -> None:
    publish(client, *(message(str(n), "x" * 1_000) for n in range(500)))
    environment = {**os.environ, "PALERMO_URL": url}

    for more in ([], ["--json"]):
        listing = subprocess.Popen(
            [COMMAND, "jobs", "mail", "--limit", "500", *more],
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        assert listing.stdout is not None
        assert listing.stderr is not None
        listing.stdout.close()
        assert listing.stderr.read() == b""
        listing.stderr.close()
        listing.wait(60)


@pytest.mark.parametrize(
    ("arguments", "closed", "code"),
    [
        ("queues", ">&-", 0),
        ("queues", "<&- >&- 2>&-", 0),
        ("purge mail", "<&-", 2),
        ("worker crew --burst", "<&- >&- 2>&-", 0),
    ],
)
def test_a_command_runs_where_its_standard_streams_are_closed(url: str, arguments: str, closed: str, code: int) -> None:
    command = f"exec {shlex.quote(sys.executable)} -m palermo {arguments} {closed}"
    environment = {**os.environ, "PALERMO_URL": url}

    done = subprocess.run(["sh", "-c", command], cwd=PROGRAMS, env=environment, stderr=subprocess.PIPE, timeout=100)

    assert (done.returncode, b"unexpected" in done.stderr) == (code, False)


def test_ctrl_c_ends_in_130(silent: socket.socket) -> None:
    url = f"amqp://127.0.0.1:{silent.getsockname()[1]}/"
    running = subprocess.Popen(
        [COMMAND, "queues"], stderr=subprocess.PIPE, text=True, env={**os.environ, "PALERMO_URL": url}
    )
    with silent.accept()[0]:
        running.send_signal(signal.SIGINT)
        _, errors = running.communicate(timeout=60)

    assert running.returncode == 130
    assert "Traceback" not in errors


def test_on_a_terminal_a_listing_is_a_table_and_no_color_is_obeyed(client: Client, url: str) -> None:
    publish(client, message("1", job="shop.[red]x[/red]"))

    with on_terminal(["jobs", "mail"], url, NO_COLOR="1") as (terminal, pid):
        text = read_until(terminal, "[red]x[/red]")

    assert "Id" in text
    assert "\x1b[3" not in text
    os.waitpid(pid, 0)


@pytest.mark.parametrize("action", ["discard", "requeue"])
def test_requeue_of_all_asks_on_a_terminal(client: Client, url: str, action: str) -> None:
    publish_failed(client, *((message(str(n)), failure()) for n in range(3)))

    with on_terminal(["failed", action, "--all"], url) as (terminal, pid):
        assert "3 failed jobs" in read_until(terminal, "[y/N]")
        os.write(terminal, b"n\n")
        assert exit_of(pid) == 1
    assert client.run(lambda broker: broker.browse("failed")).total == 3

    with on_terminal(["failed", action, "--all"], url) as (terminal, pid):
        read_until(terminal, "[y/N]")
        os.write(terminal, b"y\n")
        read_until(terminal, "ed 3 jobs")
        assert exit_of(pid) == 0
    assert client.run(lambda broker: broker.browse("failed")).total == 0


@pytest.mark.parametrize(
    ("command", "number"), [(["purge", "mail"], "2 waiting jobs"), (["delete", "mail"], "2 waiting")]
)
def test_on_a_terminal_purge_and_delete_state_the_number(
    client: Client, url: str, command: list[str], number: str
) -> None:
    publish(client, message("1"), message("2"))

    with on_terminal(command, url) as (terminal, pid):
        assert number in read_until(terminal, "[y/N]")
        assert interrupt(terminal, pid) == 130
    assert client.run(lambda broker: broker.browse("mail")).total == 2


def test_on_a_terminal_long_work_shows_a_bar(client: Client, url: str) -> None:
    publish_failed(client, *((message(str(n)), failure()) for n in range(3)))

    with on_terminal(["failed", "requeue", "--all", "--yes"], url) as (terminal, pid):
        text = read_until(terminal, "requeued 3 jobs")
        assert exit_of(pid) == 0

    assert "requeue" in text.partition("requeued")[0]


def test_output_for_a_terminal_that_is_not_utf_8_is_escaped_and_not_lost(process: Process, client: Client) -> None:
    publish(client, message("1", job="façade"))

    done = process("jobs", "mail", env={"PYTHONIOENCODING": "ascii"})
    as_json = process("jobs", "mail", "--json", env={"PYTHONIOENCODING": "ascii"})

    assert (done.returncode, as_json.returncode) == (0, 0)
    assert json.loads(as_json.stdout)[0]["job"] == "façade"


@pytest.mark.parametrize("arguments", [["--version"], ["--help"], ["failed", "--help"]])
def test_version_and_help(process: Process, arguments: list[str]) -> None:
    done = process(*arguments)

    assert (done.returncode, done.stderr) == (0, "")
    assert "palermo" in done.stdout
