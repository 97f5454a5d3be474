"""Statistics of queues and workers: R10 of Resque, C8 and C12 of carmine; and the journal counts what happened."""

import re
import signal
import time
from typing import Any

from palermo.client.recorder import COUNTS
from tests.harness.rig import Rig
from tests.helpers import eventually


def counted(rig: Rig, by: str, name: str) -> dict[str, Any]:
    """What the journal has counted of one queue, job or worker."""
    report = rig.inspector.statistics()
    return next((row for row in report[by] if name in (row.get("name"), row.get("id"))), {"processed": 0, "failed": 0})


def test_R10_queues_and_workers_since_when_at_what_and_their_totals_which_outlive_them(rig: Rig) -> None:
    for text in "abc":
        rig.enqueue("note", text)
        rig.enqueue("fail", text)
    rig.enqueue("hold", "long")
    worker = rig.worker("-q", "jobs")
    rig.await_lines(4)

    [row] = eventually(lambda: [row for row in rig.workers() if row["jobs"] and row["processed"] == 6])
    assert (row["pid"], row["queues"], row["state"]) == (worker.pid, ["jobs"], "working")
    assert row["started_at"] <= row["jobs"][0]["started_at"]
    assert [job["job"] for job in row["jobs"]] == ["shop.hold"]
    assert (row["processed"], row["failed"]) == (6, 3)
    eventually(lambda: counted(rig, "workers", row["id"])["processed"] == 6)
    worker.kill9()
    eventually(lambda: rig.workers() == [])

    def counted_all() -> bool:
        report = rig.inspector.statistics()
        [gone] = report["workers"]
        assert (gone["id"], gone["state"], gone["processed"], gone["failed"]) == (row["id"], None, 6, 3)
        assert (report["processed"], report["failed"], report["enqueued"]) == (6, 3, 7)
        assert {each["name"]: (each["processed"], each["pending"]) for each in report["queues"]} == {
            "jobs": (6, 1),
            "failed": (0, 3),
        }
        return True

    # The counts of who enqueues come when they come, and so does the job that the worker held.
    eventually(counted_all)


def test_the_journal_and_the_workers_count_what_ran_but_for_what_a_killed_one_had_not_stored(rig: Rig) -> None:
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

    # The counts of who enqueued come a little later.
    report = eventually(lambda: found if (found := rig.inspector.statistics())["enqueued"] == 600 else {})

    assert set(runs) == {str(number) for number in range(600)}
    workers = {row["id"]: row["processed"] for row in report["workers"]}
    assert workers[stopped[1]] == int(stopped[2])
    # Two may have been in the midst of it, on either side of their line, when the first worker was killed.
    assert abs(len(runs) - before - int(stopped[2])) <= 2
    assert len(runs) - COUNTS - 2 <= sum(workers.values()) <= len(runs)
    assert (report["processed"], report["enqueued"], report["failed"]) == (sum(workers.values()), 600, 0)


def test_C8_queues_are_counted_whatever_their_length_and_named_and_read_and_cleared(rig: Rig) -> None:
    rig.enqueue("note", "one", queue="short")
    inspector = rig.inspector

    def look() -> float:
        began = time.perf_counter()
        inspector.queues()
        return time.perf_counter() - began

    few = min(look() for _ in range(5))
    rig.client.enqueue_many((("shop.note", [f"{number}"], {}) for number in range(5_000)), queue="long")

    # Reading 5,000 jobs would take a second, each time.
    eventually(lambda: look() < 10 * few + 0.1)
    assert {row["name"]: row["pending"] for row in inspector.queues()} == {"failed": 0, "long": 5_000, "short": 1}
    listing = inspector.jobs("long", limit=2)
    assert ([row["args"] for row in listing.rows], listing.total) == ([["0"], ["1"]], 5_000)
    assert (inspector.purge("long"), inspector.size("long"), inspector.size("short")) == (5_000, 0, 1)


def test_C12_how_many_wait_how_long_they_waited_and_how_long_they_took(rig: Rig) -> None:
    enqueued = time.monotonic()
    for number in range(9):
        rig.enqueue("note", f"{number}")
    rig.enqueue("hold", "held")
    rig.enqueue("note", "waits", queue="slow")
    worker = rig.worker("-q", "jobs")
    rig.await_lines(10)
    held = time.monotonic()
    eventually(lambda: time.monotonic() > held + 0.3)
    rig.open_gate()
    rig.await_lines(11)
    worker.send(signal.SIGTERM)
    assert worker.wait() == 0

    report = rig.rows("stats", "--since", "1h")

    waited = time.monotonic() - enqueued
    jobs = next(row for row in report["queues"] if row["name"] == "jobs")
    assert {row["name"]: row["pending"] for row in report["queues"]} == {"jobs": 0, "slow": 1, "failed": 0}
    for times, shortest, longest in ((jobs["wait"], 0.0, waited), (jobs["run"], 0.0, waited)):
        assert times["count"] == 10
        assert shortest <= times["min"] <= times["p50"] <= times["p90"] <= times["p99"] <= times["max"] <= longest
        assert times["min"] < times["mean"] < times["max"]
    assert jobs["run"]["max"] >= 0.3
    assert jobs["run"]["p50"] < jobs["run"]["max"]
    [row] = report["workers"]
    assert (row["id"].split("@")[0], row["processed"], row["run"]) == (f"pid:{worker.pid}", 10, jobs["run"])
    assert [(each["name"], each["processed"]) for each in report["jobs"]] == [("shop.note", 9), ("shop.hold", 1)]
