"""Limits and signals where slots share a child: what they do to a job, and what to its neighbours."""

import signal

import pytest

from tests.harness.processes import WorkerProcess, exists
from tests.harness.rig import Rig
from tests.helpers import eventually

pytestmark = pytest.mark.slow


MODULE = "crew_pools"

#: Pools, each with what its jobs' names begin with: "a" for coroutines.
POOLS = pytest.mark.parametrize(("pool", "a"), [("thread", ""), ("async", "a")])


def enqueue(rig: Rig, job: str, *more: object, **options: object) -> str:
    return rig.enqueue(job, str(rig.notes_path), *more, module=MODULE, **options)


def start(rig: Rig, pool: str, *arguments: str) -> WorkerProcess:
    return rig.worker("--pool", pool, *arguments, modules=(MODULE, "crew"))


def held(rig: Rig, a: str) -> str:
    """Enqueue a job that runs until the gate opens."""
    return enqueue(rig, "ahold", str(rig.gate)) if a else rig.hold()


def waiting(rig: Rig, pool: str, job: str, a: str, *arguments: str) -> tuple[WorkerProcess, str, str]:
    """A worker that runs this job, beside one that waits for the gate; and the ids of both."""
    id, neighbour = enqueue(rig, f"{a}{job}"), held(rig, a)
    worker = start(rig, pool, "-c", "2", *arguments)
    eventually(lambda: {"waits", "held begins"} <= set(rig.lines()))
    return worker, id, neighbour


@POOLS
def test_a_job_that_runs_too_long_is_told_and_its_neighbours_are_not(rig: Rig, pool: str, a: str) -> None:
    slow = enqueue(rig, f"{a}tidies", timeout=2.0)
    held(rig, a)
    worker = start(rig, pool, "-c", "2")
    eventually(lambda: "on_failure JobTimeout" in rig.lines())
    children = worker.grown(2)

    rig.open_gate()

    eventually(lambda: "held ends" in rig.lines())
    assert ("tidied" if a else "tidied after JobTimeout") in rig.lines()
    # The hook writes its note before the job is in `failed`.
    failure = ("palermo.errors.JobTimeout", "the job ran longer than its timeout of 2 s")
    eventually(lambda: rig.errors() == {slow: failure})
    assert worker.children() == children


@POOLS
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


@POOLS
def test_a_neighbour_that_does_not_finish_in_time_is_given_back_and_named(rig: Rig, pool: str, a: str) -> None:
    neighbour = held(rig, a)
    stuck = enqueue(rig, f"{a}stubborn", timeout=2.0)
    worker = start(rig, pool, "-c", "2", "--timeout-grace", "0.3")
    eventually(lambda: rig.errors().keys() == {stuck})
    rig.open_gate()

    eventually(lambda: "held ends" in rig.lines())
    assert rig.lines().count("held begins") == 2
    assert f"process killed under a job that did nothing wrong id={neighbour}" in worker.log
    assert f"because_of={stuck}" in worker.log
    assert f"job interrupted, giving it back id={neighbour}" in worker.log


@POOLS
def test_a_job_that_stops_everything_is_killed_at_once_after_its_grace(rig: Rig, pool: str, a: str) -> None:
    stuck = enqueue(rig, f"{a}hogs", timeout=2.0)
    worker = start(rig, pool, "-c", "2", "--timeout-grace", "0.5")

    eventually(lambda: rig.errors().keys() == {stuck})
    enqueue(rig, f"{a}tells_pid")

    eventually(lambda: rig.lines()[-1].isdecimal())
    assert worker.alive


@POOLS
def test_a_child_is_replaced_after_so_many_jobs(rig: Rig, pool: str, a: str) -> None:
    for _ in range(6):
        enqueue(rig, f"{a}tells_pid")

    rig.burst("--pool", pool, "-c", "2", "--max-jobs", "2", modules=(MODULE,))

    assert len(rig.lines()) == 6
    assert len(set(rig.lines())) == 3
    assert rig.errors() == {}


