"""Promises of the original Palermo about workers: P4, P5, P13, P16; and one unfinished job per slot."""

import os
import signal
from contextlib import suppress

import pytest

from tests.harness.processes import WorkerProcess, title
from tests.harness.rig import Rig
from tests.helpers import eventually

QUEUES = ("one", "two", "three")


def in_progress(rig: Rig) -> tuple[int, int]:
    """How many jobs wait, and how many workers say they hold."""
    rows = [row for row in rig.inspector.queues() if row["name"] in QUEUES]
    return sum(row["pending"] for row in rows), sum(row["in_progress"] for row in rows)


def begun(rig: Rig) -> set[str]:
    return {line.split()[0] for line in rig.lines() if line.endswith("begins")}


def who_runs(rig: Rig, *workers: WorkerProcess) -> WorkerProcess:
    """The worker that has a job."""
    busy = eventually(lambda: {row["pid"] for row in rig.workers() if row["jobs"]})
    return next(worker for worker in workers if worker.pid in busy)


def test_P4_a_job_of_a_killed_worker_is_run_by_another(rig: Rig) -> None:
    workers = (rig.worker(), rig.worker())
    rig.ready(*workers)
    rig.enqueue("hold", "job")
    rig.await_lines(1)

    killed = who_runs(rig, *workers)
    killed.kill9()

    assert rig.await_lines(2) == ["job begins", "job begins"]
    rig.open_gate()
    assert rig.await_lines(3)[-1] == "job ends"
    eventually(lambda: in_all(rig) == 0)
    assert rig.failed() == {}


def in_all(rig: Rig) -> int:
    return sum(row["pending"] + row["in_progress"] for row in rig.inspector.queues())


def test_P4_a_worker_killed_with_everything_it_started_loses_nothing(rig: Rig) -> None:
    first = rig.worker("-c", "3", "-q", ",".join(QUEUES))
    rig.ready(first)
    for queue in QUEUES:
        rig.enqueue("hold", queue, queue=queue)
    eventually(lambda: begun(rig) == set(QUEUES))

    for pid in first.tree():
        with suppress(ProcessLookupError):  # it may have ended with its parent
            os.kill(pid, signal.SIGKILL)
    first.wait()

    eventually(lambda: in_progress(rig) == (3, 0))
    rig.open_gate()
    rig.burst("-q", ",".join(QUEUES))
    assert {line for line in rig.lines() if line.endswith("ends")} == {f"{queue} ends" for queue in QUEUES}


def test_P4_no_process_of_a_killed_worker_goes_on(rig: Rig) -> None:
    worker = rig.worker("-c", "2")
    rig.ready(worker)
    rig.enqueue("hold", "job")
    rig.await_lines(1)
    tree = worker.tree()

    worker.kill9()

    assert len(tree) == 4
    eventually(lambda: not any(runs(pid) for pid in tree))


def runs(pid: int) -> bool:
    try:
        return "palermo" in title(pid)
    except (FileNotFoundError, ProcessLookupError):
        return False


def test_P5_while_one_worker_has_a_slow_job_the_other_gets_all_the_rest(rig: Rig) -> None:
    workers = (rig.worker("-q", ",".join(QUEUES)), rig.worker("-q", ",".join(QUEUES)))
    rig.ready(*workers)
    rig.enqueue("hold", "slow", queue="two")
    rig.await_lines(1)

    for number in range(30):
        rig.enqueue("note", f"{number}", queue=QUEUES[number % 3])

    lines = rig.await_lines(31)
    assert sorted(lines[1:], key=int) == [f"{number}" for number in range(30)]
    eventually(lambda: in_progress(rig) == (0, 1))
    rig.open_gate()
    assert rig.await_lines(32)[-1] == "slow ends"


