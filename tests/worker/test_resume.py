"""Jobs that go on where they were, in real workers: after a stop, a failure, and a kill."""

import signal
from collections.abc import Callable

import pytest

from tests.brokers import BROKERS
from tests.harness.processes import WorkerProcess
from tests.harness.rig import Rig
from tests.helpers import eventually

#: The rows of an import, and the seconds that each takes.
ROWS, PAUSE = 200, 0.01

Kill = Callable[[Rig, WorkerProcess, str], None]

ALL = [str(row) for row in range(1, ROWS + 1)]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("pool", "job"), [("process", "import_rows"), ("thread", "import_rows"), ("async", "import_rows_async")]
)
def test_a_stopping_worker_ends_the_run_and_nothing_runs_twice(rig: Rig, pool: str, job: str) -> None:
    rig.enqueue(job, str(rig.notes_path), ROWS, PAUSE)
    worker = rig.worker("--pool", pool, "--shutdown-timeout", "1h")
    rig.await_lines(20)
    assert worker.stop() == 0
    assert rig.pending() == 1

    rig.burst("--pool", pool)

    assert rig.lines() == ALL
    assert rig.drained()


def worker_killed(rig: Rig, worker: WorkerProcess, id: str) -> None:
    worker.kill9()
    rig.worker()


def neighbour_killed(rig: Rig, worker: WorkerProcess, id: str) -> None:
    rig.enqueue("killed", "SIGKILL")
    eventually(lambda: "runs again alone" in worker.log)


def killed_and_requeued(rig: Rig, worker: WorkerProcess, id: str) -> None:
    worker.send(signal.SIGUSR1)
    eventually(lambda: id in rig.failed())
    rig.inspector.failed.requeue(id)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("any_rig", "kill", "pool"),
    [
        *((broker, worker_killed, "process") for broker in BROKERS),
        *(("sqlite", neighbour_killed, "thread"), ("sqlite", killed_and_requeued, "process")),
    ],
    indirect=["any_rig"],
)
def test_after_a_kill_the_items_of_the_last_second_come_again(any_rig: Rig, kill: Kill, pool: str) -> None:
    rig, rows = any_rig, 500
    id = rig.enqueue("import_rows", str(rig.notes_path), rows, PAUSE)
    worker = rig.worker("--pool", pool, "-c", "1" if pool == "process" else "2")
    rig.await_lines(300)

    kill(rig, worker, id)

    eventually(lambda: str(rows) in rig.lines() and rig.drained())
    done = rig.lines()
    assert set(done) == {str(row) for row in range(1, rows + 1)}
    assert done.count("1") == done.count("50") == 1
