"""Actions of an operator on a worker beyond stopping it: kill its jobs, look into them, quiet it, start it anew."""

import os
import re
import shutil
import signal
import sys
from contextlib import suppress
from pathlib import Path

import pytest

from tests.harness.processes import WorkerProcess, exists
from tests.harness.rig import PROGRAMS, Rig
from tests.helpers import eventually

MODULE = "crew_limits"
LIMITS = (MODULE,)


def _running(rig: Rig, job: str, *more: object, arguments: tuple[str, ...] = ()) -> tuple[WorkerProcess, str]:
    """A worker whose only slot runs this job, which has said so; and the job's id."""
    id = rig.enqueue(job, str(rig.notes_path), *more, module=MODULE)
    worker = rig.worker(*arguments, modules=LIMITS)
    eventually(lambda: "waits" in " ".join(rig.lines()))
    return worker, id


@pytest.mark.parametrize("job", ["tidies", "hogs_the_gil"])
def test_usr1_fails_the_running_jobs_and_the_worker_goes_on(rig: Rig, job: str) -> None:
    worker, killed = _running(rig, job)
    rig.enqueue("tells_pid", str(rig.notes_path), module=MODULE)

    worker.send(signal.SIGUSR1)

    eventually(lambda: rig.lines()[-1].isdecimal())
    failure = ("palermo.errors.JobCrashed", "the job's process was killed by the operator (USR1)")
    eventually(lambda: rig.errors() == {killed: failure})
    assert "on_failure JobCrashed" in rig.lines()
    assert worker.alive


def test_usr1_harms_no_idle_worker(rig: Rig) -> None:
    worker = rig.worker(modules=LIMITS)
    rig.ready(worker)
    children = worker.grown(2)

    worker.send(signal.SIGUSR1)
    eventually(lambda: "signal=USR1" in worker.log)

    assert worker.children() == children


def test_tstp_quiets_a_worker_and_cont_does_not_change_that(rig: Rig) -> None:
    rig.hold()
    rig.enqueue("note", str(rig.notes_path), "next")
    worker = rig.worker()
    eventually(lambda: rig.lines() == ["held begins"])

    worker.send(signal.SIGTSTP)
    eventually(lambda: rig.only_worker()["state"] == "quiet")
    worker.send(signal.SIGUSR2)
    eventually(lambda: "action=pause" in worker.log)
    worker.send(signal.SIGCONT)
    eventually(lambda: "action=resume" in worker.log and "worker stays quiet" in worker.log)
    worker.send(signal.SIGCONT)
    eventually(lambda: "signal=CONT action=none" in worker.log)
    rig.open_gate()
    eventually(lambda: rig.lines() == ["held begins", "held ends"])
    eventually(lambda: worker.title() == "palermo worker: quiet")

    assert rig.pending() == 1
    worker.send(signal.SIGTERM)
    assert worker.wait() == 0
    assert rig.pending() == 1


@pytest.mark.parametrize(("job", "shown"), [("stubborn", "in stubborn"), ("hogs_the_gil", "in in_c")])
def test_ttin_logs_the_stacks_of_parent_and_job_without_stopping_it(rig: Rig, job: str, shown: str) -> None:
    worker, id = _running(rig, job)

    for _ in range(2):
        before = worker.log.count(shown)
        worker.dump(lambda log, before=before: log.count(shown) > before)  # type: ignore[misc]

    assert f"stacks of a job id={id} job={MODULE}.{job} slot=1" in worker.log
    assert f"stacks of the worker pid={worker.pid}" in worker.log
    assert "in serve" in worker.log
    assert exists(int(rig.lines()[0].split()[0]))
    assert rig.errors() == {}


def test_ttin_names_every_running_job(rig: Rig) -> None:
    ids = [rig.hold(), rig.hold()]
    worker = rig.worker("-c", "2")
    eventually(lambda: len(rig.lines()) == 2)

    # The lines of a stack are indented.
    stacks = [re.compile(rf"stacks of a job id={id} .*\n(?:    .*\n)*    .*crew\.py") for id in ids]
    worker.dump(lambda log: all(each.search(log) for each in stacks))


@pytest.fixture
def code(tmp_path: Path) -> Path:
    """A module of the test's own, to be changed."""
    folder = tmp_path / "code"
    folder.mkdir()
    shutil.copy(PROGRAMS / "crew.py", folder)
    (folder / "shop.py").write_text(_shop("old"))
    return folder


