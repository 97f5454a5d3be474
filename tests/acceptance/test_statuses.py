"""The statuses that carmine's status(id) tells, and Palermo's: where a job is, and what its key does after it."""

import re
import time
from datetime import datetime

import pytest

from palermo.client.handle import Job
from palermo.client.status import JobStatus
from tests.harness.rig import Rig
from tests.helpers import eventually


def enqueue(rig: Rig, job: str, *args: object, **options: object) -> Job:
    return rig.client.enqueue(job, args, {}, **options)  # type: ignore[arg-type]


def status(rig: Rig, id: str) -> JobStatus:
    """By the id alone, as somebody else would ask."""
    return rig.client.job_by_id(id).status()


def becomes(rig: Rig, id: str, state: str) -> JobStatus:
    def found() -> JobStatus:
        now = status(rig, id)
        assert now == state, (now, now.reason)
        return now

    return eventually(found)


def test_C7_the_status_of_a_job_is_where_it_is_in_its_life(rig: Rig) -> None:
    waiting = enqueue(rig, "shop.note", "x", queue="slow")
    later = enqueue(rig, "shop.note", "x", delay=3_600)
    assert (status(rig, waiting.id), waiting.status().queue) == ("pending", "slow")
    becomes(rig, later.id, "scheduled")
    assert (status(rig, later.id).run_at or 0) > (later.created_at or 0) + 3_590
    rig.inspector.cancel(waiting.id)
    becomes(rig, waiting.id, "cancelled")

    running = enqueue(rig, "shop.hold", "x")
    failing = enqueue(rig, "shop.fail", "wrong")
    retrying = enqueue(rig, "timed.told", 3_600)
    done = enqueue(rig, "shop.note", "x", keep_result=True)
    worker = rig.worker("-c", "4", "-q", "jobs", modules=("shop", "timed"))

    working = becomes(rig, running.id, "working")
    assert (working.worker or "").startswith(f"pid:{worker.pid}@")
    assert (working.job, working.over) == ("shop.hold", False)
    failed = becomes(rig, failing.id, "failed")
    assert (failed.error, failed.message, failed.attempt, failed.over) == ("ValueError", "wrong", 1, True)
    tried = becomes(rig, retrying.id, "retrying")
    assert (tried.error, tried.attempt) == ("ValueError", 2)
    ended = becomes(rig, done.id, "done")
    assert (ended.result_kept, ended.queue, ended.over) == (True, "jobs", True)
    assert (ended.took or 0) < (ended.ended_at or 0)

    rig.inspector.cancel(running.id)
    rig.inspector.discard(failing.id)
    rig.inspector.cancel_scheduled([later.id, retrying.id])
    assert becomes(rig, running.id, "cancelled").queue == "jobs"
    assert becomes(rig, failing.id, "discarded").message.startswith("discard by ")
    assert becomes(rig, later.id, "cancelled") == "cancelled"

    plain = becomes(rig, enqueue(rig, "shop.note", "not kept").id, "done")
    assert (plain.result_kept, plain.attempt, plain.over) == (False, 1, True)


def test_C7_where_the_journal_has_failures_alone_a_deduped_job_is_known_to_be_done_and_another_is_not(
    sqlite_rig: Rig,
) -> None:
    rig = sqlite_rig
    rig.environment["PALERMO_JOURNAL"] = "failures"
    deduped = enqueue(rig, "shop.note", "x", dedupe=600)
    plain = enqueue(rig, "shop.note", "y")
    rig.burst()

    done = status(rig, deduped.id)
    assert (done, done.over) == ("done", True)
    assert "as dedupe says" in done.reason
    unknown = status(rig, plain.id)
    assert unknown == "unknown"
    assert "not among the failed jobs" in unknown.reason


def test_C7_the_status_of_a_unique_job_tells_of_the_job_that_runs_after_it(rig: Rig) -> None:
    """carmine's locked-with-requeue and done-with-requeue."""
    once_more = {"unique": "until_done", "unique_key": "page", "on_duplicate": "rerun"}
    first = enqueue(rig, "shop.hold", "first", **once_more)
    rig.worker("-c", "2")
    rig.await_lines(1)
    assert becomes(rig, first.id, "working").next_id == ""

    second = enqueue(rig, "shop.hold", "second", "other gate", **once_more)

    running = becomes(rig, first.id, "working")
    assert (running, running.next_id, running.key) == ("working", second.id, "shop.hold:page")
    assert f"next job of its key  {second.id}\n" in rig.palermo("status", first.id)
    kept = status(rig, second.id)
    assert (kept, kept.next_id) == ("pending", "")
    assert f"until job {first.id} has ended" in kept.reason

    rig.open_gate()
    rig.await_lines(3)
    done = becomes(rig, first.id, "done")
    assert done.next_id == second.id
    assert rig.rows("status", first.id)["next_id"] == second.id

    rig.open_gate("other gate")
    eventually(lambda: status(rig, first.id).next_id == "")
    assert becomes(rig, second.id, "done").closed_until is None


