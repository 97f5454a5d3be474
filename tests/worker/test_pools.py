"""Pools whose slots share a child: what jobs are to each other, and to their worker."""

import os
import signal

import pytest

from tests.harness.processes import exists, title
from tests.harness.rig import Rig
from tests.helpers import eventually

MODULE = "crew_pools"

#: Pools, each with what its jobs' names begin with: "a" for coroutines. Plain functions run in an async pool as well.
POOLS = pytest.mark.parametrize(("pool", "a"), [("thread", ""), ("async", "a"), ("async", "")])
BOTH = pytest.mark.parametrize("pool", ["thread", "async"])


def enqueue(rig: Rig, job: str, *args: object, **options: object) -> str:
    return rig.enqueue(job, *args, module=MODULE, **options)


def burst(rig: Rig, pool: str, *arguments: str) -> str:
    return rig.burst("--pool", pool, *arguments, modules=(MODULE, "crew"))


@POOLS
def test_all_jobs_run_in_one_process_that_the_parent_is_not(rig: Rig, pool: str, a: str) -> None:
    for _ in range(20):
        enqueue(rig, f"{a}tells_pid", str(rig.notes_path))

    worker = rig.worker("--pool", pool, "-c", "4", modules=(MODULE,))

    eventually(lambda: len(rig.lines()) == 20)
    assert len(set(rig.lines())) == 1
    assert int(rig.lines()[0]) == worker.grown(2)[1]


def test_the_same_on_every_broker(any_rig: Rig) -> None:
    rig = any_rig
    for number in range(30):
        rig.enqueue("note", str(rig.notes_path), str(number))
        rig.enqueue("waits", str(rig.notes_path))
    failing = rig.enqueue("waits_in_vain")

    burst(rig, "async", "-c", "8")

    assert sorted(rig.lines()) == sorted([str(number) for number in range(30)] + ["waited"] * 30)
    assert rig.errors() == {failing: ("LookupError", "nobody came")}


def test_five_hundred_coroutines_run_at_once(rig: Rig) -> None:
    for _ in range(500):
        enqueue(rig, "meets", str(rig.notes_path), 500)

    worker = rig.worker("--pool", "async", "-c", "500", "--log-level", "warning", modules=(MODULE,))

    eventually(lambda: len(rig.lines()) == 500, every=0.2)
    assert len(worker.grown(2)) == 2
    eventually(lambda: rig.pending() == 0)
    assert rig.errors() == {}


@POOLS
def test_every_job_has_its_own_context_and_its_lines_name_it(rig: Rig, pool: str, a: str) -> None:
    ids = [enqueue(rig, f"{a}remembers", str(rig.notes_path), str(number)) for number in range(20)]
    logging = rig.enqueue("logs", "of its own")

    log = burst(rig, pool, "-c", "4")

    assert sorted(rig.lines()) == sorted(f"nothing {id}" for id in ids)
    assert f"of its own id={logging} job=crew.logs" in log
    assert f"as libraries do id={logging} job=crew.logs" in log


@BOTH
def test_hooks_and_failure_back_ends_run_as_in_processes(rig: Rig, pool: str) -> None:
    rig.enqueue("note", str(rig.notes_path), "x")
    rig.enqueue("waits_in_vain")
    rig.enqueue("exits", 3)

    rig.burst("--pool", pool, modules=("crew", "crew_hooks"))

    told = [line[0] for line in rig.trace()]
    assert told.count("before_fork") == told.count("after_fork")
    assert (told.count("before_process"), told.count("after_process")) == (3, 1)
    assert [line[2] for line in rig.trace() if line[0] == "on_failure"] == ["LookupError", "JobCrashed"]
    assert [line[2] for line in rig.trace() if line[0] == "tracker"] == [
        "LookupError",
        "palermo.errors.JobCrashed",
    ]


#: What jobs raise and do to the loop by pool, and the class of their errors: "" for none.
ODD = {
    "thread": [
        (("raises", "SystemExit"), "SystemExit"),
        (("raises", "KeyboardInterrupt"), "KeyboardInterrupt"),
        (("raises", "StopIteration"), "StopIteration"),
    ],
    "async": [
        (("araises", "SystemExit"), "SystemExit"),
        (("araises", "KeyboardInterrupt"), "KeyboardInterrupt"),
        (("araises", "Cancelled"), "asyncio.exceptions.CancelledError"),
        (("cancels_itself",), "asyncio.exceptions.CancelledError"),
        (("cancels_itself_late",), ""),
        (("cancels_everybody",), ""),
        (("leaves_a_task_that_exits",), ""),
        (("stops_the_loop",), ""),
    ],
}


