"""Promises of the original Palermo about workers: P4, P5, P13, P16; and one unfinished job per slot."""

import os
import signal
from contextlib import suppress

import pytest

from tests.acceptance.place import Place, Worker, command_line
from tests.helpers import eventually

QUEUES = ("one", "two", "three")


def in_progress(place: Place) -> tuple[int, int]:
    """How many jobs wait, and how many workers say they hold."""
    rows = [row for row in place.inspector.queues() if row["name"] in QUEUES]
    return sum(row["pending"] for row in rows), sum(row["in_progress"] for row in rows)


def begun(place: Place) -> set[str]:
    return {line.split()[0] for line in place.lines() if line.endswith("begins")}


def who_runs(place: Place, *workers: Worker) -> Worker:
    """The worker that has a job."""
    busy = eventually(lambda: {row["pid"] for row in place.workers() if row["jobs"]})
    return next(worker for worker in workers if worker.pid in busy)


def test_P4_a_job_of_a_killed_worker_is_run_by_another(place: Place) -> None:
    workers = (place.worker(), place.worker())
    place.ready(*workers)
    place.enqueue("hold", "job")
    place.await_lines(1)

    killed = who_runs(place, *workers)
    killed.kill9()

    assert place.await_lines(2) == ["job begins", "job begins"]
    place.open_gate()
    assert place.await_lines(3)[-1] == "job ends"
    eventually(lambda: in_all(place) == 0)
    assert place.failed() == {}


def in_all(place: Place) -> int:
    return sum(row["pending"] + row["in_progress"] for row in place.inspector.queues())


def test_P4_a_worker_killed_with_everything_it_started_loses_nothing(place: Place) -> None:
    first = place.worker("-c", "3", "-q", ",".join(QUEUES))
    place.ready(first)
    for queue in QUEUES:
        place.enqueue("hold", queue, queue=queue)
    eventually(lambda: begun(place) == set(QUEUES))

    for pid in first.tree():
        with suppress(ProcessLookupError):  # it may have ended with its parent
            os.kill(pid, signal.SIGKILL)
    first.wait()

    eventually(lambda: in_progress(place) == (3, 0))
    place.open_gate()
    place.burst("-q", ",".join(QUEUES))
    assert {line for line in place.lines() if line.endswith("ends")} == {f"{queue} ends" for queue in QUEUES}


def test_P4_no_process_of_a_killed_worker_goes_on(place: Place) -> None:
    worker = place.worker("-c", "2")
    place.ready(worker)
    place.enqueue("hold", "job")
    place.await_lines(1)
    tree = worker.tree()

    worker.kill9()

    assert len(tree) == 4
    eventually(lambda: not any(runs(pid) for pid in tree))


def runs(pid: int) -> bool:
    try:
        return "palermo" in command_line(pid)
    except (FileNotFoundError, ProcessLookupError):
        return False


def test_P5_while_one_worker_has_a_slow_job_the_other_gets_all_the_rest(place: Place) -> None:
    workers = (place.worker("-q", ",".join(QUEUES)), place.worker("-q", ",".join(QUEUES)))
    place.ready(*workers)
    place.enqueue("hold", "slow", queue="two")
    place.await_lines(1)

    for number in range(30):
        place.enqueue("note", f"{number}", queue=QUEUES[number % 3])

    lines = place.await_lines(31)
    assert sorted(lines[1:], key=int) == [f"{number}" for number in range(30)]
    eventually(lambda: in_progress(place) == (0, 1))
    place.open_gate()
    assert place.await_lines(32)[-1] == "slow ends"


def test_P5_over_three_queues_a_slot_never_has_more_than_one_unfinished_job(place: Place) -> None:
    for number in range(6):
        for queue in QUEUES:
            place.enqueue("hold", f"{queue}-{number}", f"gate-{queue}-{number}", queue=queue)
    workers = (place.worker("-q", "one,two,three"), place.worker("-q", "three,*"))

    for done in range(17):
        # 18 jobs, of which two are held and the others wait: no slot has another one up its sleeve.
        eventually(lambda done=done: len(begun(place)) == done + 2)
        eventually(lambda done=done: in_progress(place) == (16 - done, 2))
        (place.path / f"gate-{open_jobs(place)[done % 2]}").touch()

    for job in open_jobs(place):
        (place.path / f"gate-{job}").touch()
    place.await_lines(36)
    eventually(lambda: in_progress(place) == (0, 0))
    assert all(worker.alive for worker in workers)


def open_jobs(place: Place) -> list[str]:
    """The jobs that have begun and not ended."""
    lines = [line.split() for line in place.lines()]
    ended = {name for name, what in lines if what == "ends"}
    return [name for name, what in lines if what == "begins" and name not in ended]


def test_P5_slots_of_one_worker_run_at_the_same_time(place: Place) -> None:
    place.worker("-c", "3", "-q", ",".join(QUEUES))
    for number in range(5):
        place.enqueue("hold", f"{number}", queue="two")

    eventually(lambda: len(begun(place)) == 3)
    eventually(lambda: in_progress(place) == (2, 3))
    place.open_gate()
    eventually(lambda: len(place.lines()) == 10)


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 0), (signal.SIGINT, 0), (signal.SIGQUIT, 0)])
def test_P13_workers_are_started_and_stopped_from_a_script(place: Place, number: signal.Signals, code: int) -> None:
    worker = place.worker("-q", "one", "-c", "2", "--pidfile", "worker.pid")
    place.ready(worker)
    place.enqueue("hold", "job", queue="one")
    place.await_lines(1)

    os.kill(int((place.path / "worker.pid").read_text()), number)
    eventually(lambda: [row["state"] for row in place.workers()] == ["stopping"])
    place.open_gate()

    assert worker.wait() == code
    assert place.lines() == ["job begins", "job ends"]
    assert not (place.path / "worker.pid").exists()


def test_P13_what_a_job_prints_is_the_only_thing_on_stdout(sqlite_place: Place) -> None:
    sqlite_place.enqueue("note", "x")

    done = sqlite_place.run("worker", "shop", "--burst")

    assert (done.returncode, done.stdout) == (0, "")
    assert "job finished" in done.stderr


def test_P16_workers_are_started_and_stopped_at_run_time_from_python(place: Place) -> None:
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

    lines = place.python(program).splitlines()

    assert lines == ["[(['one'], 1), (['two'], 2)]", "0 False True", "[(['two'], 2)]", "False []"]
    assert sorted(place.lines()) == ["on one", "on two"]
