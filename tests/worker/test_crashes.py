"""Jobs that take their process down, and processes that are taken down under their jobs."""

import json
import os
import signal
import sys
from pathlib import Path

import pytest

from tests.acceptance.place import PROGRAMS as TOOLS
from tests.helpers import HANGS, eventually
from tests.worker.site import Site, exists

#: The command `palermo` with other times: see there.
IMPATIENT = TOOLS / "impatient.py"

SEGFAULT = "the job's process was killed by SIGSEGV (segmentation fault)"


@pytest.mark.parametrize(
    ("job", "args", "message"),
    [
        ("exits", (3,), "the job's process exited with status 3 in mid-job"),
        ("exits", (0,), "the job's process exited with status 0 in mid-job"),
        ("segfaults", (), SEGFAULT),
        ("segfaults_unseen", (), SEGFAULT),
        ("killed", ("SIGKILL",), "the job's process was killed by SIGKILL: out of memory, or someone's kill -9"),
        ("killed", ("SIGABRT",), "the job's process was killed by SIGABRT (aborted)"),
        ("hangs_up", (), "the job's process closed its connection to the worker in mid-job, and was killed for that"),
        ("babbles", (), "the job's process sent garbage: a frame of 4294967295 bytes, and was killed for that"),
    ],
)
def test_a_job_whose_process_dies_is_in_failed_with_the_reason(
    site: Site, job: str, args: tuple[object, ...], message: str
) -> None:
    crash = site.enqueue(job, *args)
    site.enqueue("note", str(site.notes_path), "after")

    site.burst()

    assert site.errors() == {crash: ("palermo.errors.JobCrashed", message)}
    assert site.notes() == ["after"]


def test_a_hundred_crashes_between_a_hundred_good_jobs_leave_the_worker_as_it_was(site: Site) -> None:
    crashes = []
    for number in range(100):
        crashes.append(site.enqueue("segfaults"))
        site.enqueue("note", str(site.notes_path), str(number))

    worker = site.start("-c", "2", "--log-level", "warning")

    eventually(lambda: len(site.notes()) == 100 and len(site.errors()) == 100, every=0.25)
    assert sorted(site.notes(), key=int) == [str(number) for number in range(100)]
    assert set(site.errors()) == set(crashes)
    assert {message for _, message in site.errors().values()} == {SEGFAULT}
    assert site.worker()["pid"] == worker.pid
    eventually(lambda: site.worker()["processed"] == 200)


def test_hooks_hear_of_a_crash_in_a_fresh_process(site: Site) -> None:
    site.enqueue("exits", 3)

    site.burst(modules=("crew", "crew_hooks"))

    started = [line for line in site.trace() if line[0] == "before_process"]
    told = [line for line in site.trace() if line[0] in ("on_failure", "tracker")]
    assert [line[2] for line in told] == ["JobCrashed", "palermo.errors.JobCrashed"]
    assert len({line[1] for line in told}) == 1
    assert started[0][1] != told[0][1]


def test_a_hook_that_crashes_when_told_of_a_crash_is_not_told_again(site: Site) -> None:
    id = site.enqueue("exits", 3)
    site.enqueue("note", str(site.notes_path), "after")

    log = site.burst(modules=("crew", "crew_fatal_hook"))

    assert site.errors() == {id: ("palermo.errors.JobCrashed", "the job's process exited with status 3 in mid-job")}
    assert log.count("on_failure hooks crashed too") == 1
    assert site.notes() == ["after"]


def test_killing_the_parent_ends_all_its_processes_and_the_job_runs_elsewhere(site: Site) -> None:
    site.hold("first")
    worker = site.start("-c", "3")
    eventually(lambda: site.notes() == ["first begins"])
    children = worker.grown(4)

    worker.send(signal.SIGKILL)

    eventually(lambda: not any(exists(pid) for pid in children))
    eventually(lambda: site.workers() == [])
    site.open_gate()
    site.start()
    eventually(lambda: site.notes() == ["first begins", "first begins", "first ends"])
    assert site.errors() == {}


def test_a_slot_killed_while_it_idles_is_replaced_without_a_word_to_any_job(site: Site) -> None:
    worker = site.start()
    site.run_one(worker)
    _, slot = worker.grown(2)

    os.kill(slot, signal.SIGKILL)
    eventually(lambda: not exists(slot))
    eventually(lambda: "slot ended while idle" in worker.log)
    site.enqueue("note", str(site.notes_path), "ran")

    eventually(lambda: site.notes() == ["ran"])
    assert site.errors() == {}


def test_when_the_template_dies_its_jobs_fail_and_the_worker_begins_anew_with_the_same_pid(site: Site) -> None:
    id = site.enqueue("kills_template")
    worker = site.start()

    eventually(lambda: id in site.errors())
    assert "ended with the worker's template, which was killed by SIGKILL" in site.errors()[id][1]
    site.enqueue("note", str(site.notes_path), "after")

    eventually(lambda: site.notes() == ["after"])
    assert worker.alive
    assert "starting anew" in worker.log
    assert worker.log.count("worker started") == 2


def test_a_worker_whose_template_died_obeys_term_before_it_begins_anew(site: Site) -> None:
    times = json.dumps({"palermo.worker.parent.run._RESTART_EVERY": 10 * HANGS})
    worker = site.run([sys.executable, str(IMPATIENT), "worker", "crew"], TIMES=times)
    site.ready(worker)
    os.kill(worker.children()[0], signal.SIGKILL)
    eventually(lambda: "starting anew" in worker.log)

    worker.send(signal.SIGTERM)

    assert worker.wait() == 0


def test_children_survive_signals_meant_for_the_parent(site: Site) -> None:
    worker = site.start()
    site.hold()
    eventually(lambda: site.notes() == ["held begins"])

    for pid in worker.children():
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT, signal.SIGUSR1, signal.SIGUSR2):
            os.kill(pid, number)
    site.open_gate()

    eventually(lambda: site.notes() == ["held begins", "held ends"])
    assert site.errors() == {}


def test_the_children_are_in_groups_of_their_own_out_of_ctrl_cs_reach(site: Site) -> None:
    worker = site.start()
    site.ready(worker)
    children = worker.grown(2)

    assert os.getpgid(worker.pid) not in [os.getpgid(pid) for pid in children]


@pytest.mark.parametrize("pool", [(), ("--pool", "thread", "-c", "2")], ids=["slots", "shared child"])
def test_nothing_of_a_dead_process_piles_up_in_the_parent(site: Site, pool: tuple[str, ...]) -> None:
    worker = site.start(*pool, "--log-level", "warning")
    site.ready(worker)
    site.enqueue("segfaults")
    eventually(lambda: len(site.errors()) == 1)
    site.enqueue("note", str(site.notes_path), "in the next process")
    eventually(lambda: site.notes() != [])
    descriptors = Path(f"/proc/{worker.pid}/fd")
    before = len(list(descriptors.iterdir()))

    for _ in range(20):
        site.enqueue("segfaults")

    eventually(lambda: len(site.errors()) == 21)
    eventually(lambda: len(list(descriptors.iterdir())) <= before)
    eventually(lambda: len(worker.children()) == 2)
