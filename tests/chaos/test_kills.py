"""Batches, and loops that go on, while workers, the processes of their slots and the broker are killed."""

import os
import random
import signal
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from palermo.errors import BrokerError
from tests.harness.processes import WorkerProcess, children
from tests.harness.rig import Rig
from tests.helpers import eventually
from tests.rabbitmq_node import Node, url_of
from tests.scale import scaled

JOBS = scaled(400, 4_000)

#: Jobs that one call gets at most.
SIZE = 10

POOLS = (("-c", "2"), ("--pool", "thread", "-c", "2"))


@pytest.fixture
def rig(module_node: Node, exchange: str, tmp_path: Path) -> Iterator[Rig]:
    with Rig(tmp_path, f"{url_of(module_node)}?heartbeat=10", exchange, module="shop") as rig:
        yield rig


class Kills:
    """One after the other: workers, processes of slots, and the broker."""

    def __init__(self, rig: Rig, node: Node) -> None:
        self.rig = rig
        self.node = node
        self.workers = [self._start(pool) for pool in range(len(POOLS))]
        self.children = 0
        self._chance = random.Random(7)

    def _start(self, pool: int) -> WorkerProcess:
        times = {"palermo.worker.parent.broker_session.MAX_PAUSE": 2.0}
        return self.rig.worker(*POOLS[pool], modules=("adverse",), times=times)

    def parent(self) -> None:
        pool = self._chance.randrange(len(POOLS))
        self.workers[pool].kill9()
        self.workers[pool] = self._start(pool)

    def child(self) -> None:
        templates = children(self._chance.choice(self.workers).pid)
        for pid in [child for template in templates for child in children(template)][:1]:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
                self.children += 1

    def broker(self) -> None:
        self.node.kill9()
        self.node.start()


def left(rig: Rig) -> int:
    """Jobs that wait or run; -1 if the broker does not answer."""
    try:
        rows = [row for row in rig.inspector.queues.list() if row["name"] != "failed"]
        return sum(row["pending"] + row["in_progress"] for row in rows)
    except BrokerError:
        return -1


def test_every_job_of_a_batch_ends_whatever_is_killed_under_it(rig: Rig, module_node: Node) -> None:
    kills = Kills(rig, module_node)
    rig.ready(*kills.workers)
    rig.client.enqueue_many([("adverse.store", (number,), {}) for number in range(JOBS)])
    dealt = [kills.parent, kills.child, kills.broker, kills.child, kills.parent]
    for number, kill in enumerate(dealt):
        # In the middle of the work, however fast the machine is.
        wanted = JOBS * (number + 1) // (2 * len(dealt))
        eventually(lambda wanted=wanted: len(set(rig.lines("stored"))) >= wanted)  # type: ignore[misc]
        kill()

    def done() -> bool:
        assert left(rig) == 0, [worker.log[-2_000:] for worker in kills.workers]
        return True

    def ended() -> tuple[Counter[int], dict[int, str]]:
        stored = Counter(map(int, rig.lines("stored")))
        failed = {row["args"][0]: row["error"]["class"] for row in rig.failed().values()}
        assert {number for number in range(JOBS) if number not in stored and number not in failed} == set()
        return stored, failed

    eventually(done)
    # A job on its way to a worker is in no count for a moment.
    stored, failed = eventually(ended)
    eventually(done)
    assert set(failed.values()) <= {"palermo.errors.JobCrashed"}
    # Of what a kill interrupted each job may have been done before; and nothing else is done twice.
    assert stored.total() - len(stored) <= len(dealt) * 2 * len(POOLS) * SIZE
    # Of a batch that was killed each job is tried once more, and alone, unless the next kill comes in between.
    assert len(failed) <= kills.children * SIZE
    assert any(int(line.split()[1]) > 1 for line in rig.lines("calls"))
    assert all(worker.alive for worker in kills.workers)


#: The module of `any_rig`.
MODULE = "storm"

IMPORTS, ROWS = scaled(6, 20), scaled(300, 2_000)


def test_each_row_of_an_import_is_done_whatever_workers_are_killed(
    any_rig: Rig, request: pytest.FixtureRequest, capsys: pytest.CaptureFixture[str]
) -> None:
    rig = any_rig
    chance = random.Random(7)
    everlasting = {"PALERMO_MAX_DEATHS": "none"}
    workers = [rig.worker("-c", "2", **everlasting) for _ in range(2)]
    rig.ready(*workers)
    for number in range(IMPORTS):
        rig.enqueue("import_rows", number, ROWS, chance.random())

    ends = Counter[str]()
    while not rig.drained() or rig.inspector.scheduled.list():
        time.sleep(chance.uniform(0.5, 2.5))
        victim = chance.randrange(len(workers))
        number = chance.choice([signal.SIGKILL, signal.SIGTERM, signal.SIGUSR1])
        workers[victim].send(number)
        ends[number.name] += 1
        if number is not signal.SIGUSR1:
            workers[victim].wait()
            workers[victim] = rig.worker("-c", "2", **everlasting)

    # A job that was just delivered again is neither pending nor in progress, until its worker reports that it runs.
    wanted = {f"{number}/{row}" for number in range(IMPORTS) for row in range(1, ROWS + 1)}
    eventually(lambda: set(rig.lines("rows")) == wanted)
    assert rig.failed() == {}
    done = Counter(rig.lines("rows"))
    again = sum(count - 1 for count in done.values())
    with capsys.disabled():
        print(f"\n{request.node.name}: {len(done):,} rows, {again:,} done again after {dict(ends)}")
    eventually(rig.drained)
