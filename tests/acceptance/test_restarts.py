"""RabbitMQ and Redis killed, stopped, late or cut off under their users."""

import re
import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from palermo.core.address import parse_url
from palermo.errors import BrokerUnavailable
from tests.acceptance.conftest import RestartingBroker
from tests.harness.rig import COMMAND, Rig
from tests.helpers import eventually, has_traceback
from tests.inspector.jobs import publish_many_failed
from tests.scale import RESTARTS
from tests.tcp_proxy import TcpProxy

#: Failed jobs, and how many of them a requeue stores and takes out together at most.
MANY, BATCH = 5_000, 200

HOUR = 3_600.0


@pytest.fixture
def rig(restarting: RestartingBroker, exchange: str, tmp_path: Path) -> Iterator[Rig]:
    """On a broker that only this module has."""
    with Rig(tmp_path, restarting.url, exchange, module="shop") as rig:
        yield rig


def end(restarting: RestartingBroker, how: str) -> None:
    if how == "by kill -9":
        restarting.node.kill9()
    else:
        restarting.node.stop()


def restart(restarting: RestartingBroker, how: str) -> None:
    end(restarting, how)
    restarting.node.start()


@pytest.mark.parametrize("how", RESTARTS)
def test_waiting_and_failed_jobs_survive_a_restart(rig: Rig, restarting: RestartingBroker, how: str) -> None:
    failed = [rig.enqueue("fail", f"{number}") for number in range(5)]
    rig.burst()
    rig.client.enqueue_many([("shop.note", (f"{number}",), {}) for number in range(1_000)])
    rig.enqueue("note", "x", queue="mail")

    restart(restarting, how)
    with suppress(BrokerUnavailable):  # it says that it cannot know: also an answer
        assert {row["name"] for row in rig.inspector.queues()} >= {"jobs", "mail"}

    eventually(lambda: rig.pending() == 1_000)
    assert list(rig.failed()) == failed
    rig.burst("-q", "jobs,mail")
    assert rig.lines() == [*(f"{number}" for number in range(1_000)), "x"]


