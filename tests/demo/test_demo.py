"""`palermo demo` from start to end, on both brokers."""

import json
import os
import re
import secrets
import shlex
import signal
import subprocess
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from palermo.client.client import Client
from palermo.core.text import count
from palermo.demo.jobs import parse
from palermo.demo.steps import damaged_files, stdlib_files
from palermo.inspector.inspector import Inspector
from palermo.settings.settings import Settings
from tests.demo.conftest import Demo
from tests.helpers import eventually
from tests.rabbitmq_tidy import delete_all

pytestmark = pytest.mark.slow


Running = Callable[..., "subprocess.Popen[str]"]


@pytest.fixture
def exchange(rabbitmq_url: str) -> Iterator[str]:
    name = f"palermo-demo-{secrets.token_hex(6)}"
    yield name
    delete_all(rabbitmq_url, name)


def worker_pid(output: str) -> int:
    found = re.search(r"worker +pid:(\d+)@", output)
    assert found is not None, output
    return int(found[1])


def started_worker(scratch: Path) -> int:
    """The pid of the worker whose log lies there; 0 until there is one."""
    for log in scratch.glob("*/worker.log"):
        for pid in re.findall(r"worker started id=pid:(\d+)@", log.read_text()):
            return int(pid)
    return 0


def is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def counted(files: int) -> list[int]:
    """The syntax nodes and functions of the files, counted here."""
    found = [parse(str(path)) for path in stdlib_files(files)]
    return [sum(each.nodes for each in found), sum(each.functions for each in found)]


def check_story(output: str, *, files: int) -> None:
    jobs, broken = files + len(damaged_files()), len(damaged_files())
    assert f"{jobs} jobs stored in queue demo" in output
    assert re.search(rf"{jobs} jobs in [\d.]+ s, [\d,]+ jobs/s", output)
    assert f"{broken} jobs failed" in output
    if files:
        added = re.search(
            rf"{count(files, 'job')} done; their results add up to ([\d,]+) syntax nodes and ([\d,]+) fun", output
        )
        assert added is not None, output
        assert [int(number.replace(",", "")) for number in added.groups()] == counted(files)
    assert "its result: 1 function in bad_encoding.py.txt" in output
    assert re.search(r" 1  TabError +mixed_tabs.py.txt +inconsistent use of tabs", output)
    assert "UnicodeDecodeError: 'utf-8' codec can't decode byte 0xe8" in output
    assert '--kwargs \'{"encoding": "latin-1"}\'' in output
    assert f"it ran, and has left the failed jobs: {broken - 1} now" in output
    assert "it failed again, retries 1: Missing parentheses" in output
    assert "All as it should be" in output


def test_the_demo_tells_the_whole_story_and_leaves_nothing_behind(demo: Demo, scratch: Path) -> None:
    done = demo("--files", "30")

    check_story(done.stdout, files=30)
    assert done.stderr == ""
    assert list(scratch.iterdir()) == []
    assert not is_alive(worker_pid(done.stdout))
    assert "demo --keep" in done.stdout
    assert "demo --url amqp://localhost:5672/" in done.stdout
    assert "\x1b" not in done.stdout


def test_the_same_on_rabbitmq_where_its_queues_are_gone_afterwards(
    demo: Demo, scratch: Path, rabbitmq_url: str, exchange: str
) -> None:
    done = demo("--files", "30", "--url", rabbitmq_url, "--exchange", exchange)

    check_story(done.stdout, files=30)
    assert list(scratch.iterdir()) == []
    assert not is_alive(worker_pid(done.stdout))
    with Client(Settings(url=rabbitmq_url, exchange=exchange)) as client:
        assert [queue["name"] for queue in Inspector(client).queues() if queue["pending"]] == []


