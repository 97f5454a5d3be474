"""Workers that are started from Python."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

import palermo
from palermo.client.client import Client
from palermo.errors import QueueNameInvalid, SettingInvalid
from palermo.settings.settings import Settings
from palermo.worker.options import WorkerFailed
from tests.harness.processes import title
from tests.harness.rig import PROGRAMS, Rig
from tests.helpers import HANGS, eventually


@pytest.fixture(autouse=True)
def _here(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(PROGRAMS)


def test_a_worker_started_from_python_works_and_gives_back_what_it_must(rig: Rig) -> None:
    rig.enqueue("note", str(rig.notes_path), "ran")

    with palermo.start_worker(["crew"], queues=["jobs"], concurrency=2, url=rig.settings.url) as worker:
        eventually(lambda: rig.lines() == ["ran"])
        eventually(lambda: [(row["pid"], row["slots"]) for row in rig.workers()] == [(worker.pid, 2)])
        assert worker.alive
        rig.hold()
        eventually(lambda: rig.lines()[-1] == "held begins")
        worker.stop(timeout=0.2)

    assert not worker.alive
    assert rig.workers() == []
    eventually(lambda: rig.pending() == 1)


def test_the_url_is_not_on_the_command_line(rig: Rig) -> None:
    worker = palermo.start_worker(["crew"], url="amqp://guest:hunter2@127.0.0.1:1/")
    try:
        words = Path(f"/proc/{worker.pid}/cmdline").read_text()
        assert "hunter2" not in words
        eventually(lambda: title(worker.pid).startswith("palermo worker"))
    finally:
        worker.kill()


def test_a_worker_serves_the_broker_that_this_process_connected_to(rig: Rig) -> None:
    program = (
        "import sys, palermo\n"
        "palermo.connect(sys.argv[1], exchange='palermo', default_queue='others')\n"
        "palermo.enqueue('crew.note', [sys.argv[2], 'ran'], queue='jobs')\n"
        "worker = palermo.start_worker(['crew'], queues='jobs', burst=True, log_level='error')\n"
        "print(worker.alive, worker.wait(60))\n"
    )
    command = [sys.executable, "-c", program, rig.settings.url, str(rig.notes_path)]
    clean = {name: value for name, value in os.environ.items() if not name.startswith("PALERMO_")}

    done = subprocess.run(command, env=clean, capture_output=True, text=True, timeout=HANGS, check=False)

    assert (done.stdout, done.stderr) == ("True 0\n", "")
    assert rig.lines() == ["ran"]


def test_what_start_worker_is_given_stands_above_what_was_connected(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    rig.enqueue("environ", str(rig.notes_path), "PALERMO_STARTER")
    monkeypatch.setattr("palermo.client.client._default", Client(Settings(url="sqlite:////nowhere/jobs.db")))

    assert palermo.start_worker(["crew"], burst=True, url=rig.settings.url).wait(60) == 0
    assert rig.lines() == ["None"]


def test_a_module_that_cannot_be_imported_is_said_at_the_start(rig: Rig) -> None:
    with pytest.raises(WorkerFailed, match=r"Give the module name instead of the file: shop\.jobs"):
        palermo.start_worker(["shop/jobs.py"], url=rig.settings.url)


def test_a_worker_that_ends_before_it_begins_is_said_to_have(rig: Rig) -> None:
    given: dict[str, str] = {"url": rig.settings.url, "pidfile": str(rig.path / "pid")}

    with palermo.start_worker(["crew"], **given), pytest.raises(WorkerFailed, match="exit code"):  # type: ignore[arg-type]
        palermo.start_worker(["crew"], **given)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("queues", "url", "error"),
    [("failed", "sqlite:///jobs.db", QueueNameInvalid), ("jobs", "sqlite:///:memory:", SettingInvalid)],
)
def test_what_no_worker_can_serve_is_refused_before_one_starts(queues: str, url: str, error: type[Exception]) -> None:
    with pytest.raises(error):
        palermo.start_worker(["crew"], queues=queues, url=url)
