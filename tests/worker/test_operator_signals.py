"""Actions of an operator on a worker beyond stopping it: kill its jobs, look into them, quiet it, start it anew."""

import os
import shutil
import signal
import sys
from contextlib import suppress
from pathlib import Path

import pytest

from tests.harness.processes import WorkerProcess
from tests.harness.rig import PROGRAMS, Rig
from tests.helpers import eventually

JOBS = "crew_limits"
LIMITS = (JOBS,)


def _running(rig: Rig, job: str, *more: object, arguments: tuple[str, ...] = ()) -> WorkerProcess:
    """A worker whose only slot runs this job, which has said so."""
    rig.enqueue(job, str(rig.notes_path), *more, module=JOBS)
    worker = rig.worker(*arguments, modules=LIMITS)
    eventually(lambda: "waits" in " ".join(rig.lines()))
    return worker


def test_tstp_quiets_a_worker_and_cont_does_not_change_that(rig: Rig) -> None:
    worker, _ = rig.holding()
    rig.enqueue("note", str(rig.notes_path), "next")

    worker.send(signal.SIGTSTP)
    eventually(lambda: rig.only_worker()["state"] == "quiet")
    worker.send(signal.SIGUSR2)
    eventually(lambda: "action=pause" in worker.log)
    worker.send(signal.SIGCONT)
    eventually(lambda: "action=resume" in worker.log and "worker remains quiet" in worker.log)
    worker.send(signal.SIGCONT)
    eventually(lambda: "signal=CONT action=none" in worker.log)
    rig.open_gate()
    eventually(lambda: rig.lines() == ["held begins", "held ends"])
    eventually(lambda: worker.title() == "palermo worker: quiet")

    assert rig.pending() == 1
    assert worker.stop() == 0
    assert rig.pending() == 1


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
    assert worker.stop() == 0


def test_a_module_that_is_broken_after_hup_ends_the_worker_with_a_reason(rig: Rig, code: Path) -> None:
    worker = rig.idle(modules=("shop",), cwd=code)
    (code / "shop.py").write_text("import nonsense_\n")

    worker.send(signal.SIGHUP)
    eventually(lambda: "action=renew" in worker.log)
    _version(rig)

    assert worker.wait() == 1
    assert "cannot import module 'shop': ModuleNotFoundError: No module named 'nonsense_'" in worker.log
    assert rig.pending() == 1


def test_term_after_hup_ends_the_worker(rig: Rig) -> None:
    worker, _ = rig.holding()

    worker.send(signal.SIGHUP)
    eventually(lambda: "action=renew" in worker.log)
    worker.send(signal.SIGTERM)
    eventually(lambda: "action=stop" in worker.log)
    rig.open_gate()

    assert worker.wait() == 0


GRACE = ("--shutdown-timeout", "0.2")
RESQUE = ("--resque-signals",)


@pytest.mark.parametrize(
    ("number", "job", "more", "arguments", "told"),
    [
        ("TERM", "tidies", (), RESQUE, []),
        ("INT", "tidies", (), RESQUE, []),
        ("TERM", "finishes", (), GRACE, ["finished anyway"]),
        ("TERM", "gives_up", ("key",), GRACE, []),
        ("TERM", "gives_up", ("exit",), GRACE, []),
        ("TERM", "tidies_slowly", ("gate",), (*GRACE, "--term-timeout", "0.3s"), None),
    ],
    ids=["resque's TERM", "resque's INT", "finishes", "raises", "exits", "tidies too long"],
)
def test_a_job_that_outlasts_the_timeout_is_given_back_whatever_it_does(
    rig: Rig, number: str, job: str, more: tuple[str, ...], arguments: tuple[str, ...], told: list[str] | None
) -> None:
    worker = _running(rig, job, *more, arguments=arguments)

    worker.send(signal.Signals[f"SIG{number}"])

    assert worker.wait() == 1
    # One that is killed in the midst of it may have begun to tidy.
    assert "has tidied" not in rig.lines() if told is None else rig.lines()[1:] == told
    assert "told of" not in worker.log
    assert rig.errors() == {}
    assert rig.pending() == (0 if job == "finishes" else 1)


@pytest.mark.skipif(sys.platform != "linux", reason="pid namespaces are Linux's")
def test_as_process_1_it_reaps_orphans_and_obeys_term(rig: Rig) -> None:
    unshare = ["unshare", "--pid", "--fork", "--mount-proc", "--kill-child", sys.executable, "-m", "palermo"]
    if os.geteuid() != 0:
        unshare[1:1] = ["--user", "--map-root-user"]
    rig.enqueue("leaves_an_orphan", str(rig.notes_path), str(rig.gate), module=JOBS)
    worker = rig.launch([*unshare, "worker", JOBS])
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
    worker = _running(rig, "tidies_slowly", str(rig.gate), arguments=(*GRACE, "--term-timeout", "10m"))

    worker.send(signal.SIGTERM)
    eventually(lambda: rig.lines()[-1] == "begins to tidy")
    rig.open_gate()

    assert worker.wait() == 1
    assert rig.lines()[-1] == "has tidied"
    assert "grace=600.0" in worker.log
    assert rig.pending() == 1


@pytest.mark.parametrize("more", [None, (), ("--pool", "async"), ("--max-jobs", "1")], ids=str)
def test_what_jobs_gave_to_atexit_runs_when_their_process_ends(rig: Rig, more: tuple[str, ...] | None) -> None:
    for text in ("first", "second"):
        rig.enqueue("leaves_something", str(rig.notes_path), text, module=JOBS)

    rig.burst(*(() if more is None else ("--run-atexit", *more)), modules=LIMITS)

    notes = [line.split() for line in rig.lines()]
    ran = [note[0] for note in notes if note[1] == "ran"]
    left = {note[0]: note[-1] for note in notes if note[1] == "left"}
    assert left == ({} if more is None else {"first": ran[0], "second": ran[1]})
    assert len(set(ran)) == (2 if more and "--max-jobs" in more else 1)


@pytest.mark.slow
def test_a_function_of_atexit_that_hangs_is_killed_and_logged(rig: Rig) -> None:
    rig.enqueue("leaves_a_hang", module=JOBS)

    log = rig.burst("--run-atexit", modules=LIMITS)

    assert log.count("slot does not end by itself, killing it slot=1 ") == 1
    assert log.index("slot does not end by itself") < log.index("worker stopped")
