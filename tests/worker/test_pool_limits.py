"""Limits and signals in each pool: what they do to a job, and what to its neighbours, which may share its process."""

import re
import signal

import pytest

from tests.harness.processes import WorkerProcess, exists
from tests.harness.rig import Rig
from tests.helpers import eventually

JOBS = "crew_pools"

SLOW = pytest.mark.slow

#: Pools whose slots share a child, each with what its jobs' names begin with: "a" for coroutines.
SHARED = [pytest.param("thread", "", marks=SLOW), pytest.param("async", "a", marks=SLOW)]
POOLS = [("process", ""), *SHARED]


def enqueue(rig: Rig, job: str, *more: object, **options: object) -> str:
    return rig.enqueue(job, str(rig.notes_path), *more, module=JOBS, **options)


def start(rig: Rig, pool: str, *arguments: str) -> WorkerProcess:
    return rig.worker("--pool", pool, *arguments, modules=(JOBS, "crew"))


def held(rig: Rig, a: str) -> str:
    """Enqueue a job that runs until the gate opens."""
    return enqueue(rig, "ahold", str(rig.gate)) if a else rig.hold()


@pytest.mark.slow
@pytest.mark.parametrize(("pool", "a"), [("process", "a"), *POOLS])
def test_a_job_that_runs_too_long_is_told_and_its_neighbours_are_not(rig: Rig, pool: str, a: str) -> None:
    slow = enqueue(rig, f"{a}tidies", timeout=2.0)
    held(rig, a)
    worker = start(rig, pool, "-c", "2")
    eventually(lambda: "on_failure JobTimeout" in rig.lines())
    children = worker.grown(3 if pool == "process" else 2)

    rig.open_gate()

    eventually(lambda: "held ends" in rig.lines())
    assert ("tidied" if a else "tidied after JobTimeout") in rig.lines()
    # The hook writes its note before the job is in `failed`.
    failure = ("palermo.errors.JobTimeout", "the job ran longer than its timeout of 2 s")
    eventually(lambda: rig.errors() == {slow: failure})
    assert worker.children() == children


@pytest.mark.parametrize(("pool", "a"), SHARED)
def test_a_stubborn_job_is_killed_once_its_neighbours_have_finished(rig: Rig, pool: str, a: str) -> None:
    held(rig, a)
    stuck = enqueue(rig, f"{a}stubborn", timeout=2.0)
    worker = start(rig, pool, "-c", "3", "--timeout-grace", "5")
    eventually(lambda: "did not end" in worker.log)

    # A fresh child takes jobs meanwhile.
    enqueue(rig, f"{a}tells_pid")
    eventually(lambda: any(note.isdecimal() for note in rig.lines()))
    rig.open_gate()

    eventually(lambda: rig.errors().keys() == {stuck})
    message = "the job's process was killed: it ran 5 s longer than its timeout of 2 s"
    assert rig.errors()[stuck] == ("palermo.errors.JobTimeout", message)
    assert rig.lines().count("held ends") == rig.lines().count("held begins") == 1
    notes = ["pid" if note.isdecimal() else note for note in rig.lines()]
    assert notes.index("pid") < notes.index("on_failure JobTimeout")


@pytest.mark.parametrize(("pool", "a"), SHARED)
def test_a_neighbour_that_does_not_finish_in_time_is_given_back_and_named(rig: Rig, pool: str, a: str) -> None:
    neighbour = held(rig, a)
    stuck = enqueue(rig, f"{a}stubborn", timeout=2.0)
    worker = start(rig, pool, "-c", "2", "--timeout-grace", "0.3")
    eventually(lambda: rig.errors().keys() == {stuck})
    rig.open_gate()

    eventually(lambda: "held ends" in rig.lines())
    assert rig.lines().count("held begins") == 2
    assert f"process of this job killed because of another job id={neighbour}" in worker.log
    assert f"because_of={stuck}" in worker.log
    assert f"job interrupted, requeuing it id={neighbour}" in worker.log


@SLOW
def test_a_child_is_replaced_when_it_is_old_and_what_runs_in_it_finishes(rig: Rig) -> None:
    worker, _ = rig.holding("--pool", "thread", "-c", "2", "--max-lifetime", "0.2", modules=(JOBS, "crew"))
    old = worker.grown(2)[1]

    def replaced() -> bool:
        enqueue(rig, "tells_pid")
        return len({note for note in rig.lines() if note.isdecimal()}) > 1

    eventually(replaced, every=0.1)
    rig.open_gate()
    eventually(lambda: "held ends" in rig.lines())
    eventually(lambda: not exists(old))
    assert rig.errors() == {}


@SLOW
def test_of_several_jobs_in_a_process_that_grows_only_the_greedy_one_fails(rig: Rig) -> None:
    enqueue(rig, "eats", 1, 1.5)
    hungry = enqueue(rig, "eats", 600, 60)

    worker = start(rig, "thread", "-c", "2", "--max-memory", "250", "--timeout-grace", "0.5")

    eventually(lambda: rig.errors().keys() == {hungry})
    kind, text = rig.errors()[hungry]
    assert kind == "palermo.errors.JobOutOfMemory"
    assert text.endswith(" MB of memory; the limit is 250 MB")
    eventually(lambda: any(note.endswith(" ate") for note in rig.lines()))
    assert worker.alive