@BOTH
def test_whatever_a_job_raises_or_does_to_the_loop_its_child_lives_on(rig: Rig, pool: str) -> None:
    worker = rig.worker("--pool", pool, modules=(MODULE,))
    rig.ready(worker)
    child = worker.grown(2)[1]

    found = {enqueue(rig, *call): kind for call, kind in ODD[pool]}
    enqueue(rig, "tells_pid", str(rig.notes_path))

    eventually(lambda: rig.lines() == [str(child)])
    wanted = {id: kind for id, kind in found.items() if kind}
    eventually(lambda: {id: error.class_name for id, error in rig.errors().items()} == wanted)


@POOLS
def test_the_title_says_how_many_slots_are_busy(rig: Rig, pool: str, a: str) -> None:
    for _ in range(2):
        enqueue(rig, f"{a}hold", str(rig.notes_path), str(rig.gate)) if a else rig.hold()
    worker = rig.worker("--pool", pool, "-c", "3", modules=(MODULE, "crew"))
    eventually(lambda: len(rig.lines()) == 2)
    child = worker.grown(2)[1]

    eventually(lambda: title(child) == f"palermo {pool} pool: 2 of 3 slots busy")
    rig.open_gate()
    eventually(lambda: title(child) == f"palermo {pool} pool: idle")


@POOLS
def test_of_several_jobs_in_a_process_that_dies_only_the_guilty_one_fails(rig: Rig, pool: str, a: str) -> None:
    for text in ("first", "second"):
        enqueue(rig, f"{a}survives", str(rig.notes_path), text)
    crash = enqueue(rig, f"{a}crash_after", str(rig.notes_path), str(rig.gate))
    worker = rig.worker("--pool", pool, "-c", "3", modules=(MODULE,))
    eventually(lambda: len(rig.lines()) == 3)

    rig.open_gate()

    eventually(lambda: {"first ends", "second ends", "on_failure JobCrashed"} <= set(rig.lines()))
    eventually(lambda: set(rig.errors()) == {crash})
    runs = [line.split() for line in rig.lines() if " begins" in line]
    assert [len([run for run in runs if run[0] == text]) for text in ("first", "second", "fuse")] == [2, 2, 2]
    assert len({run[2] for run in runs if len(run) == 3}) == 3
    assert worker.log.count("this one runs again alone") == 3
    eventually(lambda: len(worker.children()) == 2)
    assert rig.pending() == 0


@BOTH
def test_a_child_killed_while_it_idles_is_replaced_and_harms_no_job(rig: Rig, pool: str) -> None:
    worker = rig.worker("--pool", pool, modules=(MODULE,))
    rig.run_one(worker)
    child = worker.grown(2)[1]

    os.kill(child, signal.SIGKILL)
    eventually(lambda: "slot ended while idle slot=all" in worker.log)
    enqueue(rig, "tells_pid", str(rig.notes_path))

    eventually(lambda: len(rig.lines()) == 1)
    assert rig.errors() == {}


@BOTH
def test_when_the_template_dies_its_jobs_fail_and_the_worker_begins_anew(rig: Rig, pool: str) -> None:
    ids = {rig.hold()}
    worker = rig.worker("--pool", pool, "-c", "2")
    eventually(lambda: rig.lines() == ["held begins"])
    ids.add(rig.enqueue("kills_template"))

    eventually(lambda: set(rig.errors()) == ids)
    rig.enqueue("note", str(rig.notes_path), "after")

    eventually(lambda: "after" in rig.lines())
    assert worker.log.count("worker started") == 2


@BOTH
def test_killing_the_parent_ends_its_child_and_the_jobs_run_elsewhere(rig: Rig, pool: str) -> None:
    rig.hold("first")
    rig.hold("second")
    worker = rig.worker("--pool", pool, "-c", "2")
    eventually(lambda: len(rig.lines()) == 2)
    children = worker.grown(2)

    worker.send(signal.SIGKILL)

    eventually(lambda: not any(exists(pid) for pid in children))
    rig.open_gate()
    rig.worker("--pool", pool, "-c", "2")
    eventually(lambda: {"first ends", "second ends"} <= set(rig.lines()))
    assert rig.errors() == {}


def test_a_pool_that_there_is_not_is_refused_in_one_line(rig: Rig) -> None:
    worker = rig.worker("--pool", "fibre")

    assert worker.wait() == 2
    assert "'fibre' is not one of 'process', 'thread', 'async'" in worker.log
