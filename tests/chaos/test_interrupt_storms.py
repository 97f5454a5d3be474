"""Ctrl-C many times, in a terminal: the whole group of processes gets each. No job is lost or blamed, nothing stays."""

import os
import random
import signal
import time
from contextlib import suppress
from functools import partial

import pytest

from tests.harness.processes import WorkerProcess
from tests.harness.rig import COMMAND, Rig
from tests.helpers import eventually, has_traceback
from tests.scale import scaled

#: The module of `any_rig`.
MODULE = "shop"

#: How often a worker is started and has its storm.
STORMS = scaled(6, 40)


def storm(worker: WorkerProcess, chance: random.Random) -> None:
    """Ctrl-C again and again, until nobody is there to hear it."""
    with suppress(ProcessLookupError):
        for _ in range(60):
            os.killpg(worker.pid, signal.SIGINT)
            time.sleep(chance.uniform(0.0, 0.03))


def is_empty(worker: WorkerProcess) -> bool:
    """Whether no process of the group is left."""
    try:
        os.killpg(worker.pid, 0)
    except ProcessLookupError:
        return True
    return False


#: Each broker with another pool.
POOLS = {"sqlite": "process", "rabbitmq": "thread", "redis": "async"}


def waiting(rig: Rig) -> int:
    return sum(row["pending"] for row in rig.inspector.queues.list() if row["name"] != "failed")


@pytest.mark.parametrize(("any_rig", "pool"), POOLS.items(), indirect=["any_rig"])
def test_a_storm_of_interrupts_while_jobs_run_gives_them_back(any_rig: Rig, pool: str) -> None:
    rig = any_rig
    chance = random.Random(3)
    jobs = [rig.enqueue("hold", f"{number}") for number in range(3)]
    for number in range(STORMS // 2):
        worker = rig.launch([COMMAND, "worker", "shop", "--pool", pool, "-c", "3"], alone=True)
        rig.await_lines(3 * (number + 1))
        storm(worker, chance)
        assert worker.wait() in (0, 1), worker.log
        eventually(partial(is_empty, worker))
        assert not has_traceback(worker.log)
        eventually(lambda: waiting(rig) == len(jobs))

    assert rig.errors() == {}


def test_interrupts_during_a_start_leave_no_process_and_no_blame(any_rig: Rig) -> None:
    rig = any_rig
    chance = random.Random(4)
    jobs = [rig.enqueue("hold", f"{number}") for number in range(3)]
    for number in range(STORMS):
        worker = rig.launch([COMMAND, "worker", "shop", "-c", "2"], alone=True)
        time.sleep(2.0 * number / STORMS)
        storm(worker, chance)
        worker.wait()
        eventually(partial(is_empty, worker))
        eventually(lambda: waiting(rig) == len(jobs))

    assert rig.errors() == {}
