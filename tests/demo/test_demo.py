"""`palermo demo` from start to end, as a process of its own that may leave nothing behind."""

import json
import os
import re
import shlex
import signal
import subprocess
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner

from palermo.cli import main
from palermo.client.client import Client
from palermo.demo.jobs import parse
from palermo.demo.steps import damaged_files, stdlib_files
from palermo.inspector.inspector import Inspector
from palermo.settings.settings import Settings
from tests.harness.processes import exists
from tests.helpers import eventually
from tests.webui.process import PALERMO

pytestmark = pytest.mark.slow

#: Runs `palermo demo` with these arguments, and expects this exit code.
Demo = Callable[..., "subprocess.CompletedProcess[str]"]

#: Starts it.
Running = Callable[..., "subprocess.Popen[str]"]


@pytest.fixture
def scratch(tmp_path: Path) -> Path:
    """Where temporary files go; its name has to be quoted in a URL and in a shell."""
    folder = tmp_path / "temporary files, 100%"
    folder.mkdir()
    return folder


@pytest.fixture
def environment(scratch: Path) -> dict[str, str]:
    clean = {name: value for name, value in os.environ.items() if not name.startswith("PALERMO_")}
    # What is set for the user's own jobs must not matter.
    return {**clean, "TMPDIR": str(scratch), "PALERMO_URL": "amqp://nobody:x@127.0.0.1:1/", "PALERMO_SERIALIZER": "nil"}


@pytest.fixture
def running(tmp_path: Path, environment: dict[str, str]) -> Iterator[Running]:
    """In a process group of its own, as in a terminal."""
    started: list[subprocess.Popen[str]] = []

    def start(*arguments: str) -> "subprocess.Popen[str]":
        pipe = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True, "process_group": 0}
        started.append(subprocess.Popen([PALERMO, "demo", *arguments], env=environment, cwd=tmp_path, **pipe))
        return started[-1]

    yield start
    for process in started:
        # Killed outright it could not stop its worker.
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=90)


@pytest.fixture
def demo(running: Running) -> Demo:
    def run(*arguments: str, code: int = 0) -> "subprocess.CompletedProcess[str]":
        process = running(*arguments)
        output, errors = process.communicate(timeout=200)
        assert process.returncode == code, (process.returncode, output, errors)
        assert "Traceback" not in errors
        return subprocess.CompletedProcess(process.args, code, output, errors)

    return run


def worker_pid(text: str) -> int:
    """The pid of the demo's worker, from what the demo printed or from the worker's log; 0 if it is not there."""
    found = re.search(r"worker (?:started id=| +)pid:(\d+)@", text)
    return int(found[1]) if found else 0


def check_story(output: str, *, files: int) -> None:
    broken = len(damaged_files())
    for told in (
        f"{files + broken} jobs stored in queue demo",
        f"{broken} jobs failed",
        "its result: 1 function in bad_encoding.py.txt",
        '--kwargs \'{"encoding": "latin-1"}\'',
        f"it ran and left the failed jobs: {broken - 1} now",
        "it failed again, retries 1: Missing parentheses",
        "Everything worked as expected",
    ):
        assert told in output
    assert re.search(rf"{files + broken} jobs in [\d.]+ s, [\d,]+ jobs/s", output)
    assert re.search(r" 1  TabError +mixed_tabs.py.txt +inconsistent use of tabs", output)


def test_the_demo_tells_the_whole_story_and_leaves_nothing_behind(demo: Demo, scratch: Path) -> None:
    done = demo("--files", "30")

    check_story(done.stdout, files=30)
    parsed = [parse(str(path)) for path in stdlib_files(30)]
    found = re.search(r"30 jobs done; their results add up to ([\d,]+) syntax nodes and ([\d,]+) fun", done.stdout)
    assert found is not None
    assert [int(number.replace(",", "")) for number in found.groups()] == [
        sum(each.nodes for each in parsed),
        sum(each.functions for each in parsed),
    ]
    assert done.stderr == ""
    assert list(scratch.iterdir()) == []
    assert worker_pid(done.stdout)
    assert not exists(worker_pid(done.stdout))
    assert "demo --keep" in done.stdout
    assert "demo --url amqp://localhost:5672/" in done.stdout
    assert "\x1b" not in done.stdout