def _shop(version: str) -> str:
    return f"""import palermo
from crew import hold, write

@palermo.job
def version(path):
    write(path, "{version}")
"""


def _version(rig: Rig) -> None:
    rig.enqueue("version", str(rig.notes_path), module="shop")


def test_hup_finishes_the_running_job_and_starts_anew_with_fresh_code(rig: Rig, code: Path) -> None:
    pidfile = rig.path / "pid"
    worker = rig.worker("--pidfile", str(pidfile), modules=("shop",), cwd=code)
    _version(rig)
    eventually(lambda: rig.lines() == ["old"])
    rig.hold()
    eventually(lambda: rig.lines()[-1] == "held begins")
    (code / "shop.py").write_text(_shop("shiny"))

    worker.send(signal.SIGHUP)
    eventually(lambda: "action=renew" in worker.log)
    _version(rig)
    worker.send(signal.SIGHUP)
    rig.open_gate()

    eventually(lambda: rig.lines() == ["old", "held begins", "held ends", "shiny"])
    assert pidfile.read_text() == f"{worker.pid}\n"
    assert rig.errors() == {}
    eventually(lambda: [row["pid"] for row in rig.workers()] == [worker.pid])
    worker.send(signal.SIGTERM)
    assert worker.wait() == 0


def test_a_module_that_is_broken_after_hup_ends_the_worker_with_a_reason(rig: Rig, code: Path) -> None:
    worker = rig.worker(modules=("shop",), cwd=code)
    rig.ready(worker)
    (code / "shop.py").write_text("import nonsense_\n")

    worker.send(signal.SIGHUP)
    eventually(lambda: "action=renew" in worker.log)
    _version(rig)

    assert worker.wait() == 1
    assert "cannot import module 'shop': ModuleNotFoundError: No module named 'nonsense_'" in worker.log
    assert rig.pending() == 1


def test_term_after_hup_ends_the_worker(rig: Rig) -> None:
    rig.hold()
    worker = rig.worker()
    eventually(lambda: rig.lines() == ["held begins"])

    worker.send(signal.SIGHUP)
    eventually(lambda: "action=renew" in worker.log)
    worker.send(signal.SIGTERM)
    eventually(lambda: "action=stop" in worker.log)
    rig.open_gate()

    assert worker.wait() == 0


GRACE = ("--shutdown-timeout", "0.2")


@pytest.mark.parametrize(
    ("job", "more", "arguments", "told"),
    [
        ("tidies", (), ("--resque-signals",), []),
        ("tidies", (), GRACE, ["tidied after JobTerminated"]),
        ("gives_up", ("key",), GRACE, []),
        ("gives_up", ("exit",), GRACE, []),
        ("stubborn", (), GRACE, ["not impressed"]),
        ("tidies_slowly", ("gate",), (*GRACE, "--term-timeout", "0"), None),
        ("tidies_slowly", ("gate",), (*GRACE, "--term-timeout", "0.3s"), None),
    ],
    ids=["resque's signals", "tidies", "raises", "exits", "stubborn", "no time to tidy", "tidies too long"],
)
def test_a_job_that_outlasts_the_timeout_is_given_back_whatever_it_does(
    rig: Rig, job: str, more: tuple[str, ...], arguments: tuple[str, ...], told: list[str] | None
) -> None:
    worker, _ = _running(rig, job, *more, arguments=arguments)

    worker.send(signal.SIGTERM)

    assert worker.wait() == 1
    # One that is killed in the midst of it may have begun to tidy.
    assert "has tidied" not in rig.lines() if told is None else rig.lines()[1:] == told
    assert "told of" not in worker.log
    assert rig.errors() == {}
    assert rig.pending() == 1


def test_with_resque_signals_int_kills_at_once_too(rig: Rig) -> None:
    worker, _ = _running(rig, "tidies", arguments=("--resque-signals",))

    worker.send(signal.SIGINT)

    assert worker.wait() == 1
    assert (len(rig.lines()), rig.errors(), rig.pending()) == (1, {}, 1)


def test_a_job_that_finishes_when_it_is_told_to_clean_up_has_finished(rig: Rig) -> None:
    worker, _ = _running(rig, "finishes", arguments=GRACE)

    worker.send(signal.SIGTERM)

    assert worker.wait() == 1
    assert rig.lines()[-1] == "finished all the same"
    assert (rig.errors(), rig.pending()) == ({}, 0)


