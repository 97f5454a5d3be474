"""Workers that are killed, told to end, kept busy and left waiting."""

import os
import signal
import statistics
import time
from collections.abc import Iterator

import pytest

from tests.harness.processes import WorkerProcess, exists
from tests.harness.rig import Rig
from tests.helpers import eventually, idle_share
from tests.scale import chosen

QUEUES = ("one", "two", "three")


def holding(rig: Rig, *arguments: str) -> WorkerProcess:
    """A worker that runs a job until the gate opens; another one waits."""
    rig.enqueue("hold", "held")
    rig.enqueue("note", "next")
    worker = rig.worker(*arguments)
    rig.await_lines(1)
    return worker


# -- killed


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
    eventually(lambda: list(rig.inspector.tenants("jobs")) == [])
    assert rig.failed() == {}


def test_workers_killed_while_they_take_jobs_lose_none(rig: Rig) -> None:
    numbers = {f"{number}" for number in range(1_000)}
    calls = [("shop.note", (number,), {}) for number in sorted(numbers)]
    for behind in (800, 300):
        # Jobs for both slots that end after the kill: no worker may have done all before it is killed.
        calls[behind:behind] = [("shop.hold", (f"wall {behind}", f"gate {behind}"), {})] * 2
    rig.client.enqueue_many(calls)

    def ran() -> set[str]:
        return {line for line in rig.lines() if line.isdigit()}

    def left() -> set[str]:
        """The jobs that wait once those of the dead worker are back; empty until then."""
        waiting = {row["args"][0] for row in rig.inspector.jobs("jobs", limit=1_010) if row["job"] == "shop.note"}
        return waiting if waiting | ran() >= numbers else set()

    for goal, wall in ((100, 300), (400, 800)):
        worker = rig.worker("-c", "2")
        rig.await_lines(goal)
        for pid in worker.tree():
            os.kill(pid, signal.SIGSTOP)  # nothing of it runs while it is looked at and killed
        worker.kill9()

        assert len(eventually(left) & ran()) <= 2, "at most the jobs of the two slots are run again"
        rig.open_gate(f"gate {wall}")

    rig.burst("-c", "2")
    assert ran() == numbers
    assert rig.failed() == {}


# -- told to end


def test_a_worker_told_to_end_finishes_its_job_and_takes_no_other(rig: Rig) -> None:
    worker = holding(rig, "--pidfile", "worker.pid")

    os.kill(int((rig.path / "worker.pid").read_text()), signal.SIGTERM)
    eventually(lambda: rig.only_worker()["state"] == "stopping")
    rig.open_gate()

    assert worker.wait() == 0
    assert rig.lines() == ["held begins", "held ends"]
    # A job that comes as the worker stops is given back.
    eventually(lambda: rig.pending() == 1)
    assert rig.failed() == {}
    assert not (rig.path / "worker.pid").exists()


def test_a_job_that_outlasts_the_shutdown_runs_again_in_its_place(rig: Rig) -> None:
    worker = holding(rig, "--shutdown-timeout", "0.3")
    worker.send(signal.SIGTERM)
    assert worker.wait() == 1
    eventually(lambda: rig.pending() == 2)
    assert rig.failed() == {}

    rig.open_gate()
    rig.burst()

    assert rig.lines() == ["held begins", "held begins", "held ends", "next"]


def test_commands_name_a_worker_that_does_not_answer(sqlite_rig: Rig) -> None:
    rig = sqlite_rig
    worker = rig.worker()
    rig.ready(worker)
    rig.freeze(worker)
    # A worker that stopped while it was asked has not answered yet.
    eventually(lambda: [row["answers"] for row in rig.rows("workers")] == [False])

    said = {command: rig.run(command) for command in ("check", "doctor", "workers")}

    worker.send(signal.SIGCONT)
    assert all("1 worker does not answer" in done.stdout + done.stderr for done in said.values())
    assert " 1 0 0 " in " ".join(said["workers"].stdout.split())


# -- busy and idle


def test_a_slow_job_keeps_only_its_own_slot_from_other_jobs(rig: Rig) -> None:
    workers = [rig.worker("-q", ",".join(QUEUES)) for _ in range(2)]
    rig.ready(*workers)
    slow = rig.enqueue("hold", "slow", queue="two")
    rig.await_lines(1)

    for number in range(30):
        rig.enqueue("note", f"{number}", queue=QUEUES[number % 3])

    assert sorted(rig.await_lines(31)[1:], key=int) == [f"{number}" for number in range(30)]

    def counts() -> tuple[int, int]:
        """How many jobs wait, and how many run."""
        rows = [row for row in rig.inspector.queues() if row["name"] in QUEUES]
        return sum(row["pending"] for row in rows), sum(row["in_progress"] for row in rows)

    eventually(lambda: counts() == (0, 1))
    eventually(lambda: [[job["id"] for job in row["jobs"]] for row in rig.rows("workers") if row["jobs"]] == [[slow]])
    rig.open_gate()
    assert rig.await_lines(32)[-1] == "slow ends"
    eventually(lambda: counts() == (0, 0))


def test_queues_are_chosen_by_pattern_and_new_ones_are_found(rabbitmq_rig: Rig) -> None:
    rig = rabbitmq_rig
    for queue in ("file_in", "file_out", "low", "mail"):
        rig.enqueue("note", queue, queue=queue)
    rig.enqueue("fail", "x", queue="file_in")

    rig.burst("-q", "file_*")
    assert rig.lines() == ["file_in", "file_out"]
    rig.burst("-q", "mail,*,!low")
    assert rig.lines()[2:] == ["mail"]
    rig.ready(rig.worker("-q", "*,!low"))
    rig.enqueue("note", "new", queue="only-just-made")

    assert rig.await_lines(4)[3:] == ["new"]
    assert (rig.pending("low"), rig.pending("failed")) == (1, 1)


@pytest.mark.parametrize("queues", chosen(["high,jobs,low"], "jobs"))
def test_a_waiting_worker_uses_no_core_and_starts_a_job_at_once(
    rig: Rig, queues: str, capsys: pytest.CaptureFixture[str]
) -> None:
    worker = rig.worker("-q", queues)
    rig.ready(worker)
    rig.enqueue("stamp", -1)  # the connection is opened, and what is made once is there
    rig.await_lines(1, "stamps")
    rig.ready(worker)

    share = idle_share(worker.tree())

    def waits() -> Iterator[float]:
        """Milliseconds from the call to the start of each job."""
        for number in range(10):
            called = time.clock_gettime_ns(time.CLOCK_MONOTONIC)
            rig.enqueue("stamp", number)
            yield (int(rig.await_lines(number + 2, "stamps")[-1].split()[1]) - called) / 1e6
            rig.ready(worker)

    waited = statistics.median(waits())
    with capsys.disabled():
        print(f"\nidle on {queues}: {share:.2%} of a core; a job starts after {waited:.1f} ms")
    assert waited < 1_000  # 5 on a machine of its own; a worker that looked once a second would take more
