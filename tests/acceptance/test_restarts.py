"""RabbitMQ and Redis killed, stopped or late under their users."""

import re
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from palermo.errors import BrokerUnavailable
from tests.acceptance.conftest import RestartingBroker
from tests.harness.rig import COMMAND, Rig
from tests.helpers import eventually, has_traceback
from tests.inspector.jobs import publish_many_failed
from tests.scale import RESTARTS, scaled

#: Failed jobs, and how many of them a requeue stores and takes out together at most.
MANY, BATCH = scaled(2_000, 5_000), 200

HOUR = 3_600.0


@pytest.fixture
def rig(restarting: RestartingBroker, exchange: str, tmp_path: Path) -> Iterator[Rig]:
    """On a broker that only this module has."""
    with Rig(tmp_path, restarting.url, exchange, module="shop") as rig:
        yield rig


def restart(restarting: RestartingBroker, how: str, *, after: float = 0.0) -> None:
    if how == "by kill -9":
        restarting.node.kill9()
    else:
        restarting.node.stop()
    eventually(lambda: time.time() > after)
    restarting.node.start()


@pytest.mark.usefixtures("patient")
@pytest.mark.parametrize("how", RESTARTS)
def test_jobs_pauses_and_cancels_survive_a_restart(rig: Rig, restarting: RestartingBroker, how: str) -> None:
    failed = [rig.enqueue("fail", f"{number}") for number in range(5)]
    rig.burst()
    worker = rig.worker()
    rig.ready(worker)
    rig.palermo("pause", "jobs")
    ids = [rig.enqueue("note", f"{number}") for number in range(6)]
    rig.palermo("cancel", *ids[::2])
    rig.client.enqueue_many([("shop.note", (f"{number}",), {}) for number in range(6, 1_000)])

    restart(restarting, how)
    with suppress(BrokerUnavailable):  # it says that it cannot know: also an answer
        assert {row["name"] for row in rig.inspector.queues.list()} >= {"jobs"}

    # Under the worker that lived through it: had it taken a job, this one would come behind.
    rig.ready(worker)
    rig.enqueue("note", "other", queue="mail")
    assert rig.await_lines(1) == ["other"]
    eventually(lambda: rig.pending() == 1_000)
    worker.kill9()
    assert list(rig.failed()) == failed
    assert [row["state"] for row in rig.rows("jobs", "jobs", "--limit", "6")] == ["cancelled", "pending"] * 3
    assert {row["name"]: row["paused"] for row in rig.rows("queues")}["jobs"]
    rig.burst()
    assert rig.lines() == ["other"]
    rig.palermo("resume", "jobs")
    rig.burst()
    assert rig.lines() == ["other", "1", "3", "5", *(f"{number}" for number in range(6, 1_000))]


@pytest.mark.parametrize("how", RESTARTS)
def test_a_requeue_of_many_that_a_restart_ends_loses_none(rig: Rig, restarting: RestartingBroker, how: str) -> None:
    publish_many_failed(rig.client, MANY)
    requeue = rig.launch([COMMAND, "failed", "requeue", "--all", "--yes"])
    eventually(lambda: rig.pending("mail") > MANY // 10, every=0.005)
    restart(restarting, how)
    requeue.wait()

    eventually(lambda: rig.pending("mail") + rig.pending("failed") >= MANY)
    moved = [row["id"] for row in rig.inspector.jobs.list("mail", limit=2 * MANY)]
    stayed = [row["id"] for row in rig.inspector.failed.list(limit=2 * MANY)]
    said = re.search(r"requeued ([0-9,]+) jobs", requeue.log)
    assert said is not None, requeue.log
    assert {*moved, *stayed} == {str(number) for number in range(MANY)}
    assert 0 <= len(moved) - int(said[1].replace(",", "")) <= BATCH
    # A RabbitMQ that is killed hands acknowledged messages out again.
    assert how == "by kill -9" or len({*moved} & {*stayed}) <= BATCH
    rig.palermo("failed", "requeue", "--all", "--yes")
    assert rig.pending("failed") == 0
    assert {row["id"] for row in rig.inspector.jobs.list("mail", limit=3 * MANY)} == {str(n) for n in range(MANY)}


@pytest.mark.parametrize("how", RESTARTS)
def test_jobs_due_while_the_broker_is_away_run_afterwards(rig: Rig, restarting: RestartingBroker, how: str) -> None:
    worker = rig.worker()
    rig.ready(worker)
    rig.enqueue("note", "in an hour", delay=HOUR)
    for number in range(50):
        rig.enqueue("note", f"{number}", delay=1 + number / 50)

    restart(restarting, how, after=time.time() + 2)

    eventually(lambda: set(rig.lines()) == {f"{number}" for number in range(50)})
    assert worker.alive
    # The job may be there twice: the leader had just moved it, and a RabbitMQ that is killed forgets the last
    # acknowledgements.
    eventually(lambda: {row["args"][0] for row in rig.inspector.scheduled.list()} == {"in an hour"})


def test_workers_started_before_their_broker_say_so_and_then_work(rig: Rig, restarting: RestartingBroker) -> None:
    rig.enqueue("note", "before", queue="mail")
    rig.client.close()
    restarting.node.kill9()
    # Their attempts fall all over the second in which the broker answers and has not started its streams.
    workers = [rig.worker("-q", "*") for _ in range(4)]

    def complaints(log: str) -> list[str]:
        return [line for line in log.splitlines() if "broker unavailable" in line]

    eventually(lambda: all(len(complaints(worker.log)) >= 2 for worker in workers))
    enqueued = rig.run("enqueue", "shop.note", "-q", "jobs", PALERMO_PUBLISH_TIMEOUT="2")
    restarting.node.start()

    assert rig.await_lines(1) == ["before"]
    assert [worker.log for worker in workers if not worker.alive] == []
    assert enqueued.returncode == 3
    (line,) = enqueued.stderr.splitlines()
    assert "BrokerUnavailable" in line
    assert restarting.listens_at in line
    for worker in workers:
        for number, line in enumerate(complaints(worker.log), 1):
            assert restarting.listens_at in line
            assert f"attempt={number}" in line
            assert "retry_in=" in line
        assert not has_traceback(worker.log)