def test_a_stray_term_to_a_slot_does_not_disturb_its_job(rig: Rig) -> None:
    worker, _ = _running(rig, "tidies")
    slot = int(rig.lines()[0].split()[0])

    os.kill(slot, signal.SIGTERM)

    worker.dump(lambda log: "in tidies" in log)
    assert len(rig.lines()) == 1


@pytest.mark.skipif(sys.platform != "linux", reason="pid namespaces are Linux's")
def test_as_process_1_it_reaps_orphans_and_obeys_term(rig: Rig) -> None:
    unshare = ["unshare", "--pid", "--fork", "--mount-proc", "--kill-child", sys.executable, "-m", "palermo"]
    if os.geteuid() != 0:
        unshare[1:1] = ["--user", "--map-root-user"]
    rig.enqueue("leaves_an_orphan", str(rig.notes_path), str(rig.gate), module=MODULE)
    worker = rig.launch([*unshare, "worker", MODULE])
    inside = eventually(worker.children)[0]
    eventually(lambda: rig.lines())
    orphans = eventually(lambda: _children_of(inside, rig.lines()[0]))
    rig.open_gate()

    eventually(lambda: not any(Path(f"/proc/{pid}").exists() for pid in orphans))

    eventually(lambda: any(row["pid"] == 1 for row in rig.workers()))
    os.kill(inside, signal.SIGTERM)
    assert worker.wait() == 0


def _children_of(parent: int, inner: str) -> list[int]:
    """The children of a process that have this pid inside of its namespace."""
    children = Path(f"/proc/{parent}/task/{parent}/children").read_text().split()
    return [int(pid) for pid in children if _inner_pid(pid) == inner]


def _inner_pid(pid: str) -> str:
    """The pid inside of its namespace; "" for a process that has ended."""
    with suppress(FileNotFoundError, ProcessLookupError):
        for line in Path(f"/proc/{pid}/status").read_text().splitlines():
            if line.startswith("NSpid:"):
                return line.split()[-1]
    return ""


def test_a_job_gets_the_term_timeout_to_clean_up(rig: Rig) -> None:
    arguments = ("--shutdown-timeout", "0.2", "--term-timeout", "10m")
    worker, _ = _running(rig, "tidies_slowly", str(rig.gate), arguments=arguments)

    worker.send(signal.SIGTERM)
    eventually(lambda: rig.lines()[-1] == "begins to tidy")
    rig.open_gate()

    assert worker.wait() == 1
    assert rig.lines()[-1] == "has tidied"
    assert "grace=600.0" in worker.log
    assert rig.pending() == 1


@pytest.mark.parametrize("pool", ["process", "thread", "async"])
def test_what_jobs_gave_to_atexit_runs_when_their_process_ends(rig: Rig, pool: str) -> None:
    for text in ("first", "second"):
        rig.enqueue("leaves_something", str(rig.notes_path), text, module=MODULE)

    rig.burst("--pool", pool, "--run-atexit", modules=LIMITS)

    pid, _, _ = rig.lines()[0].partition(" ")
    assert rig.lines() == [f"{pid} ran", f"{pid} ran", f"second left by {pid}", f"first left by {pid}"]


def test_a_function_of_atexit_that_hangs_is_killed_and_logged(rig: Rig) -> None:
    rig.enqueue("leaves_a_hang", module=MODULE)

    log = rig.burst("--run-atexit", modules=LIMITS)

    assert log.count("slot does not end by itself, killing it slot=1 ") == 1
    assert log.index("slot does not end by itself") < log.index("worker stopped")


def test_a_process_for_each_job_runs_what_its_job_gave_to_atexit(rig: Rig) -> None:
    for text in ("first", "second"):
        rig.enqueue("leaves_something", str(rig.notes_path), text, module=MODULE)

    rig.burst("--max-jobs", "1", "--run-atexit", modules=LIMITS)

    one, other = (line.partition(" ")[0] for line in rig.lines() if line.endswith("ran"))
    assert {f"first left by {one}", f"second left by {other}"} <= set(rig.lines())
    assert one != other


def test_what_jobs_gave_to_atexit_does_not_run_unless_it_is_asked_for(rig: Rig) -> None:
    rig.enqueue("leaves_something", str(rig.notes_path), "first", module=MODULE)

    rig.burst(modules=LIMITS)

    assert [line.partition(" ")[2] for line in rig.lines()] == ["ran"]
