"""Delayed jobs through kills: of the broker, and of the worker that keeps the time."""

import asyncio
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from soak.survival import survive
from tests.harness.processes import WorkerProcess
from tests.harness.rig import Rig
from tests.helpers import Stopwatch, eventually
from tests.rabbitmq_node import Node
from tests.scale import scaled


@pytest.fixture
def rig(rabbitmq_url: str, exchange: str, tmp_path: Path) -> Iterator[Rig]:
    rig = Rig(tmp_path, url=rabbitmq_url, exchange=exchange, publish_timeout=60.0)
    yield rig
    rig.close()


def leader(rig: Rig) -> int:
    """The pid of the worker that keeps the time; 0 if none does."""
    found = [row["pid"] for row in rig.inspector.workers() if row["clock"]]
    assert len(found) <= 1
    return int(found[0]) if found else 0


@pytest.mark.timeout(scaled(400, 1_800))
def test_a_broker_killed_amid_pending_delays_loses_none(private_node: Node) -> None:
    for seed in range(scaled(1, 10)):
        found = asyncio.run(
            survive(
                private_node,
                f"kill-{seed}",
                jobs=scaled(2_000, 20_000),
                spread=scaled(8, 20),
                kill_after=scaled(3, 10),
                seed=seed,
            )
        )

        assert (found.lost, found.early) == (0, 0), found
        assert found.last < 30, found


def test_another_worker_takes_over_within_five_seconds_of_a_kill(rig: Rig) -> None:
    workers: dict[int, WorkerProcess] = {}
    for _ in range(2):
        process = rig.worker("-c", "4")
        workers[process.pid] = process
    first = eventually(lambda: leader(rig))
    for number in range(40):
        rig.client.enqueue("crew.note", (str(rig.notes_path), f"{number}"), {}, delay=1 + number * 0.2)
    eventually(lambda: len(rig.lines()) > 5)

    workers[first].send(signal.SIGKILL)
    watch = Stopwatch()
    eventually(lambda: leader(rig) not in (0, first))

    assert watch.seconds() < 5
    assert eventually(lambda: {f"{number}" for number in range(40)} <= set(rig.lines()))
