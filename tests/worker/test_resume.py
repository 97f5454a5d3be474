"""Jobs that go on where they were, in real workers: after a stop, a failure, and a kill."""

import signal

import pytest

from tests.harness.rig import Rig
from tests.helpers import eventually

#: The rows of an import, and the seconds that each takes.
ROWS, PAUSE = 200, 0.01

ALL = [str(row) for row in range(1, ROWS + 1)]


def test_a_stopping_worker_ends_the_run_and_nothing_runs_twice(any_rig: Rig) -> None:
    rig = any_rig
    rig.enqueue("import_rows", str(rig.notes_path), ROWS, PAUSE)
    worker = rig.worker("--shutdown-timeout", "1h")
    rig.await_lines(20)
    worker.send(signal.SIGTERM)
    assert worker.wait() == 0
    assert rig.pending() == 1

    rig.burst()

    assert rig.lines() == ALL
    assert rig.drained()


@pytest.mark.parametrize(("pool", "job"), [("thread", "import_rows"), ("async", "import_rows_async")])
def test_a_stop_ends_loops_in_processes_that_slots_share(rig: Rig, pool: str, job: str) -> None:
    rig.enqueue(job, str(rig.notes_path), ROWS, PAUSE)
    worker = rig.worker("--pool", pool, "--shutdown-timeout", "1h")
    rig.await_lines(20)
    worker.send(signal.SIGTERM)
    assert worker.wait() == 0
    assert rig.pending() == 1

    rig.burst("--pool", pool)

    assert rig.lines() == ALL


def test_a_job_whose_process_dies_because_of_another_goes_on(rig: Rig) -> None:
    rig.enqueue("import_rows", str(rig.notes_path), ROWS, PAUSE)
    worker = rig.worker("--pool", "thread", "-c", "2")
    rig.await_lines(50)
    rig.enqueue("killed", "SIGKILL")
    eventually(lambda: rig.drained() and str(ROWS) in rig.lines())

    done = rig.lines()
    assert set(done) == set(ALL)
    assert done.count("1") == 1
    assert "runs again alone" in worker.log


def test_a_requeued_job_goes_on_at_the_item_that_failed(any_rig: Rig) -> None:
    rig = any_rig
    id = rig.enqueue("import_rows", str(rig.notes_path), 50, 0, 30)
    rig.burst()
    assert rig.lines() == ALL[:29]

    rig.inspector.failed.requeue(id)
    rig.burst()

    assert rig.lines() == ALL[:50]


def test_after_a_kill_the_items_of_the_last_second_come_again(any_rig: Rig) -> None:
    rig, rows = any_rig, 500
    rig.enqueue("import_rows", str(rig.notes_path), rows, PAUSE)
    worker = rig.worker()
    rig.await_lines(300)
    worker.send(signal.SIGKILL)
    worker.wait()
    rig.worker()
    eventually(lambda: str(rows) in rig.lines() and rig.drained())

    done = rig.lines()
    assert set(done) == {str(row) for row in range(1, rows + 1)}
    assert done.count("1") == done.count("50") == 1


def test_a_job_whose_process_is_killed_goes_on_when_it_is_requeued(rig: Rig) -> None:
    id = rig.enqueue("import_rows", str(rig.notes_path), ROWS, PAUSE)
    worker = rig.worker()
    rig.await_lines(50)
    worker.send(signal.SIGUSR1)
    eventually(lambda: id in rig.failed())

    rig.inspector.failed.requeue(id)
    eventually(lambda: str(ROWS) in rig.lines() and rig.drained())

    done = rig.lines()
    assert set(done) == set(ALL)
    assert done.count("1") == 1
