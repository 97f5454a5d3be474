"""Ctrl-C many times, in a terminal: the whole group of processes gets each. No job is lost or blamed, nothing stays."""

import os
import random
import signal
import time
from collections.abc import Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path

import pytest

from tests.brokers import BROKERS, url_of_broker
from tests.harness.processes import WorkerProcess
from tests.harness.rig import COMMAND, Rig
from tests.helpers import eventually, has_traceback
from tests.scale import scaled

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


@pytest.fixture
def rig(request: pytest.FixtureRequest, tmp_path: Path, exchange: str) -> Iterator[Rig]:
    with Rig(tmp_path, url_of_broker(request, tmp_path), exchange, module="shop") as rig:
        yield rig


#: Each broker with another pool.
POOLS = {"sqlite": "process", "rabbitmq": "thread", "redis": "async"}


def waiting(rig: Rig) -> int:
    return sum(row["pending"] for row in rig.inspector.queues.list() if row["name"] != "failed")


@pytest.mark.parametrize(("rig", "pool"), POOLS.items(), indirect=["rig"])
def test_a_storm_of_interrupts_while_jobs_run_gives_them_back(rig: Rig, pool: str) -> None:
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


@pytest.mark.parametrize("rig", BROKERS, indirect=True)
def test_interrupts_during_a_start_leave_no_process_and_no_blame(rig: Rig) -> None:
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
