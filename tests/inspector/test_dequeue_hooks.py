from collections.abc import Iterator, Sequence

import pytest

import palermo
from palermo.client.client import Client
from palermo.errors import ArgumentsInvalid, NotFound
from palermo.inspector.inspector import Inspector
from palermo.jobs import registry
from palermo.worker.handle import WorkerHandle
from tests.helpers import eventually
from tests.inspector.jobs import failure, message, publish, publish_failed


@pytest.fixture
def told() -> Iterator[list[tuple[str, object]]]:
    """What the hooks of the job `shop.send`, declared here for the queue `mail`, were called with."""
    calls: list[tuple[str, object]] = []

    @palermo.job(name="shop.send", queue="mail")
    def send(to: str) -> None: ...

    @send.hook
    def before_dequeue(to: str) -> bool:
        calls.append(("before", to))
        return to != "kept"

    @send.hook
    def after_dequeue(to: str) -> None:
        calls.append(("after", to))

    yield calls
    registry.unregister("shop.send")


def test_dequeue_runs_the_hooks_of_the_job_here_and_one_may_veto(
    client: Client, inspector: Inspector, told: list[tuple[str, object]]
) -> None:
    publish(client, message("1", "ann"), message("2", "kept"))

    assert inspector.jobs.dequeue("shop.send", ["ann"]) == 1
    assert inspector.jobs.dequeue("shop.send", ["kept"]) == 0

    assert told == [("before", "ann"), ("after", "ann"), ("before", "kept")]
    assert inspector.queues.size("mail") == 1


def test_a_job_may_be_named_by_itself(client: Client, inspector: Inspector, told: list[tuple[str, object]]) -> None:
    publish(client, message("1", "ann"), message("2", "bob"))

    assert inspector.jobs.dequeue(registry.get("shop.send"), ["ann"]) == 1

    @palermo.job(name="shop.take")
    def take(to: str) -> None: ...

    assert inspector.jobs.dequeue(take, ["ann"], queue="mail") == 0
    registry.unregister("shop.take")


def test_new_arguments_must_fit_a_job_whose_code_is_here(
    client: Client, inspector: Inspector, told: list[tuple[str, object]]
) -> None:
    publish_failed(client, (message("1", "ann"), failure()))

    with pytest.raises(ArgumentsInvalid, match="stays in `failed`"):
        inspector.failed.requeue("1", args=["ann", "bob", "one too many"])

    assert inspector.queues.size("failed") == 1


def test_a_worker_that_another_program_started_is_stopped_by_its_id(inspector: Inspector) -> None:
    worker: WorkerHandle = inspector.workers.start(["palermo.demo.jobs"], queues="mail")
    try:
        row = eventually(lambda: next((row for row in inspector.workers.list() if row["state"] == "idle"), None))
        assert row is not None
        assert inspector.workers.stop(row["id"]) is None
        eventually(lambda: not worker.alive)
    finally:
        worker.stop()

    for name in ("pid:1@x", row["id"]):
        with pytest.raises(NotFound, match=f"no worker '{name}' is alive; `palermo workers` lists them"):
            inspector.workers.stop(name)


def test_a_listing_is_a_sequence(inspector: Inspector, client: Client) -> None:
    publish_failed(client, *((message(id), failure()) for id in "123"))

    listed = inspector.failed.list()

    ids = [row["id"] for row in listed]
    assert (sorted(ids), len(listed), listed.total) == (["1", "2", "3"], 3, 3)
    assert (listed[0]["id"], listed[-1]["id"], [row["id"] for row in listed[1:]]) == (ids[0], ids[2], ids[1:])
    assert isinstance(listed, Sequence)
    assert listed[1] in listed
