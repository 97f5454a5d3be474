"""Workers that are killed, frozen, left waiting and slowed down."""

import os
import signal
import statistics
import time
from collections.abc import Iterator

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
