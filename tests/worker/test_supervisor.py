"""`palermo worker --workers N` and `--reload`, as processes of their own on an embedded broker."""

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.harness.processes import WorkerProcess, exists
from tests.harness.rig import Rig
from tests.helpers import eventually

MODULE = "import palermo\n@palermo.job(name='say', keep_result=True)\ndef say():\n    return {!r}\n"


@pytest.fixture
def rig(tmp_path: Path) -> Iterator[Rig]:
    (tmp_path / "supervised_jobs.py").write_text(MODULE.format("old"))
    with Rig(tmp_path, module="supervised_jobs") as rig:
        # Python takes a file that changes twice in a second, without growing, for the same from its bytecode.
        rig.environment["PYTHONDONTWRITEBYTECODE"] = "1"
        yield rig


def pids(rig: Rig) -> set[int]:
    return {row["pid"] for row in rig.workers() if row["state"] != "stopping"}


def two_workers(rig: Rig) -> tuple[WorkerProcess, set[int]]:
    """A supervisor, and the pids of its workers."""
    supervisor = rig.worker("--workers", "2")
    return supervisor, eventually(lambda: found if len(found := pids(rig)) == 2 else set())


@pytest.mark.slow
def test_a_worker_that_is_killed_is_replaced_and_all_end_together(rig: Rig) -> None:
    supervisor, first = two_workers(rig)

    victim = min(first)
    os.kill(victim, signal.SIGKILL)
    second = eventually(lambda: found if len(found := pids(rig) - {victim}) == 2 else set())
    supervisor.send(signal.SIGTERM)

    assert supervisor.wait() == 0
    assert supervisor.pid not in first | second
    assert not any(exists(pid) for pid in first | second)
    assert f"starting another pid={victim}" in supervisor.log
    assert supervisor.log.count("worker stopped") == 2


@pytest.mark.slow
def test_workers_stop_when_their_supervisor_is_killed(rig: Rig) -> None:
    supervisor, found = two_workers(rig)

    supervisor.kill9()

    eventually(lambda: not any(exists(pid) for pid in found))


@pytest.mark.slow
def test_a_burst_of_several_workers_runs_all_and_ends(rig: Rig) -> None:
    jobs = [rig.client.enqueue("say", keep_result=True) for _ in range(20)]

    rig.burst("--workers", "2")

    assert [job.result(30) for job in jobs] == ["old"] * 20


@pytest.mark.slow
def test_a_burst_that_cannot_go_on_is_not_begun_again(rig: Rig) -> None:
    (rig.path / "jobs.db").write_text("no database, and so no broker for anybody " * 100)

    supervisor = rig.worker("--workers", "2", "--burst")

    assert supervisor.wait() == 3
    assert "starting another" not in supervisor.log


def test_a_module_that_cannot_be_imported_is_said_once_and_ends_all(rig: Rig) -> None:
    supervisor = rig.worker("--workers", "3", modules=("supervised_jobs", "no_such_module"))

    assert supervisor.wait() == 1
    assert supervisor.log.count("no_such_module") == supervisor.log.count("cannot import module") * 2 == 2


@pytest.mark.slow
def test_a_change_of_the_code_is_taken_over_and_broken_code_waited_for(rig: Rig) -> None:
    module = rig.path / "supervised_jobs.py"
    worker = rig.worker("--reload")
    eventually(lambda: pids(rig))
    assert rig.client.enqueue("say", keep_result=True).result(60) == "old"

    module.write_text("import palermo\nraise RuntimeError('half-written')\n")
    eventually(lambda: "waiting for the code to change" in worker.log)
    module.write_text(MODULE.format("brand new"))
    eventually(lambda: pids(rig))

    assert rig.client.enqueue("say", keep_result=True).result(60) == "brand new"
    assert worker.stop() == 0
    assert f"code changed, restarting path={module}" in worker.log
    assert "half-written" in worker.log


@pytest.mark.parametrize("more", [("--pidfile", "x"), ("--metrics-port", "9100")])
def test_what_several_workers_cannot_share_is_wrong_usage(rig: Rig, more: tuple[str, str]) -> None:
    supervisor = rig.worker("--workers", "2", *more)

    assert supervisor.wait() == 2
    assert more[0] in supervisor.log
    assert supervisor.log.count("\n") == 1
