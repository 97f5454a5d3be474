"""Jobs that take their process down, and processes that are taken down under their jobs."""

import os
import signal
from pathlib import Path

import pytest

from tests.harness.processes import exists
from tests.harness.rig import Rig
from tests.helpers import HANGS, eventually

SEGFAULT = "the job's process was killed by SIGSEGV (segmentation fault)"


#: Jobs whose process dies, and what is said of it.
DEADLY = (
    (("exits", 3), "the job's process exited with status 3 in mid-job"),
    (("exits", 0), "the job's process exited with status 0 in mid-job"),
    (("segfaults",), SEGFAULT),
    (("segfaults_unseen",), SEGFAULT),
    (("killed", "SIGKILL"), "the job's process was killed by SIGKILL: out of memory, or someone's kill -9"),
    (("killed", "SIGABRT"), "the job's process was killed by SIGABRT (aborted)"),
    (("hangs_up",), "the job's process closed its connection to the worker in mid-job, and was killed for that"),
    (("babbles",), "the job's process sent garbage: a frame of 4294967295 bytes, and was killed for that"),
)


def test_a_job_whose_process_dies_is_in_failed_with_the_reason(rig: Rig) -> None:
    wanted = {}
    for call, message in DEADLY:
        wanted[rig.enqueue(*call)] = ("palermo.errors.JobCrashed", message)
        rig.enqueue("note", str(rig.notes_path), " ".join(map(str, call)))

    rig.burst()

    assert rig.errors() == wanted
    assert rig.lines() == [" ".join(map(str, call)) for call, _ in DEADLY]


def test_a_hundred_crashes_leave_the_worker_and_its_good_jobs_unharmed(rig: Rig) -> None:
    crashes = []
    for number in range(100):
        crashes.append(rig.enqueue("segfaults"))
        rig.enqueue("note", str(rig.notes_path), str(number))

    worker = rig.worker("-c", "2", "--log-level", "warning")

    eventually(lambda: len(rig.lines()) == 100 and len(rig.errors()) == 100, every=0.25)
    assert sorted(rig.lines(), key=int) == [str(number) for number in range(100)]
    assert set(rig.errors()) == set(crashes)
    assert {message for _, message in rig.errors().values()} == {SEGFAULT}
    assert rig.only_worker()["pid"] == worker.pid
    eventually(lambda: rig.only_worker()["processed"] == 200)


def test_hooks_hear_of_a_crash_in_a_fresh_process(rig: Rig) -> None:
    rig.enqueue("exits", 3)

    rig.burst(modules=("crew", "crew_hooks"))

    started = [line for line in rig.trace() if line[0] == "before_process"]
    told = [line for line in rig.trace() if line[0] in ("on_failure", "tracker")]
    assert [line[2] for line in told] == ["JobCrashed", "palermo.errors.JobCrashed"]
    assert len({line[1] for line in told}) == 1
    assert started[0][1] != told[0][1]


def test_a_hook_that_crashes_when_told_of_a_crash_is_not_told_again(rig: Rig) -> None:
    id = rig.enqueue("exits", 3)
    rig.enqueue("note", str(rig.notes_path), "after")

    log = rig.burst(modules=("crew", "crew_fatal_hook"))

    assert rig.errors() == {id: ("palermo.errors.JobCrashed", "the job's process exited with status 3 in mid-job")}
    assert log.count("on_failure hooks crashed too") == 1
    assert rig.lines() == ["after"]


def test_killing_the_parent_ends_its_processes_and_the_job_runs_elsewhere(rig: Rig) -> None:
    rig.hold("first")
    worker = rig.worker("-c", "3")
    eventually(lambda: rig.lines() == ["first begins"])
    children = worker.grown(4)

    worker.send(signal.SIGKILL)

    eventually(lambda: not any(exists(pid) for pid in children))
    eventually(lambda: rig.workers() == [])
    rig.open_gate()
    rig.worker()
    eventually(lambda: rig.lines() == ["first begins", "first begins", "first ends"])
    assert rig.errors() == {}


def test_a_slot_killed_while_it_idles_is_replaced_and_harms_no_job(rig: Rig) -> None:
    worker = rig.worker()
    rig.run_one(worker)
    _, slot = worker.grown(2)

    os.kill(slot, signal.SIGKILL)
    eventually(lambda: not exists(slot))
    eventually(lambda: "slot ended while idle" in worker.log)
    rig.enqueue("note", str(rig.notes_path), "ran")

    eventually(lambda: rig.lines() == ["ran"])
    assert rig.errors() == {}


def test_when_the_template_dies_its_jobs_fail_and_the_worker_renews(rig: Rig) -> None:
    id = rig.enqueue("kills_template")
    worker = rig.worker()

    eventually(lambda: id in rig.errors())
    assert "ended with the worker's template, which was killed by SIGKILL" in rig.errors()[id][1]
    rig.enqueue("note", str(rig.notes_path), "after")

    eventually(lambda: rig.lines() == ["after"])
    assert worker.alive
    assert "starting anew" in worker.log
    assert worker.log.count("worker started") == 2


def test_a_worker_whose_template_died_obeys_term_before_it_begins_anew(rig: Rig) -> None:
    worker = rig.worker(times={"palermo.worker.parent.run._RESTART_EVERY": 10 * HANGS})
    rig.ready(worker)
    os.kill(worker.children()[0], signal.SIGKILL)
    eventually(lambda: "starting anew" in worker.log)

    worker.send(signal.SIGTERM)

    assert worker.wait() == 0


def test_children_survive_signals_meant_for_the_parent(rig: Rig) -> None:
    worker = rig.worker()
    rig.hold()
    eventually(lambda: rig.lines() == ["held begins"])

    assert os.getpgid(worker.pid) not in [os.getpgid(pid) for pid in worker.grown(2)]  # out of Ctrl-C's reach
    for pid in worker.children():
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT, signal.SIGUSR1, signal.SIGUSR2):
            os.kill(pid, number)
    rig.open_gate()

    eventually(lambda: rig.lines() == ["held begins", "held ends"])
    assert rig.errors() == {}


@pytest.mark.parametrize("pool", [(), ("--pool", "thread", "-c", "2")], ids=["slots", "shared child"])
def test_nothing_of_a_dead_process_piles_up_in_the_parent(rig: Rig, pool: tuple[str, ...]) -> None:
    worker = rig.worker(*pool, "--log-level", "warning")
    rig.ready(worker)
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
