"""Workers and programs that are killed, and workers that wait and are slowed down."""

import os
import re
import signal
import statistics
import sys
import time
from collections.abc import Iterator

from palermo.client.recorder import COUNTS
from tests.harness.processes import exists
from tests.harness.rig import Rig
from tests.helpers import eventually, idle_share


def test_a_killed_workers_job_runs_before_those_that_wait(rig: Rig) -> None:
    rig.enqueue("hold", "running")
    victim = rig.worker()
    rig.await_lines(1)
    for number in range(3):
        rig.enqueue("note", f"{number}")
    tree = victim.tree()

    victim.kill9()
    eventually(lambda: not any(exists(pid) for pid in tree))
    # The broker may notice its end later than the next worker starts.
    eventually(lambda: rig.pending() == 4)
    rig.worker()

    assert rig.await_lines(2)[1] == "running begins"
    rig.open_gate()
    assert rig.await_lines(6)[2:] == ["running ends", "0", "1", "2"]
    assert rig.failed() == {}


def test_an_idle_worker_takes_over_the_jobs_of_tenants_from_a_killed_one(rig: Rig) -> None:
    tenants = ("acme", "zebra")
    for tenant in tenants:
        rig.client.enqueue_many([("shop.hold", [tenant], {}), ("shop.note", [tenant], {})], tenant=tenant)
    victim = rig.worker("-c", "2")
    begun = [f"{tenant} begins" for tenant in tenants]
    assert sorted(rig.await_lines(2)) == begun
    other = rig.worker("-c", "2")
    rig.await_lines(4)
    rig.ready(other)

    victim.kill9()

    assert sorted(rig.await_lines(6)[4:]) == begun
    rig.open_gate()
    assert sorted(rig.await_lines(8)) == sorted([*begun, *begun, *tenants, *(f"{tenant} ends" for tenant in tenants)])
    eventually(lambda: list(rig.inspector.tenants.list("jobs")) == [])
    assert rig.failed() == {}


def test_workers_killed_while_they_take_jobs_lose_none(rig: Rig) -> None:
    numbers = {f"{number}" for number in range(1_000)}
    calls = [("shop.note", (number,), {}) for number in sorted(numbers)]
    for behind in (800, 300):
        # Jobs for both slots that end after the kill: no worker may have done all before it is killed.
        calls[behind:behind] = [("shop.hold", (f"wall {behind}", f"gate {behind}"), {})] * 2
    rig.client.enqueue_many(calls)

    def ran() -> list[str]:
        return [line for line in rig.lines() if line.isdigit()]

    def all_found() -> bool:
        """Whether each job has run or waits: those that the dead worker had taken, too."""
        waiting = {row["args"][0] for row in rig.inspector.jobs.list("jobs", limit=1_010) if row["job"] == "shop.note"}
        return waiting | {*ran()} >= numbers

    for goal, wall in ((100, 300), (400, 800)):
        worker = rig.worker("-c", "2")
        rig.await_lines(goal)
        for pid in worker.tree():
            os.kill(pid, signal.SIGSTOP)  # nothing of it runs while it is looked at and killed
        worker.kill9()
        eventually(all_found)
        rig.open_gate(f"gate {wall}")

    rig.burst("-c", "2")
    assert {*ran()} == numbers
    assert len(ran()) - len(numbers) <= 4, "each dead worker's two slots run at most one job again"
    assert rig.failed() == {}


def test_a_waiting_worker_uses_no_core_and_starts_a_job_at_once(rig: Rig) -> None:
    worker = rig.worker("-q", "high,jobs,low")
    rig.ready(worker)
    rig.enqueue("stamp", -1)  # the connection is opened, and what is made once is there
    rig.await_lines(1, "stamps")
    rig.ready(worker)

    idle_share(worker.tree(), over=3.0)

    def waits() -> Iterator[float]:
        """Milliseconds from the call to the start of each job."""
        for number in range(5):
            called = time.clock_gettime_ns(time.CLOCK_MONOTONIC)
            rig.enqueue("stamp", number)
            yield (int(rig.await_lines(number + 2, "stamps")[-1].split()[1]) - called) / 1e6
            rig.ready(worker)

    # 5 on a machine of its own; a worker that looked once a second would take more.
    assert statistics.median(waits()) < 1_000


def test_a_hook_knows_the_size_of_the_queue_and_sets_the_pace(sqlite_rig: Rig) -> None:
    rig = sqlite_rig
    worker = rig.worker("-q", "jobs,bulk", modules=("shop", "paced"))
    rig.await_lines(2, "sizes")  # the worker keeps the pace of the first answer when it asks again

    rig.client.enqueue_many([("shop.note", (f"{number}",), {}) for number in range(4)])

    eventually(lambda: rig.lines("sizes")[-1] == "jobs 3")
    assert rig.await_lines(1) == ["0"]
    rig.open_gate("hurry")
    rig.await_lines(4)
    eventually(lambda: rig.lines("sizes")[-1] == "jobs 0")
    assert worker.alive


PUBLISHER = """
import os, shop
confirmed = os.open("confirmed", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
for number in range(1_000_000):
    os.write(confirmed, (shop.note.enqueue(f"{number}").id + "\\n").encode())
"""


def test_a_program_killed_while_it_enqueues_loses_no_confirmed_job(rig: Rig) -> None:
    for round in range(1, 3):
        publisher = rig.launch([sys.executable, "-c", PUBLISHER])
        rig.await_lines(150 * round, "confirmed")
        publisher.kill9()

    waiting = {row["id"]: row for row in rig.inspector.jobs.list("jobs", limit=1_000_000)}

    confirmed = rig.lines("confirmed")
    assert [id for id in waiting if id in set(confirmed)] == confirmed
    # Of each program the very last job may be stored and not yet confirmed.
    assert len(waiting) - len(confirmed) in (0, 1, 2)
    kinds = {(row["job"], row["content_type"], len(row["args"])) for row in waiting.values()}
    assert kinds == {("shop.note", "application/json", 1)}


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
