"""One story of an operator on each broker; the contract holds the brokers to the same answers in detail."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from palermo.client.client import Client
from palermo.inspector.failed import ALL
from palermo.inspector.failed_filter import FailedFilter
from palermo.inspector.inspector import Inspector
from palermo.inspector.waiting import WaitingFilter
from palermo.settings.settings import Settings
from tests.brokers import BROKERS, url_of_broker
from tests.helpers import eventually
from tests.inspector.jobs import failure, message, publish, publish_failed


@pytest.fixture(params=BROKERS)
def client(request: pytest.FixtureRequest, tmp_path: Path, exchange: str) -> Iterator[Client]:
    with Client(Settings(url=url_of_broker(request, tmp_path), exchange=exchange, publish_timeout=30)) as client:
        yield client


def ids(inspector: Inspector, queue: str) -> list[str]:
    return [row["id"] for row in inspector.jobs.list(queue)]


def test_an_operator_sees_requeues_moves_and_removes_jobs(client: Client) -> None:
    inspector = Inspector(client)
    kinds = ("KeyError", "ValueError", "KeyError", "OSError")
    publish_failed(client, *((message(f"f{nth}", nth), failure(kind)) for nth, kind in enumerate(kinds)))
    publish(client, message("w1", "ann"), message("w2", "bob"), message("w3", "ann"))
    eventually(lambda: inspector.queues.size("mail") == 3)

    assert next((row["count"], row["error"]) for row in inspector.failed.groups()) == (2, "KeyError")
    assert inspector.failed.show("f1")["args"] == [1]
    assert [job.id for job in inspector.failed.requeue(FailedFilter(error="KeyError"), queue="slow")] == ["f0", "f2"]
    eventually(lambda: ids(inspector, "slow") == ["f0", "f2"])
    inspector.failed.requeue("f1", args=["new"])
    eventually(lambda: inspector.jobs.list("mail")[-1]["args"] == ["new"])
    assert [job.id for job in inspector.failed.discard(ALL)] == ["f3"]

    assert inspector.jobs.dequeue("shop.send", ["bob"], queue="mail") == 1
    assert [job.id for job in inspector.jobs.move("mail", WaitingFilter(text="ann"), "aside")] == ["w1", "w3"]
    eventually(lambda: (ids(inspector, "mail"), ids(inspector, "aside")) == (["f1"], ["w1", "w3"]))
    assert inspector.queues.purge("slow") == 2
    assert inspector.queues.delete("aside") == 2
    eventually(
        lambda: {row["name"]: row["pending"] for row in inspector.queues.list()} == {"failed": 0, "mail": 1, "slow": 0}
    )


@pytest.mark.slow
def test_a_worker_is_started_seen_paused_and_stopped(client: Client) -> None:
    inspector = Inspector(client)
    worker = inspector.workers.start(["palermo.demo.jobs"], queues="mail")
    try:
        row = eventually(lambda: next((row for row in inspector.workers.list() if row["answers"]), None))
        assert (row["pid"], row["queues"]) == (worker.pid, ["mail"])
        inspector.queues.pause("mail")
        eventually(lambda: {row["name"]: row["paused"] for row in inspector.queues.list()}["mail"])
        assert inspector.workers.stop(worker) == 0
        eventually(lambda: inspector.workers.list() == [])
    finally:
        worker.stop()
