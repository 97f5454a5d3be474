"""Ctrl-C many times, in a terminal: the whole group of processes gets each. No job is lost or blamed, nothing stays."""

import os
import random
import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from tests.brokers import BROKERS, url_of_broker
from tests.harness.rig import COMMAND, Rig
from tests.helpers import eventually, has_traceback
from tests.scale import scaled

#: How often a worker is started and has its storm.
STORMS = scaled(6, 40)


class Terminal:
    """A worker with a process group of its own, as the shell gives one to each command."""

    def __init__(self, rig: Rig, *arguments: str) -> None:
        self._log = rig.path / "terminal.log"
        with self._log.open("ab") as output:
            self._process = subprocess.Popen(
                [COMMAND, "worker", "shop", *arguments],
                env=rig.environment,
                cwd=rig.path,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                start_new_session=True,
            )

    def __enter__(self) -> "Terminal":
        return self

    def __exit__(self, *raised: object) -> None:
        with suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait(30)

    def storm(self, chance: random.Random) -> None:
        """Ctrl-C again and again, until nobody is there to hear it."""
        for _ in range(60):
            try:
                os.killpg(self._process.pid, signal.SIGINT)
            except ProcessLookupError:
                return
            time.sleep(chance.uniform(0.0, 0.03))

    def wait(self) -> int:
        return self._process.wait(60)

    @property
    def empty(self) -> bool:
        """Whether no process of the group is left."""
        try:
            os.killpg(self._process.pid, 0)
        except ProcessLookupError:
            return True
        return False

    @property
    def log(self) -> str:
        return self._log.read_text()


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
        with Terminal(rig, "--pool", pool, "-c", "3") as terminal:
            eventually(lambda number=number: len(rig.lines()) >= 3 * (number + 1))  # type: ignore[misc]
            terminal.storm(chance)
            assert terminal.wait() in (0, 1), terminal.log
            eventually(lambda terminal=terminal: terminal.empty)  # type: ignore[misc]
            assert not has_traceback(terminal.log)
        eventually(lambda: waiting(rig) == len(jobs))

    assert rig.errors() == {}


@pytest.mark.parametrize("rig", BROKERS, indirect=True)
def test_interrupts_during_a_start_leave_no_process_and_no_blame(rig: Rig) -> None:
    chance = random.Random(4)
    jobs = [rig.enqueue("hold", f"{number}") for number in range(3)]
    for number in range(STORMS):
        with Terminal(rig, "-c", "2") as terminal:
            time.sleep(2.0 * number / STORMS)
            terminal.storm(chance)
            terminal.wait()
            eventually(lambda terminal=terminal: terminal.empty)  # type: ignore[misc]
        eventually(lambda: waiting(rig) == len(jobs))

    assert rig.errors() == {}
