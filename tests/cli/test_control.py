"""`palermo pause`, `resume`, `cancel`, `control` and `check`, and the names that a shell completes."""

import getpass
import os
import socket
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from click.shell_completion import BashComplete

from palermo.cli import main
from palermo.client.client import Client
from palermo.errors import NotFound, SettingInvalid
from palermo.inspector.check import Limits, check, check_worker, compare, read_pidfile
from palermo.inspector.inspector import Inspector
from palermo.inspector.workers import choose
from palermo.settings.settings import Settings
from palermo.worker.handle import start_worker
from tests.cli.conftest import Palermo, Process
from tests.harness.processes import WorkerProcess
from tests.harness.rig import PROGRAMS, Rig
from tests.helpers import eventually
from tests.inspector.jobs import failure, message, publish, publish_failed


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


@pytest.mark.parametrize(
    ("limits", "expected"),
    [
        (Limits(), "ok"),
        (Limits(max_pending=5), "ok"),
        (Limits(max_pending=4), "queue mail: 5 jobs pending, more than 4"),
        (Limits(max_age=60.0), "ok"),
        (Limits(max_age=59.0), "queue mail: its first job is 60 s old, more than 59"),
        (Limits(workers=2), "ok"),
        (Limits(workers=3), "2 workers, fewer than 3"),
        (Limits(workers=1, queues=("mail",)), "ok"),
        (Limits(workers=2, queues=("mail",)), "queue mail: 1 worker, fewer than 2"),
        (Limits(queues=("mial",)), "queue mial does not exist"),
        (Limits(max_pending=0, workers=9), "queue mail: 5 jobs pending, more than 0; 2 workers, fewer than 9"),
    ],
)
def test_each_limit_by_itself_and_all_that_is_wrong_in_one_line(limits: Limits, expected: str) -> None:
    mail = {"name": "mail", "pending": 5, "in_progress": 0, "workers": 1, "paused": False}

    found = compare(limits, [mail], workers=2, ages={"mail": 60.0})

    assert ("ok" if found.ok else found.line()) == expected


def test_the_first_job_of_a_queue_gives_its_age(client: Client) -> None:
    publish(client, message("old", queue="mail", created_at=1_000), message("new", queue="mail", created_at=1_090))
    publish(client, message("unsaid", queue="other", created_at=None))
    # A job that was scheduled has waited since it was due.
    publish(client, message("due", queue="reports", created_at=1_000, run_at=1_080))

    found = check(Inspector(client), Limits(max_age=99.0), now=1_100.0)

    assert {row["name"]: row["oldest_age"] for row in found.queues} == {"mail": 100.0, "other": None, "reports": 20.0}
    assert found.problems == ("queue mail: its first job is 100 s old, more than 99",)
    assert found.unknown == ("queue other: age unknown",)
    assert check(Inspector(client), Limits(max_age=0.0, queues=("other",)), now=1_100.0).ok


def test_a_worker_is_well_while_it_lives_and_answers(
    palermo: Palermo, client: Client, url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pidfile = str(tmp_path / "pid")
    assert "no worker runs with pidfile" in palermo("check", "--pidfile", pidfile, code=1).stdout

    monkeypatch.chdir(PROGRAMS)
    with (
        (tmp_path / "log").open("wb") as log,
        start_worker(["crew"], settings=Settings(url=url), log=log, pidfile=pidfile) as worker,
    ):
        eventually(lambda: palermo("check", "--pidfile", pidfile))
        palermo("check", "--worker-pid", str(worker.pid))
        palermo("check", "--this-host")
        palermo("check", "--workers", "1")
        palermo("check", "--workers", "1", "--queue", "jobs")
        assert not check_worker(Inspector(client), worker.pid, host="elsewhere").ok
        worker.kill()

        assert f"there is no process {worker.pid}" in palermo("check", "--pidfile", pidfile, code=1).stdout
        assert "no worker of host" in palermo("check", "--this-host", code=1).stdout


def test_a_pidfile_of_another_process_or_of_none_is_no_workers(palermo: Palermo, tmp_path: Path) -> None:
    (tmp_path / "pid").write_text(f"{os.getpid()}\n")
    done = palermo("check", "--pidfile", str(tmp_path / "pid"), code=1)
    assert f"pid:{os.getpid()}@{socket.gethostname()} does not answer" in done.stdout

    for text in ("", "-1", "0", "no number", "12 34"):
        (tmp_path / "pid").write_text(text)
        with pytest.raises(SettingInvalid, match="is not a worker's pidfile"):
            read_pidfile(str(tmp_path / "pid"))


#: The completions of the last word.
Completed = Callable[[str], list[str]]


@pytest.fixture
def completed(palermo: Palermo) -> Completed:
    def complete(words: str) -> list[str]:
        _, *arguments, last = words.split(" ")
        completion = BashComplete(main, {}, "palermo", "_PALERMO_COMPLETE")
        return [item.value for item in completion.get_completions(arguments, last)]

    return complete


@pytest.mark.parametrize(
    ("words", "names"),
    [
        ("palermo pause ma", ["mail"]),
        ("palermo pause mail p", ["pictures"]),
        ("palermo jobs p", ["pictures"]),
        ("palermo worker shop -q p", ["pictures"]),
        ("palermo worker shop -q mail,p", ["mail,pictures"]),
        ("palermo failed list --queue m", ["mail"]),
        ("palermo failed requeue --to-queue m", ["mail"]),
        # A failed job without a name breaks nothing.
        ("palermo failed list --job s", ["shop.report", "shop.send"]),
        *((f"palermo recurring {command} n", ["nightly"]) for command in ("show", "run", "enable", "disable")),
        ("palermo purge nothing", []),
        ("palermo que", ["queues"]),
    ],
)
def test_names_are_completed_wherever_one_is_given(
    palermo: Palermo, completed: Completed, client: Client, words: str, names: list[str]
) -> None:
    publish_failed(client, (message("1", job="", queue="pictures"), failure()), (message("2"), failure()))
    palermo("recurring", "add", "nightly", "shop.report", "--every", "1d")

    assert completed(words) == names


def test_workers_are_completed(completed: Completed, url: str, tmp_path: Path) -> None:
    (tmp_path / "completed_jobs.py").write_text("import palermo\n@palermo.job\ndef resize(path): ...\n")

    with start_worker(["completed_jobs"], url=url) as worker:
        [name] = eventually(lambda: completed("palermo control quiet pid"))

        assert name.startswith(f"pid:{worker.pid}@")
        assert completed("palermo history --worker pid") == [name]


def test_a_shell_completes_the_jobs_that_the_configured_modules_declare(process: Process, tmp_path: Path) -> None:
    (tmp_path / "completed_jobs.py").write_text("import palermo\nprint('loud')\n@palermo.job\ndef resize(path): ...\n")
    shell = {"_PALERMO_COMPLETE": "bash_complete", "COMP_WORDS": "palermo enqueue comp", "COMP_CWORD": "2"}

    done = process(PALERMO_IMPORTS="completed_jobs", **shell)

    assert (done.stdout, done.stderr) == ("plain,completed_jobs.resize\n", "")


def test_a_broker_that_is_away_completes_nothing_and_says_nothing(
    completed: Completed, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("PALERMO_URL", "amqp://127.0.0.1:1/")

    assert completed("palermo pause m") == []
    assert capfd.readouterr() == ("", "")
