"""Waiting costs nothing, and ends at once."""

import statistics
import time

import pytest

from tests.harness.rig import Rig
from tests.helpers import eventually, idle_share
from tests.scale import chosen


@pytest.mark.parametrize("queues", chosen(["high,jobs,low"], "jobs"))
def test_C10_a_waiting_worker_uses_no_core_and_starts_a_job_at_once(
    rig: Rig, queues: str, capsys: pytest.CaptureFixture[str]
) -> None:
    worker = rig.worker("-q", queues)
    rig.ready(worker)
    rig.enqueue("stamp", -1)  # the connection is opened, and what is made once is there
    rig.await_lines(1, "stamps")
    rig.ready(worker)
    tree = worker.tree()

    share = idle_share(tree)

    called: dict[int, int] = {}
    for number in range(20):
        called[number] = time.clock_gettime_ns(time.CLOCK_MONOTONIC)
        rig.enqueue("stamp", number)
        rig.await_lines(number + 2, "stamps")
        eventually(lambda: any(row["state"] == "idle" for row in rig.workers()))
    stamps = dict(map(int, line.split()) for line in rig.lines("stamps")[1:])
    waited = statistics.median((stamps[number] - called[number]) / 1e6 for number in called)

    with capsys.disabled():
        print(f"\nidle on {queues}: {share:.2%} of a core; a job starts after {waited:.1f} ms")
    assert len(tree) == 3
    assert waited < 1_000  # 5 on a machine of its own; a worker that looked once a second would take more