def test_what_is_kept_can_be_looked_at_with_the_command_it_names(
    demo: Demo, environment: dict[str, str], scratch: Path
) -> None:
    done = demo("--files", "0", "--keep")

    line = next(line for line in done.stdout.splitlines() if "failed list" in line)
    command = shlex.split(line.partition("$")[2].partition("   ")[0])
    listed = subprocess.run([*command, "--json"], env=environment, capture_output=True, text=True, check=True)
    assert len(json.loads(listed.stdout)) == len(damaged_files()) - 1
    removal = next(line for line in done.stdout.splitlines() if "rm -r" in line)
    assert shlex.split(removal.partition("$")[2])[2] == str(next(scratch.iterdir()))


def test_what_an_interrupted_demo_left_on_rabbitmq_does_not_spoil_the_next(
    demo: Demo, rabbitmq_url: str, exchange: str
) -> None:
    with Client(Settings(url=rabbitmq_url, exchange=exchange)) as client:
        client.enqueue("somebody.else", queue="demo")

    done = demo("--files", "0", "--url", rabbitmq_url, "--exchange", exchange)

    check_story(done.stdout, files=0)


def test_interrupted_it_stops_its_worker_and_leaves_nothing_behind(running: Running, scratch: Path) -> None:
    # With one slot and all files it takes so long that it is not through before it is interrupted.
    process = running("-c", "1", "--files", "100000")
    pid = eventually(lambda: started_worker(scratch))

    os.killpg(process.pid, signal.SIGINT)
    _, errors = process.communicate(timeout=90)

    assert process.returncode == 130
    assert errors.strip() == "palermo: interrupted"
    assert list(scratch.iterdir()) == []
    assert not is_alive(pid)


def test_it_goes_on_serving_the_pages_until_ctrl_c(running: Running, scratch: Path) -> None:
    process = running("--files", "0", "--web", "--port", "0")
    assert process.stdout is not None
    address = next(line for line in process.stdout if "See it in a browser: " in line).split()[-1]

    browser = urllib.request.build_opener(urllib.request.HTTPCookieProcessor())
    with browser.open(address.replace("/?", "/failures?")) as answer:
        page = answer.read().decode()
    os.killpg(process.pid, signal.SIGINT)
    rest, errors = process.communicate(timeout=90)

    assert "TabError" in page or "Reading the failed jobs" in page
    assert (process.returncode, errors) == (0, "")
    assert "All as it should be" in rest
    assert list(scratch.iterdir()) == []


def test_two_demos_on_one_broker_do_not_take_each_others_queues_away(
    running: Running, demo: Demo, tmp_path: Path
) -> None:
    url = f"sqlite:///{tmp_path / 'both.db'}"
    process = running("-c", "1", "--files", "100000", "--url", url)
    with Client(Settings(url=url, exchange="palermo-demo", publish_timeout=30)) as client:
        eventually(Inspector(client).workers)

    done = demo("--url", url, code=1)

    assert "another demo is at work on this broker" in done.stderr
    assert process.poll() is None


def test_a_worker_that_cannot_start_is_named_with_its_own_words(demo: Demo, tmp_path: Path, scratch: Path) -> None:
    (tmp_path / "palermo.toml").write_text("nonsense = 1\n")

    done = demo("--files", "0", code=1)

    assert done.stderr.startswith("palermo: DemoFailed: the demo did not go as it should: the worker has ended: ")
    assert "nonsense" in done.stderr
    assert done.stderr.count("\n") == 1
    assert list(scratch.iterdir()) == []


def test_a_broker_that_is_not_there_is_named_without_the_password(demo: Demo, scratch: Path) -> None:
    done = demo("--url", "amqp://ann:secret-word@127.0.0.1:1/", code=3)

    assert "127.0.0.1:1" in done.stderr
    assert "secret-word" not in done.stdout + done.stderr
    assert list(scratch.iterdir()) == []


def test_it_empties_no_exchange_that_is_not_a_demos(demo: Demo) -> None:
    done = demo("--exchange", "palermo", code=2)

    assert "palermo-demo" in done.stderr


@pytest.mark.parametrize("arguments", [("-c", "0"), ("--files", "-1"), ("--url", "sqlite:///:memory:")])
def test_what_makes_no_sense_is_wrong_usage(demo: Demo, arguments: tuple[str, ...]) -> None:
    demo(*arguments, code=2)