def test_C7_the_status_of_a_job_whose_key_stays_closed_says_until_when(rig: Rig) -> None:
    """carmine's done-with-backoff."""
    begun = time.time()
    ids = [
        enqueue(rig, "shop.note", "a", dedupe=600).id,
        enqueue(rig, "shop.note", "b", unique=600).id,
        enqueue(rig, "shop.note", "c", throttle=600).id,
    ]
    plain = enqueue(rig, "shop.note", "d").id
    kept = enqueue(rig, "shop.note", "e", throttle=600)
    assert (becomes(rig, kept.id, "scheduled").run_at or 0) > begun + 590
    rig.burst()

    for id in ids:
        done = becomes(rig, id, "done")
        assert begun + 590 < (done.closed_until or 0) < time.time() + 610, done.key
        told = rig.rows("status", id)["closed_until"]
        assert datetime.fromisoformat(told).timestamp() == pytest.approx(done.closed_until, abs=0.001)
    assert status(rig, ids[2]).next_id == kept.id
    assert "its key is closed until  20" in rig.palermo("status", ids[0])
    unkeyed = becomes(rig, plain, "done")
    assert (unkeyed.key, unkeyed.next_id, unkeyed.closed_until) == ("", "", None)


def test_a_job_that_a_job_enqueued_names_it_wherever_it_is(rig: Rig) -> None:
    def parent(id: str) -> str:
        return status(rig, id).parent

    rig.worker("-c", "3", modules=("families",))
    first = enqueue(rig, "families.settle_down").id
    (many,) = rig.await_lines(1, "many")

    states = {"runs": "working", "fails": "failed", "retries": "retrying", "waits": "pending", "later": "scheduled"}
    states |= {"limited": "pending", "unique": "pending", "tenant": "pending", many: "done", "birth@aunts": "done"}
    for id, state in states.items():
        assert becomes(rig, id, state).parent == first, id
    assert becomes(rig, first, "done").parent == ""
    assert rig.rows("status", "waits")["parent"] == first
    assert re.search(rf"^parent +{first}$", rig.palermo("status", "later"), re.MULTILINE)
    (running,) = eventually(lambda: rig.only_worker()["jobs"])
    assert running["parent"] == first
    assert rig.rows("failed", "show", "fails")["parent"] == first
    steps = eventually(lambda: [step for step in rig.rows("history", "waits") if step["kind"] == "enqueued"])
    assert [step["parent"] for step in steps] == [first]

    # What a person does with it later changes nothing of that.
    rig.inspector.requeue("fails")
    eventually(lambda: status(rig, "fails").attempt == 2)
    assert becomes(rig, "fails", "failed").parent == first
    rig.inspector.move_waiting("nobody", "waits", "elsewhere")
    assert becomes(rig, "waits", "pending").queue == "elsewhere"
    assert parent("waits") == first
    rig.inspector.run_now("later")
    assert becomes(rig, "later", "done").parent == first
    rig.open_gate()
    assert becomes(rig, "runs", "done").parent == first
    # Run again by a person, it is another job, which no job enqueued.
    assert parent(rig.inspector.run_again(many).id) == ""


def test_what_lies_too_deep_to_be_looked_at_is_said(rig: Rig) -> None:
    rig.client.enqueue_many((("shop.note"), [number], {}) for number in range(300))
    deep = enqueue(rig, "shop.note", "deep", id="deep")
    rig.client.enqueue_many((("shop.note"), [number], {}) for number in range(300))

    # The client writes into the journal a moment after it has enqueued.
    eventually(lambda: deep.status() == "pending")
    found = deep.status()

    assert found.queue == "jobs"
    assert "so the journal tells" in found.reason
    assert "the middle of queue 'jobs', where 401 jobs wait" in found.reason
