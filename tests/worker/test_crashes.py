"""Jobs that take their process down, and processes that are taken down under their jobs."""

import os
import signal
from pathlib import Path

import pytest

from tests.harness.processes import exists, title
from tests.harness.rig import Rig
from tests.helpers import HANGS, eventually

#: A child for each slot, and one for all; to the parent an async pool is as the latter.
EACH = pytest.mark.parametrize("pool", ["process", "thread"])

SEGFAULT = "the job's process was killed by SIGSEGV (segmentation fault)"

#: Jobs whose process dies, and what is said of it.
DEADLY = (
    (("exits", 3), "the job's process exited with status 3 during a job"),
    (("exits", 0), "the job's process exited with status 0 during a job"),
    (("segfaults",), SEGFAULT),
    (("segfaults_unseen",), SEGFAULT),
    (("killed", "SIGKILL"), "the job's process was killed by SIGKILL: out of memory, or kill -9"),
    (("killed", "SIGABRT"), "the job's process was killed by SIGABRT (aborted)"),
    (("hangs_up",), "the job's process closed its connection to the worker during a job, and was killed"),
    (("babbles",), "the job's process sent invalid data: a frame of 4294967295 bytes, and was killed"),
)


@pytest.mark.slow
def test_a_job_whose_process_dies_is_in_failed_with_the_reason(rig: Rig) -> None:
    wanted = {}
    for call, message in DEADLY:
        wanted[rig.enqueue(*call)] = ("palermo.errors.JobCrashed", message)
        rig.enqueue("note", str(rig.notes_path), " ".join(map(str, call)))

    rig.burst()

    assert rig.errors() == wanted
    assert rig.lines() == [" ".join(map(str, call)) for call, _ in DEADLY]


def test_a_hook_that_crashes_when_told_of_a_crash_is_not_told_again(rig: Rig) -> None:
    id = rig.enqueue("exits", 3)
    rig.enqueue("note", str(rig.notes_path), "after")

    log = rig.burst(modules=("crew", "crew_broken_hook"), PALERMO_TEST_HOOK="on_failure crashes")

    assert rig.errors() == {id: ("palermo.errors.JobCrashed", "the job's process exited with status 3 during a job")}
    assert log.count("on_failure hooks crashed too") == 1
    assert rig.lines() == ["after"]


@pytest.mark.parametrize(
    ("pool", "processes", "busy"),
    [
        ("process", 4, ": crew.hold"),
        ("thread", 2, "thread pool: 2 of 3 slots busy"),
        ("async", 2, "async pool: 2 of 3 slots busy"),
    ],
)
def test_a_killed_parents_processes_end_and_jobs_run_elsewhere(rig: Rig, pool: str, processes: int, busy: str) -> None:
    for text in ("first", "second"):
        rig.hold(text)
    worker = rig.worker("--pool", pool, "-c", "3")
    eventually(lambda: len(rig.lines()) == 2)
    children = worker.grown(processes)
    eventually(lambda: any(busy in title(pid) for pid in children))

    worker.send(signal.SIGKILL)

    eventually(lambda: not any(exists(pid) for pid in children))
    eventually(lambda: rig.workers() == [])
    rig.open_gate()
    heir = rig.worker("--pool", pool, "-c", "2")
    eventually(lambda: {"first ends", "second ends"} <= set(rig.lines()))
    assert len(rig.lines()) == 6
    eventually(lambda: all(title(pid).endswith("idle") for pid in heir.grown(3 if pool == "process" else 2)[1:]))
    assert rig.errors() == {}


@pytest.mark.slow
@EACH
def test_a_child_killed_while_it_idles_is_replaced_and_harms_no_job(rig: Rig, pool: str) -> None:
    worker = rig.worker("--pool", pool)
    rig.run_one(worker)
    child = worker.grown(2)[1]

    os.kill(child, signal.SIGKILL)
    eventually(lambda: "ended while idle" in worker.log)
    rig.enqueue("note", str(rig.notes_path), "ran")

    eventually(lambda: rig.lines() == ["ran"])
    assert rig.errors() == {}


@pytest.mark.slow
@EACH
def test_when_the_template_dies_its_jobs_fail_and_the_worker_renews(rig: Rig, pool: str) -> None:
    renewed = {"palermo.worker.parent.run._RESTART_EVERY": 0.2}
    worker, held = rig.holding("--pool", pool, "-c", "2", times=renewed)
    ids = {held, rig.enqueue("kills_template")}

    eventually(lambda: set(rig.errors()) == ids)
    assert all("worker's template, which was killed by SIGKILL" in text for _, text in rig.errors().values())
    rig.enqueue("note", str(rig.notes_path), "after")

    eventually(lambda: "after" in rig.lines())
    assert worker.alive
    assert worker.log.count("worker started") == 2


def test_a_worker_whose_template_died_obeys_term_before_it_begins_anew(rig: Rig) -> None:
    worker = rig.idle(times={"palermo.worker.parent.run._RESTART_EVERY": 10 * HANGS})
    os.kill(worker.children()[0], signal.SIGKILL)
    eventually(lambda: "restarting" in worker.log)

    worker.send(signal.SIGTERM)

    assert worker.wait() == 0


def test_children_survive_signals_meant_for_the_parent(rig: Rig) -> None:
    worker, _ = rig.holding()

    assert os.getpgid(worker.pid) not in [os.getpgid(pid) for pid in worker.grown(2)]  # out of Ctrl-C's reach
    for pid in worker.children():
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT, signal.SIGUSR1, signal.SIGUSR2):
            os.kill(pid, number)
    rig.open_gate()

    eventually(lambda: rig.lines() == ["held begins", "held ends"])
    assert rig.errors() == {}


@pytest.mark.slow
@pytest.mark.parametrize("pool", [(), ("--pool", "thread", "-c", "2")], ids=["slots", "shared child"])
def test_nothing_of_a_dead_process_piles_up_in_the_parent(rig: Rig, pool: tuple[str, ...]) -> None:
    worker = rig.idle(*pool, "--log-level", "warning")
    rig.enqueue("segfaults")
    eventually(lambda: len(rig.errors()) == 1)
    rig.enqueue("note", str(rig.notes_path), "in the next process")
    eventually(lambda: rig.lines() != [])
    descriptors = Path(f"/proc/{worker.pid}/fd")
    before = len(list(descriptors.iterdir()))

    for _ in range(20):
        rig.enqueue("segfaults")

    eventually(lambda: len(rig.errors()) == 21)
    eventually(lambda: len(list(descriptors.iterdir())) <= before)
    eventually(lambda: len(worker.children()) == 2)
