"""`palermo pause`, `resume`, `cancel` and `control`."""

import getpass
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from palermo.client.client import Client
from palermo.errors import NotFound
from palermo.inspector.workers import choose
from tests.cli.conftest import Palermo
from tests.harness.processes import WorkerProcess
from tests.harness.rig import Rig
from tests.helpers import eventually


@pytest.fixture
def rig(tmp_path: Path, client: Client) -> Iterator[Rig]:
    """Workers on the same broker."""
    with Rig(tmp_path) as rig:
        yield rig


@pytest.fixture
def worker(rig: Rig) -> WorkerProcess:
    worker = rig.worker()
    rig.ready(worker)
    return worker


def test_a_running_job_is_shown_and_cancelled(palermo: Palermo, rig: Rig, worker: WorkerProcess) -> None:
    id = rig.hold()
    eventually(lambda: rig.lines() == ["held begins"])
    row = rig.only_worker()

    # On a busy machine a slot may give no stack in time, and a job end after the answer to its cancel.
    stack = f"== {row['id']}\njob crew.hold {id} in slot 1:\n"
    eventually(lambda: palermo("control", "stack", str(worker.pid)).stdout.startswith(stack))
    said = f"{id}: cancelled while running on {row['id']}.\n"
    eventually(lambda: palermo("cancel", id).stdout == said)
    assert f"by={getpass.getuser()}@{socket.gethostname()}" in worker.log


def test_workers_are_told_by_id_by_pid_and_all_together(palermo: Palermo, rig: Rig, worker: WorkerProcess) -> None:
    row = rig.only_worker()

    assert palermo("control", "quiet", row["id"]).stdout.splitlines()[1].split() == [row["id"], "quiet"]
    eventually(lambda: palermo.rows("workers")[0]["state"] == "quiet")
    eventually(lambda: "Leads in" in palermo("workers").stdout)
    palermo("control", "resume", str(worker.pid))
    eventually(lambda: rig.only_worker()["state"] == "idle")
    assert palermo.rows("control", "quiet", "--all") == [{"worker": row["id"], "answered": True, "state": "quiet"}]

    assert "--yes" in palermo("control", "kill", str(worker.pid), code=2).stderr
    assert worker.alive
    palermo("control", "stop", row["id"][:-1])
    assert worker.wait() == 0


def test_all_workers_are_killed_once_that_is_confirmed(palermo: Palermo, worker: WorkerProcess) -> None:
    assert "stopping: killed 0 jobs" in palermo("control", "kill", "--all", "--yes").stdout
    worker.wait()


def test_a_name_must_mean_one_worker() -> None:
    pids = {"pid:12@a": 12, "pid:120@a": 120, "pid:12@b": 12}

    assert choose(pids, ["120", "pid:12@b", "pid:12@b"]) == ["pid:120@a", "pid:12@b"]
    with pytest.raises(NotFound, match="matches 2 workers: pid:12@a, pid:12@b"):
        choose(pids, ["12"])
    with pytest.raises(NotFound, match="matches 3"):
        choose(pids, ["pid:12"])
    with pytest.raises(NotFound, match="no worker ''"):
        choose(pids, [""])
