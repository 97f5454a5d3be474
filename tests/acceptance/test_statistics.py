"""What the journal and the workers count, and what of it outlives a worker."""

import re

from palermo.client.recorder import COUNTS
from tests.harness.rig import Rig
from tests.helpers import eventually


def test_a_killed_worker_has_lost_no_more_counts_than_it_keeps_in_memory(rig: Rig) -> None:
    rig.client.enqueue_many(("shop.note", [f"{number}"], {}) for number in range(600))
    first = rig.worker("-c", "2")
    rig.await_lines(150)
    first.kill9()
    # Redis gives its jobs back when its lease has ended.
    eventually(lambda: not any(row["in_progress"] for row in rig.inspector.queues.list()))
    before = len(rig.lines())
    log = rig.burst("-c", "2")
    runs = rig.lines()
    stopped = re.search(r"worker stopped id=(\S+) processed=(\d+) failed=0", log)
    assert stopped, log

    report = eventually(lambda: found if (found := rig.inspector.history.statistics())["enqueued"] == 600 else {})

    assert set(runs) == {str(number) for number in range(600)}
    workers = {row["id"]: row["processed"] for row in report["workers"]}
    assert workers[stopped[1]] == int(stopped[2])
    # Two may have been in the midst of it, on either side of their line, when the first worker was killed.
    assert abs(len(runs) - before - int(stopped[2])) <= 2
    assert len(runs) - COUNTS - 2 <= sum(workers.values()) <= len(runs)
    assert (report["processed"], report["enqueued"], report["failed"]) == (sum(workers.values()), 600, 0)
