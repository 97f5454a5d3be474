"""Promises of the original Palermo on a broker that restarts, a RabbitMQ or a Redis: P3."""

import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from palermo.errors import BrokerUnavailable
from tests.acceptance.restarting import RestartingBroker
from tests.harness.rig import COMMAND, Rig
from tests.helpers import Stopwatch, eventually, has_traceback
from tests.inspector.jobs import publish_many_failed
from tests.scale import RESTARTS

#: Failed jobs, and how many of them a requeue stores and takes out together at most.
MANY, BATCH = 5_000, 200


@pytest.fixture
def rig(restarting: RestartingBroker, exchange: str, tmp_path: Path) -> Iterator[Rig]:
    """On a broker that only this module has."""
    with Rig(tmp_path, restarting.url, exchange, module="shop") as rig:
        yield rig


@pytest.mark.parametrize("how", RESTARTS)
def test_P3_jobs_that_wait_and_jobs_that_failed_survive_a_restart_of_the_broker(
    rig: Rig, restarting: RestartingBroker, how: str
) -> None:
    failed = [rig.enqueue("fail", f"{number}") for number in range(5)]
    rig.burst()
    rig.client.enqueue_many([("shop.note", (f"{number}",), {}) for number in range(1_000)])

    restarting.restart(how)

    eventually(lambda: rig.pending() == 1_000)
    assert list(rig.failed()) == failed
    rig.burst()
    assert rig.lines() == [f"{number}" for number in range(1_000)]


@pytest.mark.parametrize("how", RESTARTS)
def test_a_requeue_of_many_that_a_restart_of_the_broker_ends_loses_none_and_says_how_many_it_moved(
    rig: Rig, restarting: RestartingBroker, how: str
) -> None:
    publish_many_failed(rig.client, MANY)
    command = [COMMAND, "failed", "requeue", "--all", "--yes"]

    with subprocess.Popen(
        command, env=rig.environment, cwd=rig.path, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as requeue:
        eventually(lambda: rig.pending("mail") > MANY // 10, every=0.005)
        restarting.restart(how)
        printed, told = requeue.communicate()

    eventually(lambda: rig.pending("mail") + rig.pending("failed") >= MANY)
    moved = [row["id"] for row in rig.inspector.jobs("mail", limit=2 * MANY)]
    stayed = [row["id"] for row in rig.inspector.failed(limit=2 * MANY)]
    said = re.search(r"requeued ([0-9,]+) jobs", printed + told)
    assert said is not None, (printed, told)
    assert {*moved, *stayed} == {str(number) for number in range(MANY)}
    assert 0 <= len(moved) - int(said[1].replace(",", "")) <= BATCH
    # A RabbitMQ that is killed hands acknowledged messages out again.
    assert how == "by kill -9" or len({*moved} & {*stayed}) <= BATCH
    assert rig.palermo("failed", "requeue", "--all", "--yes").startswith("requeued ")
    assert rig.pending("failed") == 0
    assert {row["id"] for row in rig.inspector.jobs("mail", limit=3 * MANY)} == {str(n) for n in range(MANY)}


def test_P3_right_after_a_restart_no_queue_is_missing_from_the_listing(rig: Rig, restarting: RestartingBroker) -> None:
    queues = {"mail", "images"}
    for queue in queues:
        rig.enqueue("note", "x", queue=queue)

    restarting.restart("in good order")
    try:
        seen = {row["name"] for row in rig.inspector.queues()}
    except BrokerUnavailable:
        return  # it said that it cannot know: also an answer

    assert seen >= queues


def test_P3_workers_on_all_queues_live_through_a_restart_whenever_in_it_they_connect(
    rig: Rig, restarting: RestartingBroker
) -> None:
    rig.enqueue("note", "before", queue="mail")
    rig.client.close()
    restarting.node.kill9()
    # Their attempts fall all over the second in which the broker answers and has not started its streams.
    workers = [rig.worker("-q", "*") for _ in range(4)]
    eventually(lambda: all("broker unavailable" in worker.log for worker in workers))

    restarting.node.start()

    lines = eventually(lambda: rig.lines() or not all(worker.alive for worker in workers))
    assert [worker.log for worker in workers if not worker.alive] == []
    assert lines == ["before"]


def test_P3_a_worker_comes_back_by_itself_when_the_broker_does(rig: Rig, restarting: RestartingBroker) -> None:
    workers = (rig.worker("-q", "jobs"), rig.worker("-q", "mail,jobs", "-c", "2"))
    rig.ready(*workers)
    rig.enqueue("hold", "through the restart")
    rig.await_lines(1)

    restarting.restart("in good order")
    rig.open_gate()
    rig.enqueue("note", "after", queue="mail")

    def has_run() -> bool:
        # What it says when it fails tells a job that is lost from a worker that is deaf.
        assert "after" in rig.lines(), (rig.inspector.queues(), rig.workers())
        return True

    eventually(has_run, every=0.2)
    eventually(lambda: rig.pending() == 0 and not any(row["jobs"] for row in rig.workers()))
    assert all(worker.alive for worker in workers)
    assert any("connection lost" in worker.log for worker in workers)
    assert not any(has_traceback(worker.log) for worker in workers)
    # What ran when the broker went away was given back by it: it runs again, unless it has ended before another worker
    # looks into it, and who ran it says so.
    assert rig.lines().count("through the restart begins") in (1, 2)
    assert rig.failed() == {}
    rig.ready(*workers)


def test_a_worker_started_before_its_broker_says_so_each_time_and_works_once_it_is_there(
    rig: Rig, restarting: RestartingBroker
) -> None:
    rig.client.close()
    restarting.node.stop()
    where = restarting.listens_at

    worker = rig.worker()
    eventually(lambda: len(complaints(worker.log)) >= 2)
    watch = Stopwatch()
    enqueued = rig.run("enqueue", "shop.note", "-q", "jobs", PALERMO_PUBLISH_TIMEOUT="5")
    took = watch.seconds()
    restarting.node.start()
    rig.enqueue("note", "at last")

    assert rig.await_lines(1) == ["at last"]
    assert enqueued.returncode == 3
    assert "BrokerUnavailable" in enqueued.stderr
    assert where in enqueued.stderr
    assert took < 5 + 15  # and the interpreter's own start
    for number, line in enumerate(complaints(worker.log), 1):
        assert where in line
        assert f"attempt={number}" in line
        assert "retry_in=" in line
    assert not has_traceback(worker.log)


def complaints(log: str) -> list[str]:
    return [line for line in log.splitlines() if "broker unavailable" in line]