@pytest.mark.parametrize(("pool", "a"), POOLS)
def test_jobs_that_outlast_the_timeout_may_clean_up_and_are_given_back(rig: Rig, pool: str, a: str) -> None:
    for _ in range(3):
        enqueue(rig, f"{a}tidies")
    worker = start(rig, pool, "-c", "3", "--shutdown-timeout", "0.2")
    eventually(lambda: rig.lines() == ["waits"] * 3)

    worker.send(signal.SIGTERM)

    assert worker.wait() == 1
    assert rig.lines()[3:] == [("tidied" if a else "tidied after JobTerminated")] * 3
    assert rig.errors() == {}
    assert eventually(rig.pending) == 3


@pytest.mark.parametrize(("pool", "job"), [("process", "stubborn"), ("thread", "stubborn"), ("async", "ahogs")])
@SLOW
def test_jobs_that_do_not_listen_are_killed_after_the_grace_and_given_back(rig: Rig, pool: str, job: str) -> None:
    enqueue(rig, job)
    worker = start(rig, pool, "--shutdown-timeout", "0.2")
    eventually(lambda: rig.lines() == ["waits"])

    worker.send(signal.SIGTERM)

    assert worker.wait() == 1
    assert (rig.errors(), rig.pending()) == ({}, 1)


@pytest.mark.parametrize(("pool", "a"), POOLS)
def test_usr1_fails_all_running_jobs_and_harms_no_idle_worker(rig: Rig, pool: str, a: str) -> None:
    first, second = enqueue(rig, f"{a}hogs" if pool == "process" else f"{a}tidies"), held(rig, a)
    worker = start(rig, pool, "-c", "2")
    eventually(lambda: {"waits", "held begins"} <= set(rig.lines()))
    enqueue(rig, f"{a}tells_pid")

    worker.send(signal.SIGUSR1)

    eventually(lambda: len(rig.errors()) == 2 and any(note.isdecimal() for note in rig.lines()))
    killed = ("palermo.errors.JobCrashed", "the job's process was killed by the operator (USR1)")
    assert rig.errors() == {first: killed, second: killed}
    assert rig.lines().count("on_failure JobCrashed") == 2
    rig.ready(worker)
    children = worker.grown(3 if pool == "process" else 2)

    worker.send(signal.SIGUSR1)
    eventually(lambda: worker.log.count("signal=USR1") == 2)

    assert worker.children() == children


@SLOW
def test_usr1_fails_the_jobs_that_wait_to_run_again_alone(rig: Rig) -> None:
    ids = {rig.hold() for _ in range(9)}
    worker = start(rig, "thread", "-c", "10")
    eventually(lambda: rig.lines().count("held begins") == 9)
    ids.add(rig.enqueue("exits", 3))
    # Four of them run at a time.
    eventually(lambda: rig.lines().count("held begins") == 13)

    worker.send(signal.SIGUSR1)

    eventually(lambda: rig.errors().keys() == ids)
    assert rig.lines().count("held begins") == 13


@pytest.mark.parametrize(
    ("pool", "job"),
    [
        *(("process", "tidies"), ("process", "hogs")),
        *(pytest.param(pool, job, marks=SLOW) for pool, job in (("thread", "hogs"), ("async", "atidies"))),
    ],
)
def test_ttin_logs_the_stacks_of_all_without_stopping_them(rig: Rig, pool: str, job: str) -> None:
    neighbour = held(rig, "a" if pool == "async" else "")
    worker = start(rig, pool, "-c", "2")
    eventually(lambda: rig.lines() == ["held begins"])
    id = enqueue(rig, job)
    eventually(lambda: "waits" in rig.lines())

    wanted = [f"stacks of a job id={each} " for each in (id, neighbour)]
    wanted += [f"stacks of the worker pid={worker.pid}", "in serve", f"in {job}"]
    for times in (1, 2):
        worker.dump(lambda log, times=times: all(log.count(text) >= times for text in wanted))  # type: ignore[misc]
    if job != "hogs":
        # The lines of a stack are indented.
        assert re.search(rf"stacks of a job id={neighbour} .*\n(?:    .*\n)*    .*in a?hold", worker.log)
    assert rig.errors() == {}


@pytest.mark.parametrize(
    ("pool", "job"),
    [
        ("process", "tidies"),
        ("process", "hogs"),
        ("thread", "tidies"),
        ("async", "atidies"),
        pytest.param("thread", "stubborn", marks=SLOW),
        pytest.param("async", "astubborn", marks=SLOW),
    ],
)
def test_a_cancelled_job_is_cancelled_whether_it_listens_or_not(rig: Rig, pool: str, job: str) -> None:
    id = enqueue(rig, job)
    held(rig, "a" if pool == "async" else "")
    # One that listens is killed too if it does not get its turn within the grace.
    start(rig, pool, "-c", "2", "--timeout-grace", "60" if job.endswith("tidies") else "0.5")
    eventually(lambda: {"waits", "held begins"} <= set(rig.lines()))

    rig.cancel(id)

    assert any("tidied" in note for note in rig.lines()) == job.endswith("tidies")
    rig.open_gate()
    eventually(lambda: rig.lines()[-1] == "held ends")
    assert not any("on_failure" in note for note in rig.lines())
    assert rig.errors() == {}
