"""`palermo worker --workers N` and `--reload`, as processes of their own on an embedded broker."""

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from palermo.client.client import Client
from palermo.inspector.inspector import Inspector
from palermo.settings.settings import Settings
from tests.helpers import eventually

#: Starts `palermo worker` with these arguments.
Start = Callable[..., "subprocess.Popen[bytes]"]

MODULE = "import palermo\n@palermo.job(name='say', keep_result=True)\ndef say():\n    return {!r}\n"


@pytest.fixture
def client(tmp_path: Path) -> Iterator[Client]:
    client = Client(Settings(url=f"sqlite:///{tmp_path}/jobs.db", publish_timeout=30.0))
    yield client
    client.close()


@pytest.fixture
def inspector(client: Client) -> Inspector:
    return Inspector(client)


@pytest.fixture
def start(tmp_path: Path, client: Client) -> Iterator[Start]:
    (tmp_path / "supervised_jobs.py").write_text(MODULE.format("old"))
    started: list[subprocess.Popen[bytes]] = []

    def run(*arguments: str) -> "subprocess.Popen[bytes]":
        command = [str(Path(sys.executable).with_name("palermo")), "worker", "supervised_jobs", *arguments]
        # Python takes a file that changes twice in a second, without growing, for the same from its bytecode.
        environment = {**os.environ, "PALERMO_URL": client.settings.url, "PYTHONDONTWRITEBYTECODE": "1"}
        with (tmp_path / "log").open("wb") as log:
            started.append(subprocess.Popen(command, cwd=tmp_path, env=environment, stderr=log))
        return started[-1]

    yield run
    for process in started:
        if process.poll() is None:
            process.terminate()
        process.wait(90)


def read_log(folder: Path) -> str:
    return (folder / "log").read_text()


def pids(inspector: Inspector) -> set[int]:
    return {row["pid"] for row in inspector.workers() if row["state"] != "stopping"}


def is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def test_a_worker_that_is_killed_is_replaced_and_all_end_together(
    start: Start, inspector: Inspector, tmp_path: Path
) -> None:
    process = start("--workers", "2")
    first = eventually(lambda: len(found := pids(inspector)) == 2 and found, within=60)

    victim = min(first)
    os.kill(victim, signal.SIGKILL)
    second = eventually(lambda: len(found := pids(inspector) - {victim}) == 2 and found, within=60)
    process.terminate()
    process.wait(60)
    log = read_log(tmp_path)

    assert process.returncode == 0
    assert process.pid not in first | second
    assert not any(is_alive(pid) for pid in first | second)
    assert f"starting another pid={victim}" in log
    assert log.count("worker stopped") == 2


def test_a_burst_of_several_workers_runs_all_and_ends(start: Start, client: Client) -> None:
    jobs = [client.enqueue("say", keep_result=True) for _ in range(20)]

    process = start("--workers", "2", "--burst")
    process.wait(90)

    assert process.returncode == 0
    assert [job.result(30) for job in jobs] == ["old"] * 20


def test_a_module_that_cannot_be_imported_is_said_once_and_ends_all(start: Start, tmp_path: Path) -> None:
    process = start("no_such_module", "--workers", "3")
    process.wait(60)
    log = read_log(tmp_path)

    assert process.returncode == 1
    assert log.count("no_such_module") == log.count("cannot import module") * 2 == 2


def test_workers_stop_when_their_supervisor_is_killed(start: Start, inspector: Inspector) -> None:
    process = start("--workers", "2")
    found = eventually(lambda: len(found := pids(inspector)) == 2 and found, within=60)

    process.kill()

    eventually(lambda: not any(is_alive(pid) for pid in found), within=60)


def test_a_change_of_the_code_is_taken_over_and_broken_code_is_waited_for(
    start: Start, client: Client, inspector: Inspector, tmp_path: Path
) -> None:
    module = tmp_path / "supervised_jobs.py"
    process = start("--reload")
    eventually(lambda: pids(inspector), within=60)
    assert client.enqueue("say", keep_result=True).result(60) == "old"

    module.write_text("import palermo\nraise RuntimeError('half-written')\n")
    eventually(lambda: "waits for the code to change" in read_log(tmp_path), within=60)
    module.write_text(MODULE.format("brand new"))
    eventually(lambda: pids(inspector), within=60)

    assert client.enqueue("say", keep_result=True).result(60) == "brand new"
    process.terminate()
    process.wait(60)
    log = read_log(tmp_path)
    assert process.returncode == 0
    assert f"code changed, starting anew path={module}" in log
    assert "half-written" in log


def test_a_burst_that_cannot_go_on_is_not_begun_again(start: Start, tmp_path: Path) -> None:
    (tmp_path / "jobs.db").write_text("no database, and so no broker for anybody " * 100)

    process = start("--workers", "2", "--burst")
    process.wait(60)

    assert process.returncode == 3
    assert "starting another" not in read_log(tmp_path)


@pytest.mark.parametrize("more", [("--pidfile", "x"), ("--metrics-port", "9100")])
def test_what_several_workers_cannot_share_is_wrong_usage(start: Start, more: tuple[str, str], tmp_path: Path) -> None:
    process = start("--workers", "2", *more)
    process.wait(60)
    log = read_log(tmp_path)

    assert process.returncode == 2
    assert more[0] in log
    assert log.count("\n") == 1
