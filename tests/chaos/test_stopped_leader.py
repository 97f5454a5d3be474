"""The leader is stopped for longer than its heartbeats and goes on later: as a machine that sleeps, or swaps, does."""

import os
import signal
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from palermo.client.client import Client
from palermo.errors import LeaderUnavailable
from palermo.inspector.inspector import Inspector
from palermo.settings.settings import Settings
from soak.records import runs
from tests.harness.processes import WorkerProcess
from tests.harness.rig import Rig
from tests.helpers import eventually, has_traceback
from tests.rabbitmq_node import Node, url_of

#: Jobs of each kind.
JOBS = 40


@pytest.fixture
def rig(module_node: Node, exchange: str, tmp_path: Path) -> Iterator[Rig]:
    # So that RabbitMQ soon sees that a leader is stopped, and not that the machine stood still for a while.
    with Rig(tmp_path, f"{url_of(module_node)}?heartbeat=5", exchange, module="shop") as rig:
        yield rig


def leader(rig: Rig) -> int:
    """The pid of the worker that leads; 0 if none does."""
    return next((int(row["pid"]) for row in rig.workers() if row["clock"]), 0)


def keeper(rig: Rig) -> WorkerProcess:
    return rig.worker("-q", "idle", modules=("soaked", "mixed"), SOAK_RECURS="1")


def enqueue(rig: Rig, numbers: range) -> None:
    """Jobs for every duty of a leader: delayed ones, of a tenant, and with keys."""
    for number in numbers:
        job = ("soaked.work", (number, 0.0, False))
        match number % 3:
            case 0:
                rig.client.enqueue(*job, delay=1 + number % 10 / 2)
            case 1:
                rig.client.enqueue(*job, tenant=f"tenant {number % 2}")
            case 2:
                rig.client.enqueue(*job, unique="until_done", unique_key=f"{number}")


def ticks(rig: Rig) -> Counter[int]:
    return Counter(run.number for run in runs(rig.lines("ticks")))


@pytest.mark.parametrize("which", ["parent", "parent and children"])
def test_a_stopped_leader_is_replaced_and_repeats_nothing(rig: Rig, module_node: Node, which: str) -> None:
    # Whose line must not be lost: else a job may rightly run twice.
    runner = rig.worker(
        *("--no-scheduler", "-q", "jobs,calls"),
        modules=("soaked", "mixed"),
        SOAK_RECURS="1",
        PALERMO_URL=url_of(module_node),
    )
    keepers = {worker.pid: worker for worker in (keeper(rig), keeper(rig))}
    rig.ready(runner, *keepers.values())
    first = eventually(lambda: len(rig.lines("ticks")) > 3 and leader(rig))
    enqueue(rig, range(JOBS))
    stopped = keepers[first].tree() if which != "parent" else [first]
    for pid in stopped:
        os.kill(pid, signal.SIGSTOP)
    try:
        second = eventually(lambda: pid if (pid := leader(rig)) not in (0, first) else 0)
        enqueue(rig, range(JOBS, 2 * JOBS))
        eventually(lambda: len(runs(rig.lines("runs"))) >= 2 * JOBS)
    finally:
        for pid in stopped:
            os.kill(pid, signal.SIGCONT)
    # It has to find out by itself that it leads no more, and may lead again only when the other ends.
    eventually(lambda: keepers[first].log.count("INFO connected") >= 2)
    enqueue(rig, range(2 * JOBS, 3 * JOBS))
    eventually(lambda: len(runs(rig.lines("runs"))) >= 3 * JOBS)
    end = time.time()
    eventually(lambda: max(ticks(rig)) > end)

    eventually(lambda: leader(rig) == second)
    assert Counter(run.number for run in runs(rig.lines("runs"))) == Counter(range(3 * JOBS))
    counted = ticks(rig)
    expected = range(min(counted), int(end) + 1)
    assert {tick: counted[tick] for tick in expected if counted[tick] != 1} == {}
    assert rig.errors() == {}
    assert rig.inspector.unique_keys() == []
    assert all(worker.alive for worker in (runner, *keepers.values()))
    assert not has_traceback(runner.log + "".join(worker.log for worker in keepers.values()))


def test_the_error_of_a_unique_job_names_the_stopped_leader(rig: Rig, module_node: Node) -> None:
    # RabbitMQ must not drop the leader's session before the enqueue gives up.
    times = {"palermo.brokers.rabbitmq.leadership.leader._HEARTBEAT": 60}
    url = url_of(module_node)
    worker = rig.worker("-q", "idle", modules=("soaked",), times=times, PALERMO_URL=url)
    client = Client(Settings(url=url, exchange=rig.exchange, publish_timeout=10.0))
    eventually(
        lambda: [row["pid"] for row in Inspector(client).workers() if "keys" in (row["duties"] or ())] == [worker.pid]
    )
    client.enqueue("soaked.work", (0, 0.0, False), unique="until_done", unique_key="0")
    os.kill(worker.pid, signal.SIGSTOP)
    try:
        with pytest.raises(LeaderUnavailable, match=f"the leader in keys, worker pid:{worker.pid}@.*, does not answer"):
            client.enqueue("soaked.work", (1, 0.0, False), unique="until_done", unique_key="1")
        with pytest.raises(LeaderUnavailable, match=f"worker pid:{worker.pid}@"):
            Inspector(client).unique_keys()
    finally:
        os.kill(worker.pid, signal.SIGCONT)
        client.close()
