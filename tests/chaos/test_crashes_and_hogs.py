"""Jobs that are as bad as jobs can be, many of them, and a worker that minds none."""

from pathlib import Path

import pytest

from tests.harness.rig import Rig
from tests.helpers import eventually
from tests.scale import scaled

SEGFAULT = "palermo.errors.JobCrashed: the job's process was killed by SIGSEGV (segmentation fault)"

#: So many jobs that crash, and as many that do not.
JOBS = scaled(400, 1_000)

#: What both ends of the connection are told to do without for, in seconds.
HEARTBEAT = 4


def test_hundreds_of_segfaults_leave_the_worker_as_it_was(rabbitmq_url: str, exchange: str, tmp_path: Path) -> None:
    with Rig(tmp_path, rabbitmq_url, exchange, module="shop") as rig:
        jobs = [
            call for number in range(JOBS) for call in (("shop.note", (f"{number}",), {}), ("shop.segfault", (), {}))
        ]
        rig.client.enqueue_many(jobs)
        worker = rig.worker("-c", "4", "--log-level", "error")

        good = rig.await_lines(JOBS)
        eventually(lambda: len(rig.failed()) == JOBS)

        assert sorted(good, key=int) == [f"{number}" for number in range(JOBS)]
        assert set(map(str, rig.errors().values())) == {SEGFAULT}
        assert rig.pending() == 0
        counts = [(worker.pid, 2 * JOBS, JOBS)]
        eventually(lambda: [(row["pid"], row["processed"], row["failed"]) for row in rig.workers()] == counts)


@pytest.mark.parametrize("queues", ["jobs", "jobs,mail"], ids=["push", "poll"])
def test_a_job_holding_the_gil_beyond_three_heartbeats_runs_once(
    rabbitmq_url: str, exchange: str, tmp_path: Path, queues: str
) -> None:
    with Rig(tmp_path, f"{rabbitmq_url}?heartbeat={HEARTBEAT}", exchange, module="shop") as rig:
        worker = rig.worker("-q", queues)
        rig.enqueue("hold_the_gil", "long", 3 * HEARTBEAT + 0.5)

        rig.await_lines(2)
        rig.enqueue("note", "next")
        rig.await_lines(3)

        assert rig.lines() == ["long begins", "long ends", "next"]
        assert worker.log.count("connected") == 1
        assert (rig.errors(), rig.pending()) == ({}, 0)
