"""Signals to real workers: while one starts, and those that stop it, pause it and let it go on."""

import os
import signal
import sys
import time
from pathlib import Path

import pytest

from tests.harness.processes import WorkerProcess, exists
from tests.harness.rig import PROGRAMS, Rig
from tests.helpers import eventually

#: Imported before the command is known, before the settings are read, and after the template was forked.
MOMENTS = ("click", "palermo.worker.options", "palermo.worker.parent.main")


def signalled(rig: Rig, moment: str, name: str, *arguments: str) -> WorkerProcess:
    """A worker that gets this signal as it begins to import that module."""
    return rig.worker(*arguments, program="signalled.py", MODULE=moment, SIGNAL=name)


@pytest.mark.parametrize(("moment", "name"), [(MOMENTS[0], "INT"), (MOMENTS[1], "TERM"), (MOMENTS[2], "QUIT")])
def test_a_worker_told_to_end_while_it_starts_exits_with_0(rig: Rig, moment: str, name: str) -> None:
    pidfile = rig.path / "pid"
    worker = signalled(rig, moment, name, "--pidfile", str(pidfile))

    assert worker.wait() == 0
    assert (f"{name} ended the worker before it had started" in worker.log) == (moment != MOMENTS[-1])
    assert not pidfile.exists()


@pytest.mark.parametrize(
    ("moment", "name", "state"),
    [(MOMENTS[0], "TSTP", "quiet"), (MOMENTS[1], "TTIN", "idle"), (MOMENTS[2], "USR2", "paused")],
)
def test_a_worker_obeys_a_signal_that_came_while_it_started(rig: Rig, moment: str, name: str, state: str) -> None:
    worker = signalled(rig, moment, name)

    eventually(lambda: [row["state"] for row in rig.workers()] == [state])

    assert f"signal received signal={name}" in worker.log


@pytest.mark.slow
@pytest.mark.parametrize("moment", MOMENTS[::2])
def test_hup_while_a_worker_starts_makes_it_begin_anew(rig: Rig, moment: str) -> None:
    worker = signalled(rig, moment, "HUP")

    eventually(lambda: "restarting" in worker.log)
    rig.ready(worker)


def test_another_command_ends_of_ctrl_c_while_it_starts_in_130(rig: Rig) -> None:
    command = [sys.executable, str(PROGRAMS / "signalled.py"), "web", "--port", "0"]
    web = rig.launch(command, MODULE="click", SIGNAL="INT")

    assert (web.wait(), web.log.strip()) == (130, "palermo: interrupted")


@pytest.fixture
def slow(tmp_path: Path) -> Path:
    """A folder with a module whose import lasts until there is a file `gate` beside it."""
    folder = tmp_path / "slow"
    folder.mkdir()
    (folder / "slow.py").write_text(
        "import os, time, palermo\n"
        "palermo.job(name='nothing')(lambda: None)\n"
        "while not os.path.exists('gate'):\n"
        "    time.sleep(0.01)\n"
    )
    return folder


def test_signals_to_the_importing_template_do_not_end_the_worker(rig: Rig, slow: Path) -> None:
    worker = rig.worker(modules=("slow",), cwd=slow)
    eventually(lambda: worker.title().startswith("palermo worker: importing"))
    template = eventually(worker.children)[0]

    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1):
        os.kill(template, number)
    (slow / "gate").touch()

    rig.ready(worker)
    assert worker.children()[0] == template


@pytest.mark.parametrize("number", [signal.SIGHUP, signal.SIGTERM])
def test_a_signal_to_a_worker_that_imports_is_obeyed_at_once(rig: Rig, slow: Path, number: signal.Signals) -> None:
    worker = rig.worker(modules=("slow",), cwd=slow)
    eventually(worker.children)
    eventually(lambda: worker.title() == "palermo worker: importing slow")

    worker.send(number)

    if number == signal.SIGHUP:
        eventually(lambda: "restarting" in worker.log)
        eventually(lambda: worker.title() == "palermo worker: importing slow")
        assert worker.stop() == 0


@pytest.mark.slow
def test_hup_while_the_first_of_several_imports_lets_the_others_start(rig: Rig, slow: Path) -> None:
    supervisor = rig.worker("--workers", "2", modules=("slow",), cwd=slow)
    eventually(supervisor.children)

    supervisor.send(signal.SIGHUP)
    eventually(lambda: "restarting" in supervisor.log)
    (slow / "gate").touch()

    eventually(lambda: len(rig.workers()) == 2)
    assert supervisor.stop() == 0


def _holding(rig: Rig, *arguments: str) -> WorkerProcess:
    """A worker with a job that runs until the gate opens, and one that waits behind it."""
    worker, _ = rig.holding(*arguments)
    rig.enqueue("note", str(rig.notes_path), "next")
    return worker


@pytest.mark.parametrize(
    ("pool", "number", "timeout"),
    [("process", "TERM", "1h"), ("thread", "INT", "1h"), ("process", "QUIT", "0.1s"), ("async", "QUIT", "0.1s")],
)
def test_the_running_job_is_finished_and_no_other_is_taken(rig: Rig, pool: str, number: str, timeout: str) -> None:
    worker = _holding(rig, "--pool", pool, "--shutdown-timeout", timeout)

    eventually(lambda: worker.title() == "palermo worker: 1 of 1 slot busy")

    worker.send(signal.Signals[f"SIG{number}"])
    eventually(lambda: rig.only_worker()["state"] == "stopping")
    eventually(lambda: worker.title() == "palermo worker: stopping, 1 of 1 slot busy")
    sent = time.monotonic()
    eventually(lambda: time.monotonic() > sent + 0.5)  # after QUIT a job may outlast the timeout
    rig.open_gate()

    assert worker.wait() == 0
    assert rig.lines() == ["held begins", "held ends"]
    assert rig.pending() == 1


@pytest.mark.parametrize("pool", ["process", "async"])
def test_a_second_int_kills_at_once_and_gives_the_job_back_unharmed(rig: Rig, pool: str) -> None:
    worker = _holding(rig, "--pool", pool, "--shutdown-timeout", "1h")

    worker.send(signal.SIGINT)
    eventually(lambda: "finishing 1 running job and ending; press Ctrl-C again to kill running jobs" in worker.log)
    worker.send(signal.SIGINT)

    assert worker.wait() == 1
    assert "job interrupted, requeuing it" in worker.log
    assert rig.errors() == {}
    assert rig.pending() == 2
    rig.open_gate()
    rig.burst()
    assert rig.lines() == ["held begins", "held begins", "held ends", "next"]


def test_a_paused_worker_takes_nothing_until_it_goes_on_or_stops(rig: Rig) -> None:
    worker = _holding(rig)

    worker.send(signal.SIGUSR2)
    eventually(lambda: rig.only_worker()["state"] == "paused")
    rig.open_gate()
    eventually(lambda: rig.lines() == ["held begins", "held ends"])
    eventually(lambda: worker.title() == "palermo worker: paused")
    assert rig.pending() == 1

    worker.send(signal.SIGCONT)

    eventually(lambda: rig.lines()[-1] == "next")
    rig.ready(worker)
    children = worker.grown(2)

    worker.send(signal.SIGUSR2)
    eventually(lambda: rig.only_worker()["state"] == "paused")
    rig.enqueue("note", str(rig.notes_path), "x")
    worker.send(signal.SIGTERM)

    assert worker.wait() == 0
    assert not any(exists(pid) for pid in children)
    assert (rig.workers(), rig.lines()[3:]) == ([], [])
