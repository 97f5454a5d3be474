"""`palermo check`: one line and an exit code, for monitors, and whether one worker answers."""

import os
import socket
from pathlib import Path

import pytest

from palermo.client.client import Client
from palermo.errors import SettingInvalid
from palermo.inspector.check import Limits, check, check_worker, compare, read_pidfile
from palermo.inspector.inspector import Inspector
from palermo.settings.settings import Settings
from palermo.worker.handle import start_worker
from tests import redis_node
from tests.cli.conftest import Palermo
from tests.harness.rig import PROGRAMS
from tests.helpers import eventually
from tests.inspector.jobs import message, publish


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


def test_limits_that_cannot_be_checked_are_a_problem() -> None:
    with redis_node.running("--replicaof", "127.0.0.1", "1") as replica, Client(Settings(url=replica.url)) as client:
        asked, limited = (check(Inspector(client), limits) for limits in (Limits(), Limits(workers=1)))

    assert (asked.ok, limited.ok) == (True, False)
    for found in (asked, limited):
        assert found.line().startswith("queues and workers cannot be read; Redis at ")
        assert "is a replica" in found.line()


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
