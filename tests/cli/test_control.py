"""`palermo pause`, `resume`, `cancel` and `control`."""

import getpass
import json
import socket
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from palermo.client.client import Client
from palermo.errors import NotFound
from palermo.inspector.control import choose
from tests.cli.conftest import Palermo
from tests.harness.processes import WorkerProcess
from tests.harness.rig import Rig
from tests.helpers import eventually
from tests.inspector.jobs import message, publish


@pytest.fixture
def rig(tmp_path: Path, client: Client) -> Iterator[Rig]:
    """Workers on the same broker."""
    rig = Rig(tmp_path)
    yield rig
    rig.close()


@pytest.fixture
def worker(rig: Rig) -> WorkerProcess:
    worker = rig.worker()
    rig.ready(worker)
    return worker


def queues(palermo: Palermo) -> dict[str, bool]:
    return {row["name"]: row["paused"] for row in json.loads(palermo("queues", "--json").stdout)}


def test_pause_and_resume_show_in_the_listing(palermo: Palermo, client: Client) -> None:
    publish(client, message("1"), message("2"))

    assert palermo("pause", "mail").stdout == "paused queue mail: 2 jobs pending, 0 in progress.\n"
    assert queues(palermo) == {"failed": False, "mail": True}
    assert "paused" in palermo("queues").stdout.splitlines()[-1]
    assert "queue mail is paused" in palermo("check").stdout

    assert palermo("resume", "mail").stdout == "resumed queue mail.\n"
    assert palermo("resume", "mail").stdout == "queue mail was not paused.\n"
    assert queues(palermo) == {"failed": False, "mail": False}


def test_several_queues_at_once_as_json(palermo: Palermo, client: Client) -> None:
    publish(client, message("1"))

    rows = json.loads(palermo("pause", "mail", "later", "--json").stdout)

    assert [(row["name"], row["paused"]) for row in rows] == [("later", True), ("mail", True)]
    rows = json.loads(palermo("resume", "mail", "later", "--json").stdout)
    assert [(row["name"], row["paused"]) for row in rows] == [("mail", False), ("later", False)]


def test_all_queues_are_paused_and_resumed(palermo: Palermo, client: Client) -> None:
    publish(client, message("1"), message("2"))
    palermo("pause", "images")

    assert palermo("pause", "--all").stdout == "paused all queues: 2 jobs pending, 0 in progress.\n"
    publish(client, message("3", queue="later"))
    assert queues(palermo) == {"failed": False, "images": True, "later": True, "mail": True}
    assert "all queues are paused" in palermo("check").stdout
    assert "all queues are paused" in palermo("doctor").stdout
    assert "until `palermo resume --all`" in palermo("resume", "mail").stderr

    resumed = palermo("resume", "--all")

    assert resumed.stdout == "resumed all queues: 3 jobs pending, 0 in progress.\n"
    assert "still paused by name: images" in resumed.stderr
    assert queues(palermo) == {"failed": False, "images": True, "later": False, "mail": False}
    again = palermo("resume", "--all")
    assert again.stdout.startswith("`pause --all` was not in force, nothing is changed: ")
    assert "still paused by name: images" in again.stderr


def test_a_star_is_no_queue_and_the_answer_names_all(palermo: Palermo) -> None:
    assert "palermo pause --all" in palermo("pause", "*", code=2).stderr
    assert "palermo resume --all" in palermo("resume", "*", code=2).stderr
    assert "not both" in palermo("pause", "mail", "--all", code=2).stderr
    assert "palermo worker -q" in palermo("pause", "a,b", code=2).stderr
    assert queues(palermo) == {"failed": False}


@pytest.mark.parametrize("name", ["*", "a,b", "!low", "=x"])
def test_a_queue_named_as_a_pattern_can_be_read_and_deleted(palermo: Palermo, client: Client, name: str) -> None:
    assert "palermo worker -q" in palermo("enqueue", "shop.mail", "-q", name, code=2).stderr

    publish(client, message("1", queue=name))

    assert [row["id"] for row in json.loads(palermo("jobs", name, "--json").stdout)] == ["1"]
    palermo("delete", name, "--yes")
    assert queues(palermo) == {"failed": False}


def test_cancelled_jobs_are_marked_and_shown(palermo: Palermo, client: Client) -> None:
    publish(client, message("1"), message("2"))

    result = palermo("cancel", "2", "nobody")

    assert result.stdout.splitlines() == [
        "2: marked: no worker reports running it; if it waits, it will not run.",
        "nobody: marked: no worker reports running it; if it waits, it will not run.",
    ]
    assert [row["state"] for row in json.loads(palermo("jobs", "mail", "--json").stdout)] == ["pending", "cancelled"]
    assert "cancelled" in palermo("jobs", "mail").stdout
    assert json.loads(palermo("cancel", "1", "--json").stdout) == [
        {"id": "1", "state": "marked", "worker": None, "job": None, "queue": None}
    ]