@pytest.mark.parametrize("how", RESTARTS)
def test_a_requeue_of_many_that_a_restart_ends_loses_none(rig: Rig, restarting: RestartingBroker, how: str) -> None:
    publish_many_failed(rig.client, MANY)
    command = [COMMAND, "failed", "requeue", "--all", "--yes"]

    with subprocess.Popen(
        command, env=rig.environment, cwd=rig.path, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    ) as requeue:
        eventually(lambda: rig.pending("mail") > MANY // 10, every=0.005)
        restart(restarting, how)
        printed, _ = requeue.communicate()

    eventually(lambda: rig.pending("mail") + rig.pending("failed") >= MANY)
    moved = [row["id"] for row in rig.inspector.jobs("mail", limit=2 * MANY)]
    stayed = [row["id"] for row in rig.inspector.failed(limit=2 * MANY)]
    said = re.search(r"requeued ([0-9,]+) jobs", printed)
    assert said is not None, printed
    assert {*moved, *stayed} == {str(number) for number in range(MANY)}
    assert 0 <= len(moved) - int(said[1].replace(",", "")) <= BATCH
    # A RabbitMQ that is killed hands acknowledged messages out again.
    assert how == "by kill -9" or len({*moved} & {*stayed}) <= BATCH
    rig.palermo("failed", "requeue", "--all", "--yes")
    assert rig.pending("failed") == 0
    assert {row["id"] for row in rig.inspector.jobs("mail", limit=3 * MANY)} == {str(n) for n in range(MANY)}


@pytest.mark.parametrize("how", RESTARTS)
def test_jobs_that_come_due_while_the_broker_is_away_run_afterwards(
    rig: Rig, restarting: RestartingBroker, how: str
) -> None:
    worker = rig.worker()
    rig.ready(worker)
    rig.enqueue("note", "in an hour", delay=HOUR)
    for number in range(50):
        rig.enqueue("note", f"{number}", delay=1 + number / 50)
    due = time.time() + 2

    end(restarting, how)
    eventually(lambda: time.time() > due)
    restarting.node.start()

    eventually(lambda: set(rig.lines()) == {f"{number}" for number in range(50)})
    assert worker.alive
    # The job may be there twice: the leader had just moved it, and a RabbitMQ that is killed forgets the last
    # acknowledgements.
    eventually(lambda: {row["args"][0] for row in rig.inspector.scheduled()} == {"in an hour"})


def test_a_worker_comes_back_by_itself_when_the_broker_does(rig: Rig, restarting: RestartingBroker) -> None:
    workers = (rig.worker("-q", "jobs"), rig.worker("-q", "mail,jobs", "-c", "2"))
    rig.ready(*workers)
    rig.enqueue("hold", "through the restart")
    rig.await_lines(1)

    restart(restarting, "in good order")
    rig.open_gate()
    rig.enqueue("note", "after", queue="mail")

    def has_run() -> bool:
        # The message of a failure shows whether the job was lost or the worker takes none.
        assert "after" in rig.lines(), (rig.inspector.queues(), rig.workers())
        return True

    eventually(has_run, every=0.2)
    eventually(lambda: rig.pending() == 0 and not any(row["jobs"] for row in rig.workers()))
    assert all(worker.alive for worker in workers)
    assert any("connection lost" in worker.log for worker in workers)
    assert not any(has_traceback(worker.log) for worker in workers)
    # The broker requeued what ran when it stopped. It runs again, unless it has ended and its worker says so before
    # another worker starts it.
    assert rig.lines().count("through the restart begins") in (1, 2)
    assert rig.failed() == {}
    rig.ready(*workers)


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


@pytest.mark.usefixtures("patient")
@pytest.mark.parametrize("how", RESTARTS)
def test_pauses_and_cancelled_jobs_survive_a_restart(rig: Rig, restarting: RestartingBroker, how: str) -> None:
    worker = rig.worker()
    rig.ready(worker)
    rig.palermo("pause", "jobs")
    ids = [rig.enqueue("note", f"{number}") for number in range(6)]
    rig.palermo("cancel", *ids[::2])

    restart(restarting, how)

    # Under the worker that lived through it: had it taken a job, this one would come behind.
    rig.ready(worker)
    rig.enqueue("note", "other", queue="mail")
    assert rig.await_lines(1) == ["other"]
    eventually(lambda: rig.pending() == 6)
    worker.kill9()
    assert [row["state"] for row in rig.rows("jobs", "jobs")] == ["cancelled", "pending"] * 3
    assert {row["name"]: row["paused"] for row in rig.rows("queues")}["jobs"]
    rig.burst()
    assert rig.lines() == ["other"]
    rig.palermo("resume", "jobs")
    rig.burst()
    assert rig.lines() == ["other", "1", "3", "5"]


def test_workers_listen_again_each_time_their_line_was_cut(rig: Rig, restarting: RestartingBroker) -> None:
    ((host, port),) = parse_url(restarting.url_by_tcp).hosts
    with TcpProxy(host, port) as proxy:
        through = restarting.url_by_tcp.replace(f"{host}:{port}", f"127.0.0.1:{proxy.port}")
        # One is handed its jobs and the other asks for them.
        workers = {"jobs": rig.worker("-q", "jobs", PALERMO_URL=through)}
        workers["mail"] = rig.worker("-q", "mail,other", PALERMO_URL=through)
        rig.ready(*workers.values())

        for number in range(3):
            connected = {worker: worker.log.count("connected broker=") for worker in workers.values()}
            proxy.hang_up(reset=number % 2 == 0)
            eventually(lambda: all(worker.log.count("connected broker=") > was for worker, was in connected.items()))  # noqa: B023
            for queue in workers:
                rig.enqueue("note", f"{queue} {number}", queue=queue)
            eventually(lambda: set(rig.lines()) >= {f"{queue} {number}" for queue in workers})  # noqa: B023
            # Until they are acknowledged: cut before that they would run again.
            rig.ready(*workers.values())

        for worker in workers.values():
            worker.send(signal.SIGTERM)
            assert worker.wait() == 0
            assert "ERROR" not in worker.log
            assert not has_traceback(worker.log)
    # An acknowledgement that is still on its way through the proxy is lost with the line: then a job runs again.
    assert set(rig.lines()) == {f"{queue} {number}" for queue in workers for number in range(3)}