@POOLS
def test_a_child_is_replaced_when_it_is_old_and_what_runs_in_it_finishes(rig: Rig, pool: str, a: str) -> None:
    held(rig, a)
    worker = start(rig, pool, "-c", "2", "--max-lifetime", "0.2")
    eventually(lambda: rig.lines() == ["held begins"])
    old = worker.grown(2)[1]

    def replaced() -> bool:
        enqueue(rig, f"{a}tells_pid")
        return len({note for note in rig.lines() if note.isdecimal()}) > 1

    eventually(replaced, every=0.1)
    rig.open_gate()
    eventually(lambda: "held ends" in rig.lines())
    eventually(lambda: not exists(old))
    assert rig.errors() == {}


@pytest.mark.parametrize("pool", ["thread", "async"])
def test_of_several_jobs_in_a_process_that_grows_only_the_greedy_one_fails(rig: Rig, pool: str) -> None:
    enqueue(rig, "eats", 1, 1.5)
    hungry = enqueue(rig, "eats", 600, 60)

    worker = start(rig, pool, "-c", "2", "--max-memory", "250", "--timeout-grace", "0.5")

    eventually(lambda: rig.errors().keys() == {hungry})
    kind, text = rig.errors()[hungry]
    assert kind == "palermo.errors.JobOutOfMemory"
    assert text.endswith(" MB, above 250 MB")
    eventually(lambda: any(note.endswith(" ate") for note in rig.lines()))
    assert worker.alive


@POOLS
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


@POOLS
@pytest.mark.parametrize("job", ["stubborn", "hogs"])
def test_jobs_that_do_not_listen_are_killed_after_the_grace_and_given_back(
    rig: Rig, pool: str, a: str, job: str
) -> None:
    enqueue(rig, f"{a}{job}")
    worker = start(rig, pool, "--shutdown-timeout", "0.2")
    eventually(lambda: rig.lines() == ["waits"])

    worker.send(signal.SIGTERM)

    assert worker.wait() == 1
    assert (rig.errors(), rig.pending()) == ({}, 1)


@POOLS
def test_usr1_fails_all_running_jobs_and_the_worker_goes_on(rig: Rig, pool: str, a: str) -> None:
    worker, first, second = waiting(rig, pool, "tidies", a)
    enqueue(rig, f"{a}tells_pid")

    worker.send(signal.SIGUSR1)

    eventually(lambda: len(rig.errors()) == 2 and any(note.isdecimal() for note in rig.lines()))
    killed = ("palermo.errors.JobCrashed", "the job's process was killed by the operator (USR1)")
    assert rig.errors() == {first: killed, second: killed}
    assert rig.lines().count("on_failure JobCrashed") == 2
    assert worker.alive


@POOLS
@pytest.mark.parametrize("job", ["tidies", "hogs"])
def test_ttin_shows_where_each_job_is_without_stopping_it(rig: Rig, pool: str, a: str, job: str) -> None:
    neighbour = held(rig, a)
    worker = start(rig, pool, "-c", "2")
    eventually(lambda: rig.lines() == ["held begins"])
    id = enqueue(rig, f"{a}{job}")
    eventually(lambda: "waits" in rig.lines())

    wanted = [f"stacks of a job id={id}", f"stacks of a job id={neighbour}", f"in {a}{job}"]
    if job != "hogs":
        wanted.append(f"in {a}hold")
    worker.dump(lambda log: all(text in log for text in wanted))
    assert rig.errors() == {}


@pytest.mark.parametrize("pool", ["thread", "async"])
def test_replacing_children_and_stopping_do_not_meet(rig: Rig, pool: str) -> None:
    for _ in range(100):
        enqueue(rig, "tells_pid")
    worker = start(rig, pool, "--max-jobs", "3", "-c", "4")
    eventually(lambda: len(rig.lines()) > 10)

    worker.send(signal.SIGTERM)

    assert worker.wait() == 0
    assert rig.errors() == {}
    assert len(rig.lines()) + rig.pending() == 100
