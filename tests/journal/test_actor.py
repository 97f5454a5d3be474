"""Every action through the inspector is in the journal, with who did it and to which jobs."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from palermo.client.actor import Actor, record_action
from palermo.client.client import Client
from palermo.contract.broker import Broker
from palermo.core.journal_records import Record
from palermo.core.lifecycle import Fail, fail
from palermo.core.queue_selection import QueueSelection
from palermo.inspector.inspector import Inspector
from palermo.settings.settings import Settings
from tests.contract.tools import FAILURE, Report, take
from tests.helpers import eventually

ANNA = Actor("anna", "web")


@pytest.fixture
def client(tmp_path: Path) -> Iterator[Client]:
    with Client(Settings(url=f"sqlite:///{tmp_path}/jobs.db")) as client:
        yield client


@pytest.fixture
def actions(client: Client) -> Callable[[int], list[Record]]:
    """All actions so far, once there are that many."""
    found: list[Record] = []

    async def follow(broker: Broker) -> None:
        await broker.journal.read(lambda batch: found.extend(one for one in batch.records if one["kind"] == "action"))

    client.run(follow)

    def actions(count: int) -> list[Record]:
        eventually(lambda: len(found) >= count)
        return found

    return actions


def put_into_failed(client: Client, *ids: str) -> None:
    async def put(broker: Broker) -> None:
        consumer = await broker.consume(QueueSelection.parse("jobs"), slots=1, tag="pid:1@h", report=Report("jobs"))
        for _ in ids:
            delivery = await take(consumer)
            await consumer.settle(delivery, Fail(fail(delivery.message, FAILURE, worker="w")))
        await consumer.close()

    for id in ids:
        client.enqueue("a", id=id)
    client.run(put)


def without(record: Record, *names: str) -> dict[str, Any]:
    return {name: value for name, value in record.items() if name not in ("kind", "at", *names)}


def test_actions_are_written_down_with_who_did_them(client: Client, actions: Callable[[int], list[Record]]) -> None:
    put_into_failed(client, "1", "2", "3", "4")
    client.enqueue("a", id="5")
    inspector = Inspector(client, ANNA)

    inspector.requeue("1")
    inspector.discard(["2", "3"])
    inspector.requeue("4", queue="other", args=[1])
    inspector.pause("jobs")
    inspector.resume("jobs")
    inspector.cancel(["5", "6"])
    inspector.purge("jobs")
    inspector.dequeue("a", queue="other")
    inspector.delete_queue("other")
    inspector.put_recurring("nightly", "a", every=3_600)
    inspector.switch_recurring("nightly", False)
    run = inspector.run_recurring("nightly")
    inspector.remove_recurring("nightly")
    later = client.enqueue("a", id="7", delay=900)
    inspector.reschedule(later.id, 4_000_000_000)
    inspector.run_now(later.id)

    assert [without(one, "by", "source", "outcome") for one in actions(15)] == [
        {"action": "requeue", "count": 1, "ids": ["1"]},
        {"action": "discard", "count": 2, "ids": ["2", "3"]},
        {"action": "requeue", "count": 1, "ids": ["4"], "queue": "other", "what": "with other arguments"},
        {"action": "pause", "queue": "jobs"},
        {"action": "resume", "queue": "jobs"},
        {"action": "cancel", "count": 2, "ids": ["5", "6"]},
        {"action": "purge", "queue": "jobs", "count": 2},
        {"action": "dequeue", "queue": "other", "count": 1, "what": "a"},
        {"action": "delete queue", "queue": "other", "count": 0},
        {"action": "put recurring", "what": "nightly"},
        {"action": "disable recurring", "what": "nightly"},
        {"action": "run recurring", "what": "nightly", "count": 1, "ids": [run]},
        {"action": "remove recurring", "what": "nightly"},
        {"action": "reschedule", "count": 1, "ids": ["7"], "what": "2096-10-02T07:06:40Z"},
        {"action": "run now", "count": 1, "ids": ["7"]},
    ]
    assert {(one["by"], one["source"], one["outcome"]) for one in actions(15)} == {("anna", "web", "done")}


def test_whoever_is_named_in_the_call_did_it_and_else_the_user_of_the_process(
    client: Client, actions: Callable[[int], list[Record]]
) -> None:
    inspector = Inspector(client)
    inspector.pause("jobs", by="ben")
    inspector.on_behalf_of(ANNA).resume("jobs")
    inspector.pause("jobs")

    here = Actor.here("python")
    assert [(one["by"], one["source"]) for one in actions(3)] == [
        ("ben", "python"),
        ("anna", "web"),
        (here.name, "python"),
    ]


def test_thousands_of_ids_are_several_records(client: Client, actions: Callable[[int], list[Record]]) -> None:
    ids = [f"{number}" for number in range(2_500)]

    record_action(client, ANNA, "discard", ids=ids)
    record_action(client, ANNA, "discard", outcome="refused", what="all")

    *parts, refused = actions(4)
    assert [one["ids"] for one in parts] == [ids[:1_000], ids[1_000:2_000], ids[2_000:]]
    assert [(one["count"], one.get("part")) for one in parts] == [(2_500, None), (2_500, 1), (2_500, 2)]
    assert (refused["outcome"], refused["what"]) == ("refused", "all")
