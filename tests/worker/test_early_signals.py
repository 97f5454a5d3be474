"""Signals that come while a worker starts: before its event loop listens, and before its modules are imported."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from palermo.blocked_signals import OBEYED
from palermo.worker.signals import SIGNALS
from tests.harness.processes import WorkerProcess
from tests.harness.rig import PROGRAMS, Rig
from tests.helpers import HANGS, eventually

#: Imported before the command is known, before the settings are read, and after the template was forked.
MOMENTS = ("click", "palermo.worker.options", "palermo.worker.parent.main")


def test_the_signals_that_wait_are_those_of_the_table() -> None:
    assert {row.number for row in SIGNALS} == set(OBEYED)


def _signalled(rig: Rig, moment: str, name: str, *arguments: str) -> WorkerProcess:
    command = [sys.executable, "signalled.py", "worker", "crew", *arguments]
    return rig.run(command, MODULE=moment, SIGNAL=name)


@pytest.mark.parametrize("moment", MOMENTS)
@pytest.mark.parametrize("name", ["TERM", "INT", "QUIT"])
def test_a_worker_that_is_told_to_end_while_it_starts_exits_with_0(rig: Rig, moment: str, name: str) -> None:
    pidfile = rig.path / "pid"
    worker = _signalled(rig, moment, name, "--pidfile", str(pidfile))

    assert worker.wait() == 0
    said = "" if moment == MOMENTS[-1] else f"palermo: {name} ended the worker before it had started\n"
    assert worker.log == said
    assert not pidfile.exists()


@pytest.mark.parametrize("moment", MOMENTS)
def test_hup_while_a_worker_starts_makes_it_begin_anew(rig: Rig, moment: str) -> None:
    worker = _signalled(rig, moment, "HUP")

    eventually(lambda: "starting anew" in worker.log)
    rig.ready(worker)

    worker.send(signal.SIGTERM)
    assert worker.wait() == 0


@pytest.mark.parametrize("moment", MOMENTS)
@pytest.mark.parametrize(("name", "state"), [("USR2", "paused"), ("TSTP", "quiet"), ("USR1", "idle"), ("TTIN", "idle")])
def test_a_worker_obeys_a_signal_that_came_while_it_started(rig: Rig, moment: str, name: str, state: str) -> None:
    worker = _signalled(rig, moment, name)

    eventually(lambda: [row["state"] for row in rig.workers()] == [state])

    assert f"signal received signal={name}" in worker.log
    worker.send(signal.SIGTERM)
    assert worker.wait() == 0


def test_another_command_ends_of_ctrl_c_while_it_starts_in_130(rig: Rig) -> None:
    environment = {**os.environ, "PALERMO_URL": rig.settings.url, "MODULE": "click", "SIGNAL": "INT"}
    command = [sys.executable, "signalled.py", "web", "--port", "0"]

    ended = subprocess.run(
        command, cwd=PROGRAMS, env=environment, capture_output=True, text=True, timeout=HANGS, check=False
    )

    assert (ended.returncode, ended.stderr.strip()) == (130, "palermo: interrupted")


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


def _importing(worker: WorkerProcess) -> int:
    """The template, once it imports the modules."""
    eventually(lambda: worker.title().startswith("palermo worker: importing"))
    return eventually(worker.children)[0]


def test_signals_to_the_template_while_it_imports_do_not_end_the_worker(rig: Rig, slow: Path) -> None:
    worker = rig.worker(modules=("slow",), cwd=slow)
    template = _importing(worker)

    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1):
        os.kill(template, number)
    (slow / "gate").touch()

    rig.ready(worker)
    assert worker.children()[0] == template
    worker.send(signal.SIGTERM)
    assert worker.wait() == 0


def test_hup_while_the_first_of_several_workers_imports_lets_the_others_start(rig: Rig, slow: Path) -> None:
    supervisor = rig.worker("--workers", "2", modules=("slow",), cwd=slow)
    eventually(supervisor.children)

    supervisor.send(signal.SIGHUP)
    eventually(lambda: "starting anew" in supervisor.log)
    (slow / "gate").touch()

    eventually(lambda: len(rig.workers()) == 2)
    supervisor.send(signal.SIGTERM)
    assert supervisor.wait() == 0
