"""Pauses and cancelled jobs, and the restart of everything."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.acceptance.restarting import RestartingBroker
from tests.harness.rig import Rig
from tests.helpers import Stopwatch, eventually
from tests.rabbitmq_node import Node, url_of
from tests.scale import RESTARTS, scaled


@pytest.fixture
def rig(restarting: RestartingBroker, exchange: str, tmp_path: Path) -> Iterator[Rig]:
    """On a RabbitMQ or a Redis that only this module has."""
    with Rig(tmp_path, restarting.url, exchange, module="shop") as rig:
        yield rig


@pytest.fixture(autouse=True)
def obeyed(patient: None) -> None:
    """A pause is one for every worker when the call returns."""


@pytest.mark.parametrize("how", RESTARTS)
def test_a_pause_survives_the_restart_of_the_broker_under_a_worker(
    rig: Rig, restarting: RestartingBroker, how: str
) -> None:
    worker = rig.worker()
    rig.ready(worker)
    rig.inspector.pause("jobs")
    for number in range(3):
        rig.enqueue("note", f"{number}")

    restarting.restart(how)
    rig.ready(worker)
    rig.enqueue("note", "after")
    # A worker that took from the paused queue would have done so before a job of another queue has run.
    other = rig.worker("-q", "jobs,other")
    rig.enqueue("note", "other", queue="other")
    assert rig.await_lines(1) == ["other"]
    eventually(lambda: rig.pending() == 4)

    rig.palermo("resume", "jobs")
    assert sorted(rig.await_lines(5)) == ["0", "1", "2", "after", "other"]
    other.end()


@pytest.mark.parametrize("how", RESTARTS)
def test_pauses_and_marks_survive_the_restart_of_everything(rig: Rig, restarting: RestartingBroker, how: str) -> None:
    ids = [rig.enqueue("note", f"{number}") for number in range(6)]
    rig.palermo("pause", "jobs")
    rig.palermo("cancel", *ids[::2])
    worker = rig.worker()
    rig.ready(worker)

    worker.kill9()
    restarting.restart(how)

    eventually(lambda: rig.pending() == 6)
    assert [row["state"] for row in rig.rows("jobs", "jobs")] == ["cancelled", "pending"] * 3
    assert {row["name"]: row["paused"] for row in rig.rows("queues")}["jobs"]
    rig.burst()
    assert rig.lines() == []
    rig.palermo("resume", "jobs")
    rig.burst()
    assert rig.lines() == ["1", "3", "5"]


def test_thousands_of_waiting_jobs_are_cancelled(rig: Rig) -> None:
    calls = [("shop.note", (f"{number}",), {}) for number in range(scaled(2_100, 10_100))]
    ids = [job.id for job in rig.client.enqueue_many(calls)]
    watch = Stopwatch()

    rows = rig.inspector.cancel(ids[100:])

    assert {row["state"] for row in rows} == {"marked"}
    assert watch.seconds() < 30
    rig.burst()
    assert rig.lines() == [f"{number}" for number in range(100)]
    assert rig.pending() == 0


def test_a_worker_goes_on_without_the_marks_if_their_stream_is_gone(
    module_node: Node, exchange: str, tmp_path: Path
) -> None:
    with Rig(tmp_path, url_of(module_node), exchange, module="shop") as rig:
        worker = rig.worker()
        rig.ready(worker)
        rig.inspector.pause("jobs")
        rig.enqueue("note", "x")
        eventually(lambda: rig.pending() == 1)

        module_node.ctl("delete_queue", f"{rig.exchange}.~pauses")

        assert rig.await_lines(1) == ["x"]
        rig.inspector.pause("jobs")
        rig.enqueue("note", "y")
        eventually(lambda: rig.pending() == 1)
        assert worker.alive
