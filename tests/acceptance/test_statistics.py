"""What the journal and the workers count, and what of it outlives a worker."""

import re
import signal
import time

from palermo.client.recorder import COUNTS
from tests.harness.rig import Rig
from tests.helpers import eventually


def test_what_workers_counted_and_how_long_it_took_outlives_them(sqlite_rig: Rig) -> None:
    rig = sqlite_rig
    enqueued = time.monotonic()
    for text in "abc":
        rig.enqueue("note", text)
        rig.enqueue("fail", text)
    rig.enqueue("hold", "long")
    rig.enqueue("note", "waits", queue="slow")
    worker = rig.worker("-q", "jobs")
    rig.await_lines(4)

    [row] = eventually(lambda: [row for row in rig.workers() if row["jobs"] and row["processed"] == 6])
    assert (row["pid"], row["queues"], row["state"], row["failed"]) == (worker.pid, ["jobs"], "working", 3)
    assert row["started_at"] <= row["jobs"][0]["started_at"]
    held = time.monotonic()
    eventually(lambda: time.monotonic() > held + 0.3)
    rig.open_gate()
    worker.send(signal.SIGTERM)
    assert worker.wait() == 0

    # The counts of the program that enqueued come a little later.
    report = eventually(lambda: found if (found := rig.rows("stats", "--since", "1h"))["enqueued"] == 8 else {})
    waited = time.monotonic() - enqueued
    assert (report["processed"], report["failed"]) == (7, 3)
    queues = {each["name"]: (each["processed"], each["pending"]) for each in report["queues"]}
    assert queues == {"jobs": (7, 0), "slow": (0, 1), "failed": (0, 3)}
    jobs = next(each for each in report["queues"] if each["name"] == "jobs")
    for times in (jobs["wait"], jobs["run"]):
        assert times["count"] == 7
        assert 0 <= times["min"] <= times["p50"] <= times["p90"] <= times["p99"] <= times["max"] <= waited
        assert times["min"] < times["mean"] < times["max"]
    assert jobs["run"]["p50"] < 0.3 <= jobs["run"]["max"]
    [gone] = report["workers"]
    assert (gone["id"], gone["state"], gone["processed"], gone["failed"]) == (row["id"], None, 7, 3)
    assert gone["run"] == jobs["run"]
    counted = {each["name"]: each["processed"] for each in report["jobs"]}
    assert counted == {"shop.note": 3, "shop.fail": 3, "shop.hold": 1}


def test_a_killed_worker_has_lost_no_more_counts_than_it_keeps_in_memory(rig: Rig) -> None:
    rig.client.enqueue_many(("shop.note", [f"{number}"], {}) for number in range(600))
    first = rig.worker("-c", "2")
    rig.await_lines(150)
    first.kill9()
    # Redis gives its jobs back when its lease has ended.
    eventually(lambda: not any(row["in_progress"] for row in rig.inspector.queues()))
    before = len(rig.lines())
    log = rig.burst("-c", "2")
    runs = rig.lines()
    stopped = re.search(r"worker stopped id=(\S+) processed=(\d+) failed=0", log)
    assert stopped, log

    report = eventually(lambda: found if (found := rig.inspector.statistics())["enqueued"] == 600 else {})

    assert set(runs) == {str(number) for number in range(600)}
    workers = {row["id"]: row["processed"] for row in report["workers"]}
    assert workers[stopped[1]] == int(stopped[2])
    # Two may have been in the midst of it, on either side of their line, when the first worker was killed.
    assert abs(len(runs) - before - int(stopped[2])) <= 2
    assert len(runs) - COUNTS - 2 <= sum(workers.values()) <= len(runs)
    assert (report["processed"], report["enqueued"], report["failed"]) == (sum(workers.values()), 600, 0)
