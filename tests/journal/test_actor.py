"""Every action through the inspector is in the journal, with who did it and to which jobs."""

import time
from collections.abc import Callable
from typing import Any

import pytest

import palermo
from palermo.client.actor import Actor, record_action
from palermo.client.client import Client
from palermo.contract.broker import Broker
from palermo.core.journal_records import Record
from palermo.errors import ArgumentsInvalid, NotFound
from palermo.inspector.inspector import Inspector
from palermo.views.filter import JobFilter
from tests.helpers import eventually
from tests.inspector.jobs import failure, message, publish_failed

ANNA = Actor("anna", "web")


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


def put_into_failed(client: Client, *ids: str, job: str = "a") -> None:
    publish_failed(client, *((message(id, 1, queue="jobs", job=job), failure()) for id in ids))


def without(record: Record, *names: str) -> dict[str, Any]:
    return {name: value for name, value in record.items() if name not in ("kind", "at", *names)}


def test_actions_are_written_down_with_who_did_them(client: Client, actions: Callable[[int], list[Record]]) -> None:
    put_into_failed(client, "1", "2", "3", "4")
    client.enqueue("a", id="5")
    inspector = Inspector(client, ANNA)

    inspector.failed.requeue("1")
    inspector.failed.discard(["2", "3"])
    inspector.failed.requeue("4", queue="other", args=[1])
    inspector.queues.pause("jobs")
    inspector.queues.resume("jobs")
    inspector.jobs.cancel(["5", "6"])
    inspector.queues.purge("jobs")
    inspector.jobs.dequeue("a", queue="other")
    inspector.queues.delete("other")
    inspector.recurring.put("nightly", "a", every=3_600)
    inspector.recurring.switch("nightly", False)
    run = inspector.recurring.run("nightly")
    inspector.recurring.remove("nightly")
    later = client.enqueue("a", id="7", delay=900)
    inspector.scheduled.reschedule(later.id, 4_000_000_000)
    inspector.scheduled.run_now(later.id)

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
        {"action": "put recurring", "what": "nightly: job a, every hour, tz UTC, missed once, queue jobs"},
        {"action": "disable recurring", "what": "nightly"},
        {"action": "run recurring", "what": "nightly", "count": 1, "ids": [run]},
        {"action": "remove recurring", "what": "nightly"},
        {"action": "reschedule", "count": 1, "ids": ["7"], "what": "2096-10-02T07:06:40Z"},
        {"action": "run now", "count": 1, "ids": ["7"]},
    ]
    assert {(one["by"], one["source"], one["outcome"]) for one in actions(15)} == {("anna", "web", "done")}


def test_actions_name_their_actor_and_share_many_ids(client: Client, actions: Callable[[int], list[Record]]) -> None:
    ids = [f"{number}" for number in range(2_500)]
    inspector = Inspector(client)
    inspector.queues.pause("jobs", by="ben")
    inspector.on_behalf_of(ANNA).queues.resume("jobs")
    inspector.queues.pause("jobs")
    record_action(client, ANNA, "discard", ids=ids)
    record_action(client, ANNA, "discard", outcome="refused", what="all")

    *ours, _, _, _, _ = actions(7)
    here = Actor.here("python").name
    assert [(one["by"], one["source"]) for one in ours] == [("ben", "python"), ("anna", "web"), (here, "python")]
    *parts, refused = actions(7)[3:]
    assert [one["ids"] for one in parts] == [ids[:1_000], ids[1_000:2_000], ids[2_000:]]
    assert [(one["count"], one.get("part")) for one in parts] == [(2_500, None), (2_500, 1), (2_500, 2)]
    assert (refused["outcome"], refused["what"]) == ("refused", "all")


def test_a_requeue_is_told_before_the_run_it_caused(client: Client, actions: Callable[[int], list[Record]]) -> None:
    put_into_failed(client, "1", "2")
    client.enqueue("a", id="3")
    client.enqueue("a", id="4")
    inspector = Inspector(client, ANNA)
    taken: list[float] = []

    def on_taken(jobs: object) -> None:
        taken.append(time.time())
        time.sleep(0.01)

    inspector.failed.requeue("1", on_taken=on_taken)
    inspector.failed.discard("2", on_taken=on_taken)
    inspector.jobs.move("jobs", "3", "other", on_taken=on_taken)
    inspector.jobs.cancel_waiting("jobs", "4", on_taken=on_taken)

    names = [one["action"] for one in actions(4)]
    assert names == ["requeue", "discard", "move", "cancel"]
    assert [one["at"] <= round(at, 3) for one, at in zip(actions(4), taken, strict=True)] == [True] * 4


def test_a_requeue_that_was_refused_is_told_as_failed(client: Client, actions: Callable[[int], list[Record]]) -> None:
    @palermo.job(name="audited")
    def audited(number: int) -> None: ...

    put_into_failed(client, "1", job="audited")
    inspector = Inspector(client, ANNA)

    with pytest.raises(ArgumentsInvalid):
        inspector.failed.requeue("1", args=[1, 2, 3])
    with pytest.raises(NotFound):
        inspector.failed.discard(["8", "9"])

    requeued, discarded = actions(2)
    assert (requeued["outcome"], requeued["ids"]) == ("failed", ["1"])
    assert requeued["what"] == "with other arguments, ArgumentsInvalid"
    assert (discarded["outcome"], discarded["ids"], discarded["what"]) == ("failed", ["8", "9"], "NotFound")


def test_what_was_done_to_many_jobs_names_the_filter(client: Client, actions: Callable[[int], list[Record]]) -> None:
    put_into_failed(client, "1", "2")
    client.enqueue("a", id="3", delay=900)
    client.enqueue("a", id="4")
    client.enqueue("a", id="5")
    inspector = Inspector(client, ANNA)

    inspector.failed.requeue(JobFilter(job="a", text="boom"))
    inspector.failed.discard(JobFilter())
    inspector.scheduled.cancel(JobFilter(queue="jo*", due_until=4_000_000_000))
    inspector.jobs.move("jobs", JobFilter(job="a"), "other")
    inspector.jobs.discard("other", JobFilter(text="x"))

    assert [one.get("what") for one in actions(5)] == [
        "job:a boom",
        "everything",
        "queue:jo* due_until:2096-10-02T07:06:40Z",
        "from jobs, job:a",
        "x",
    ]


def test_a_saved_schedule_tells_its_old_and_new_values(client: Client, actions: Callable[[int], list[Record]]) -> None:
    inspector = Inspector(client, ANNA)

    inspector.recurring.put("nightly", "a", cron="0 3 * * *", args=["secret"])
    inspector.recurring.put("nightly", "a", cron="0 4 * * *", queue="low", args=["other"])
    inspector.recurring.put("nightly", "a", every=60, queue="low", args=["other"])
    inspector.recurring.put("nightly", "a", every=60, queue="low", args=["other"])

    assert [one["what"] for one in actions(4)] == [
        "nightly: job a, cron 0 3 * * *, tz UTC, missed once, queue jobs",
        "nightly: cron 0 3 * * * → 0 4 * * *, queue jobs → low, other arguments",
        "nightly: cron 0 4 * * * → none, every none → minute",
        "nightly: unchanged",
    ]