def test_on_a_given_broker_it_clears_its_queues(demo: Demo, scratch: Path, tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'given.db'}"
    with Client(Settings(url=url, exchange="palermo-demo")) as client:
        client.enqueue("left.behind", queue="demo")

        done = demo("--files", "0", "--url", url)

        check_story(done.stdout, files=0)
        assert list(scratch.iterdir()) == []
        assert not exists(worker_pid(done.stdout))
        assert [queue["name"] for queue in Inspector(client).queues.list() if queue["pending"]] == []


def test_it_refuses_a_second_one_and_interrupted_leaves_nothing_behind(
    running: Running, demo: Demo, scratch: Path, tmp_path: Path
) -> None:
    # With one slot and all files it takes so long that it is not through before it is interrupted.
    url = f"sqlite:///{tmp_path / 'both.db'}"
    process = running("-c", "1", "--files", "100000", "--url", url)
    with Client(Settings(url=url, exchange="palermo-demo", publish_timeout=30)) as client:
        eventually(Inspector(client).workers.list)
    pid = eventually(lambda: [pid for log in scratch.glob("*/worker.log") if (pid := worker_pid(log.read_text()))])[0]

    refused = demo("--url", url, code=1)
    assert "another demo is running on this broker" in refused.stderr
    assert process.poll() is None

    os.killpg(process.pid, signal.SIGINT)
    _, errors = process.communicate(timeout=90)
    assert process.returncode == 130
    assert errors.strip() == "palermo: interrupted"
    assert list(scratch.iterdir()) == []
    assert not exists(pid)


def test_it_serves_the_pages_until_ctrl_c_and_keeps_what_it_is_told_to(
    running: Running, environment: dict[str, str], scratch: Path
) -> None:
    process = running("--files", "0", "--web", "--port", "0", "--keep")
    assert process.stdout is not None
    address = next(line for line in process.stdout if "See it in a browser: " in line).split()[-1]

    browser = urllib.request.build_opener(urllib.request.HTTPCookieProcessor())
    with browser.open(address.replace("/?", "/failures?")) as answer:
        page = answer.read().decode()
    assert "TabError" in page or "Reading the failed jobs" in page
    os.killpg(process.pid, signal.SIGINT)
    rest, errors = process.communicate(timeout=90)
    assert (process.returncode, errors) == (0, "")
    assert "Everything worked as expected" in rest

    reading, removal = (
        shlex.split(next(line for line in rest.splitlines() if words in line).partition("$")[2].partition("   ")[0])
        for words in ("failed list", "rm -r")
    )
    listed = subprocess.run([*reading, "--json"], env=environment, capture_output=True, text=True, check=True)
    assert len(json.loads(listed.stdout)) == len(damaged_files()) - 1
    assert removal[2] == str(next(scratch.iterdir()))


def test_an_absent_broker_and_a_worker_that_cannot_start_are_named(demo: Demo, tmp_path: Path, scratch: Path) -> None:
    away = demo("--url", "amqp://ann:secret-word@127.0.0.1:1/", code=3)
    assert "127.0.0.1:1" in away.stderr
    assert "secret-word" not in away.stdout + away.stderr
    assert list(scratch.iterdir()) == []

    for wrong in ("-c 0", "--files -1", "--url sqlite:///:memory:", "--exchange palermo"):
        assert CliRunner().invoke(main, ["demo", *wrong.split()]).exit_code == 2, wrong
    (tmp_path / "palermo.toml").write_text("nonsense = 1\n")
    (line,) = demo("--files", "0", code=1).stderr.splitlines()
    assert line.startswith("palermo: DemoFailed: ")
    assert "nonsense" in line
    assert list(scratch.iterdir()) == []