@pytest.mark.parametrize("journal", ["failures", "all"])
def test_a_cancelled_job_that_is_due_later_is_called_cancelled_everywhere(
    palermo: Palermo, monkeypatch: pytest.MonkeyPatch, journal: str
) -> None:
    monkeypatch.setenv("PALERMO_JOURNAL", journal)
    chosen, other = (palermo("enqueue", "shop.resize", "-q", "mail", "--in", "1h").stdout.strip() for _ in range(2))

    palermo("cancel", chosen)

    states = {row["id"]: row["state"] for row in json.loads(palermo("scheduled", "list", "--json").stdout)}
    assert states == {chosen: "cancelled", other: "scheduled"}
    assert "cancelled" in palermo("scheduled", "list").stdout
    assert json.loads(palermo("status", chosen, "--json").stdout)["state"] == "cancelled"
    assert "cancelled" in palermo("wait", chosen, "--timeout", "60", code=1).stdout


def test_a_running_job_is_cancelled(palermo: Palermo, rig: Rig, worker: WorkerProcess) -> None:
    id = rig.hold()
    eventually(lambda: rig.lines() == ["held begins"])
    row = rig.only_worker()

    # A worker answers after 3 s at the latest, whether the job has ended or not; the next answer is of one that has.
    began = time.monotonic()
    said = palermo("cancel", id).stdout
    if "cancelled while running" not in said:
        assert time.monotonic() - began >= 3, said
        eventually(lambda: rig.only_worker()["jobs"] == [])
        said = palermo("cancel", id).stdout
    assert said == f"{id}: cancelled while running on {row['id']}.\n"

    assert f"by={getpass.getuser()}@{socket.gethostname()}" in worker.log


def test_workers_are_told_by_id_by_pid_and_all_together(palermo: Palermo, rig: Rig, worker: WorkerProcess) -> None:
    row = rig.only_worker()

    assert palermo("control", "quiet", row["id"]).stdout.splitlines()[1].split() == [row["id"], "quiet"]
    eventually(lambda: json.loads(palermo("workers", "--json").stdout)[0]["state"] == "quiet")
    assert palermo("control", "resume", str(worker.pid), "--json").stdout.startswith("[")
    eventually(lambda: rig.only_worker()["state"] == "idle")
    assert json.loads(palermo("control", "quiet", "--all", "--json").stdout) == [
        {"worker": row["id"], "answered": True, "state": "quiet"}
    ]

    palermo("control", "stop", row["id"][:-1])
    assert worker.wait() == 0


def test_stacks_are_printed(palermo: Palermo, rig: Rig, worker: WorkerProcess) -> None:
    id = rig.hold()
    eventually(lambda: rig.lines() == ["held begins"])

    def stacks() -> str:
        """Of a slot that gets no turn for 2 s there are none."""
        shown = palermo("control", "stack", str(worker.pid)).stdout
        return "" if "it gave no answer" in shown else shown

    shown = eventually(stacks)

    assert shown.startswith("== pid:")
    assert f"job crew.hold {id} in slot 1:" in shown
    assert "in hold" in shown


def test_what_ends_workers_asks_first(palermo: Palermo, worker: WorkerProcess) -> None:
    assert "--yes" in palermo("control", "kill", str(worker.pid), code=2).stderr
    assert "--yes" in palermo("control", "stop", "--all", code=2).stderr
    assert worker.alive

    assert "stopping: killed 0 jobs" in palermo("control", "kill", "--all", "--yes").stdout
    worker.wait()


def test_workers_that_are_not_there(palermo: Palermo) -> None:
    assert "no worker '4711'" in palermo("control", "quiet", "4711", code=4).stderr
    assert "no workers" in palermo("control", "quiet", "--all").stderr
    assert palermo("control", "stack", "--all", "--json").stdout == "[]\n"


@pytest.mark.parametrize("arguments", [[], ["quiet"], ["quiet", "1", "--all"], ["dance", "1"]])
def test_what_makes_no_sense_is_refused(palermo: Palermo, arguments: list[str]) -> None:
    palermo("control", *arguments, code=2)


def test_a_name_must_mean_one_worker() -> None:
    pids = {"pid:12@a": 12, "pid:120@a": 120, "pid:12@b": 12}

    assert choose(pids, ["120", "pid:12@b", "pid:12@b"]) == ["pid:120@a", "pid:12@b"]
    with pytest.raises(NotFound, match="may be any of 2 workers: pid:12@a, pid:12@b"):
        choose(pids, ["12"])
    with pytest.raises(NotFound, match="may be any of 3"):
        choose(pids, ["pid:12"])
    with pytest.raises(NotFound, match="no worker ''"):
        choose(pids, [""])
