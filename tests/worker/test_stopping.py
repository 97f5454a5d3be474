"""Stopping, pausing and going on, by signal, with real processes."""

import signal
import time

import pytest

from tests.harness.processes import WorkerProcess, exists
from tests.harness.rig import Rig
from tests.helpers import eventually


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
