"""Jobs of tenants while the leader, which deals them out, is killed."""

import signal
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.harness.processes import WorkerProcess
from tests.harness.rig import Rig
from tests.helpers import Stopwatch, eventually
from tests.scale import scaled


@pytest.fixture
def rig(rabbitmq_url: str, exchange: str, tmp_path: Path) -> Iterator[Rig]:
    rig = Rig(tmp_path, url=rabbitmq_url, exchange=exchange, publish_timeout=60.0)
    yield rig
    rig.close()


def leader(rig: Rig) -> int:
    """The pid of the worker that keeps the time, and deals; 0 if none does."""
    return next((int(row["pid"]) for row in rig.inspector.workers() if row["clock"]), 0)


def test_each_job_runs_exactly_once_while_dealers_are_killed(rig: Rig) -> None:
    some, count = scaled(2_400, 6_000), 0

    def enqueue() -> None:
        nonlocal count
        calls = [(str(rig.notes_path), f"{number}") for number in range(count, count + some)]
        for tenant in range(3):
            rig.client.enqueue_many([("crew.note", call, {}) for call in calls[tenant::3]], tenant=f"t{tenant}")
        count += some

    enqueue()
    # What runs the jobs is not killed: else a job may rightly run twice.
    runner = rig.worker("--no-scheduler", "-c", "2", "-q", "jobs")
    keepers: dict[int, WorkerProcess] = {}
    for _ in range(2):
        process = rig.worker("-q", "idle")
        keepers[process.pid] = process
    kills = 0
    while kills < 3 or len(rig.lines()) < count:
        first = eventually(lambda: leader(rig))
        watch, noted = Stopwatch(), len(rig.lines())
        eventually(lambda: len(rig.lines()) >= min(count, noted + some // 12))  # noqa: B023
        if kills < 3 and len(rig.lines()) >= count:
            enqueue()  # all were done before enough was killed
        if kills < 4 and len(rig.lines()) < count:
            keepers.pop(first).send(signal.SIGKILL)
            process = rig.worker("-q", "idle")
            keepers[process.pid] = process
            kills += 1
            eventually(lambda: leader(rig) not in (0, first))  # noqa: B023
            assert watch.seconds() < 60
    rig.ready(runner)

    found = Counter(rig.lines())
    assert kills >= 3
    assert len(found) == count
    assert {note: times for note, times in found.items() if times != 1} == {}
    assert rig.pending() == 0
