"""Limits: how long a job may run and wait, and how long a slot is used, on real processes."""

import re
import signal

import pytest

from tests.harness.processes import exists
from tests.harness.rig import Rig
from tests.helpers import eventually

MODULE = "crew_limits"


def _enqueue(rig: Rig, job: str, *more: object, **options: object) -> str:
    return rig.enqueue(job, str(rig.notes_path), *more, **options)


@pytest.mark.slow
def test_a_job_that_does_not_listen_is_killed_after_the_grace(rig: Rig) -> None:
    stuck = [_enqueue(rig, job, timeout=2.0) for job in ("stubborn", "hogs_the_gil")]
    _enqueue(rig, "tells_pid")

    rig.burst("--timeout-grace", "0.3")

    message = "the job's process was killed: it ran 0.3 s longer than its timeout of 2 s"
    assert rig.errors() == dict.fromkeys(stuck, ("palermo.errors.JobTimeout", message))
    assert rig.lines().count("on_failure JobTimeout") == 2
    pids = [note.split()[0] for note in rig.lines() if note.split()[0].isdecimal()]
    assert len(set(pids)) == 3


def test_a_declared_timeout_holds_and_the_workers_for_all_others(rig: Rig) -> None:
    declared = _enqueue(rig, "short")
    other = _enqueue(rig, "tidies")

    rig.burst("--timeout", "0.3")

    assert rig.errors()[declared][1] == "the job ran longer than its timeout of 0.2 s"
    assert rig.errors()[other][1] == "the job ran longer than its timeout of 0.3 s"


@pytest.mark.slow
def test_a_worker_that_stands_still_loses_its_claim_and_its_run(any_rig: Rig) -> None:
    rig = any_rig
    # RabbitMQ takes back the jobs of a worker that misses its heartbeats, two seconds apart.
    url = rig.settings.url + ("?heartbeat=2" if rig.settings.url.startswith("amqp") else "")
    stalled = rig.worker(PALERMO_URL=url)
    # A slot ends itself a second after its claim: before another worker gets the job, on Redis after four.
    _enqueue(rig, "hangs_once", rerun_after=2.0)
    eventually(lambda: rig.lines() != [])

    rig.freeze(stalled)
    rig.worker(PALERMO_URL=url)

    eventually(lambda: len(rig.lines()) == 2)
    assert rig.lines()[1] == "again False"
    stalled.send(signal.SIGCONT)
    eventually(lambda: "result dropped" in stalled.log or not stalled.alive)
    assert sum(note.startswith("again") for note in rig.lines()) == 1
    eventually(lambda: (rig.errors(), rig.pending()) == ({}, 0))


@pytest.mark.slow
@pytest.mark.parametrize(("pool", "retries"), [("process", None), ("thread", 0), ("process", 1)])
def test_a_job_whose_claim_ends_runs_again_as_often_as_it_may(rig: Rig, pool: str, retries: int | None) -> None:
    hung = _enqueue(rig, "hangs_always", retries=retries)

    rig.burst("--pool", pool, "--timeout-grace", "0.1")

    runs = 3 if retries is None else retries + 1
    assert rig.errors()[hung].class_name == "palermo.errors.RerunTimeout"
    assert [note for note in rig.lines() if note.startswith("hangs")] == [f"hangs {nth + 1}" for nth in range(runs)]


@pytest.mark.slow
@pytest.mark.parametrize(("pool", "limit", "processes"), [("process", "1", 6), ("process", "4", 2), ("thread", "2", 3)])
def test_a_process_is_replaced_after_so_many_jobs(rig: Rig, pool: str, limit: str, processes: int) -> None:
    for _ in range(6):
        _enqueue(rig, "tells_pid")

    rig.burst("--pool", pool, "-c", "1" if pool == "process" else "2", "--max-jobs", limit)

    assert len(rig.lines()) == 6
    assert len(set(rig.lines())) == processes
    assert rig.errors() == {}


def test_a_slot_is_replaced_when_it_is_old_even_if_it_was_idle(rig: Rig) -> None:
    worker = rig.idle("--max-lifetime", "0.2")
    _enqueue(rig, "tells_pid")
    eventually(lambda: len(rig.lines()) == 1)
    eventually(lambda: not exists(int(rig.lines()[0])) or _enqueue(rig, "tells_pid") == "")

    assert rig.errors() == {}
    assert "slot replaced" in worker.log


@pytest.mark.slow
def test_a_slot_that_has_grown_is_replaced_after_its_job(rig: Rig) -> None:
    _enqueue(rig, "eats", 300, 0)
    _enqueue(rig, "tells_pid")

    # A look of the worker that came between the job's growth and its end would kill it.
    seldom = {"palermo.worker.pools.forked_pool.MEMORY_EVERY": 3_600}
    log = rig.burst("--max-memory", "250", times=seldom)

    eater, other = rig.lines()
    assert eater != f"{other} eats"
    assert rig.errors() == {}
    assert "the limit is 250 MB" in log


def test_a_job_that_grows_above_the_limit_is_killed_and_says_why(rig: Rig) -> None:
    hungry = _enqueue(rig, "eats", 300, 60)
    _enqueue(rig, "tells_pid")

    rig.burst("--max-memory", "250")

    kind, text = rig.errors()[hungry]
    assert kind == "palermo.errors.JobOutOfMemory"
    # A look may come while it grows.
    size = re.fullmatch(r"the job's process was killed: it used (\d+) MB of memory; the limit is 250 MB", text)
    assert size, text
    assert 250 <= int(size[1]) < 400
    assert rig.lines()[1] == "on_failure JobOutOfMemory"


@pytest.mark.slow
@pytest.mark.parametrize("pool", ["process", "thread"])
def test_replacing_processes_pausing_and_stopping_do_not_meet(rig: Rig, pool: str) -> None:
    for _ in range(150):
        _enqueue(rig, "tells_pid")
    worker = rig.worker("--pool", pool, "--max-jobs", "1", "-c", "2")

    for pauses in range(1, 6):
        eventually(lambda wanted=pauses: len(rig.lines()) > wanted * 5)  # type: ignore[misc]
        worker.send(signal.SIGUSR2)
        eventually(lambda wanted=pauses: worker.log.count("action=pause") == wanted)  # type: ignore[misc]
        worker.send(signal.SIGCONT)
    done = len(rig.lines())
    eventually(lambda: len(rig.lines()) > done)
    worker.send(signal.SIGTERM)

    assert worker.wait() == 0
    assert rig.errors() == {}
    assert len(rig.lines()) + rig.pending() == 150