def test_P5_over_three_queues_a_slot_never_has_more_than_one_unfinished_job(rig: Rig) -> None:
    for number in range(6):
        for queue in QUEUES:
            rig.enqueue("hold", f"{queue}-{number}", f"gate-{queue}-{number}", queue=queue)
    workers = (rig.worker("-q", "one,two,three"), rig.worker("-q", "three,*"))

    for done in range(17):
        # 18 jobs, of which two are held and the others wait: no slot has another one up its sleeve.
        eventually(lambda done=done: len(begun(rig)) == done + 2)
        eventually(lambda done=done: in_progress(rig) == (16 - done, 2))
        (rig.path / f"gate-{open_jobs(rig)[done % 2]}").touch()

    for job in open_jobs(rig):
        (rig.path / f"gate-{job}").touch()
    rig.await_lines(36)
    eventually(lambda: in_progress(rig) == (0, 0))
    assert all(worker.alive for worker in workers)


def open_jobs(rig: Rig) -> list[str]:
    """The jobs that have begun and not ended."""
    lines = [line.split() for line in rig.lines()]
    ended = {name for name, what in lines if what == "ends"}
    return [name for name, what in lines if what == "begins" and name not in ended]


def test_P5_slots_of_one_worker_run_at_the_same_time(rig: Rig) -> None:
    rig.worker("-c", "3", "-q", ",".join(QUEUES))
    for number in range(5):
        rig.enqueue("hold", f"{number}", queue="two")

    eventually(lambda: len(begun(rig)) == 3)
    eventually(lambda: in_progress(rig) == (2, 3))
    rig.open_gate()
    eventually(lambda: len(rig.lines()) == 10)


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 0), (signal.SIGINT, 0), (signal.SIGQUIT, 0)])
def test_P13_workers_are_started_and_stopped_from_a_script(rig: Rig, number: signal.Signals, code: int) -> None:
    worker = rig.worker("-q", "one", "-c", "2", "--pidfile", "worker.pid")
    rig.ready(worker)
    rig.enqueue("hold", "job", queue="one")
    rig.await_lines(1)

    os.kill(int((rig.path / "worker.pid").read_text()), number)
    eventually(lambda: [row["state"] for row in rig.workers()] == ["stopping"])
    rig.open_gate()

    assert worker.wait() == code
    assert rig.lines() == ["job begins", "job ends"]
    assert not (rig.path / "worker.pid").exists()


def test_P13_what_a_job_prints_is_the_only_thing_on_stdout(sqlite_rig: Rig) -> None:
    sqlite_rig.enqueue("note", "x")

    done = sqlite_rig.run("worker", "shop", "--burst")

    assert (done.returncode, done.stdout) == (0, "")
    assert "job finished" in done.stderr


def test_P16_workers_are_started_and_stopped_at_run_time_from_python(rig: Rig) -> None:
    program = """
import os, palermo, shop, time
inspector = palermo.inspector()
first = inspector.start_worker(["shop"], queues=["one"])
second = palermo.start_worker(["shop"], queues="two", concurrency=2)
for queue in ("one", "two"):
    shop.note.options(queue=queue).enqueue("on " + queue)
def wait_for(probe, deadline=time.monotonic() + 90):
    while not (found := probe()) and time.monotonic() < deadline:
        time.sleep(0.02)
    return found
def workers():
    return sorted((row["queues"], row["slots"]) for row in inspector.workers_info())
wait_for(lambda: os.path.exists("notes") and len(open("notes").readlines()) == 2)
# One that is slow to answer is not in the list.
print(wait_for(lambda: found if len(found := workers()) == 2 else []))
print(inspector.stop_worker(first), first.alive, second.alive)
print(wait_for(lambda: found if len(found := workers()) == 1 else []))
with second:
    pass
print(second.alive, inspector.workers_info())
"""

    lines = rig.python(program).splitlines()

    assert lines == ["[(['one'], 1), (['two'], 2)]", "0 False True", "[(['two'], 2)]", "False []"]
    assert sorted(rig.lines()) == ["on one", "on two"]
