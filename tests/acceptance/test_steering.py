"""Pauses and cancelled jobs, and the restart of everything."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.acceptance.place import Place
from tests.acceptance.restarting import RestartingBroker
from tests.helpers import Stopwatch, eventually
from tests.rabbitmq_node import Node, url_of
from tests.scale import RESTARTS, scaled


@pytest.fixture
def place(restarting: RestartingBroker, exchange: str, tmp_path: Path) -> Iterator[Place]:
    """On a RabbitMQ or a Redis that only this module has."""
    with Place(tmp_path, restarting.url, exchange) as place:
        yield place


@pytest.fixture(autouse=True)
def obeyed(patient: None) -> None:
    """A pause is one for every worker when the call returns."""


@pytest.mark.parametrize("how", RESTARTS)
def test_a_pause_survives_the_restart_of_the_broker_under_a_worker(
    place: Place, restarting: RestartingBroker, how: str
) -> None:
    worker = place.worker()
    place.ready(worker)
    place.inspector.pause("jobs")
    for number in range(3):
        place.enqueue("note", f"{number}")

    restarting.restart(how)
    place.ready(worker)
    place.enqueue("note", "after")
    # A worker that took from the paused queue would have done so before a job of another queue has run.
    other = place.worker("-q", "jobs,other")
    place.enqueue("note", "other", queue="other")
    assert place.await_lines(1) == ["other"]
    eventually(lambda: place.pending() == 4)

    place.palermo("resume", "jobs")
    assert sorted(place.await_lines(5)) == ["0", "1", "2", "after", "other"]
    other.end()


@pytest.mark.parametrize("how", RESTARTS)
def test_pauses_and_marks_survive_the_restart_of_everything(
    place: Place, restarting: RestartingBroker, how: str
) -> None:
    ids = [place.enqueue("note", f"{number}") for number in range(6)]
    place.palermo("pause", "jobs")
    place.palermo("cancel", *ids[::2])
    worker = place.worker()
    place.ready(worker)

    worker.kill9()
    restarting.restart(how)

    eventually(lambda: place.pending() == 6)
    assert [row["state"] for row in place.rows("jobs", "jobs")] == ["cancelled", "pending"] * 3
    assert {row["name"]: row["paused"] for row in place.rows("queues")}["jobs"]
    place.burst()
    assert place.lines() == []
    place.palermo("resume", "jobs")
    place.burst()
    assert place.lines() == ["1", "3", "5"]


def test_thousands_of_waiting_jobs_are_cancelled(place: Place) -> None:
    calls = [("shop.note", (f"{number}",), {}) for number in range(scaled(2_100, 10_100))]
    ids = [job.id for job in place.client.enqueue_many(calls)]
    watch = Stopwatch()

    rows = place.inspector.cancel(ids[100:])

    assert {row["state"] for row in rows} == {"marked"}
    assert watch.seconds() < 30
    place.burst()
    assert place.lines() == [f"{number}" for number in range(100)]
    assert place.pending() == 0


def test_a_worker_goes_on_without_the_marks_if_their_stream_is_gone(
    module_node: Node, exchange: str, tmp_path: Path
) -> None:
    with Place(tmp_path, url_of(module_node), exchange) as place:
        worker = place.worker()
        place.ready(worker)
        place.inspector.pause("jobs")
        place.enqueue("note", "x")
        eventually(lambda: place.pending() == 1)

        module_node.ctl("delete_queue", f"{place.exchange}.~pauses")

        assert place.await_lines(1) == ["x"]
        place.inspector.pause("jobs")
        place.enqueue("note", "y")
        eventually(lambda: place.pending() == 1)
        assert worker.alive
