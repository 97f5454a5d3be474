"""The statuses that carmine's status(id) tells, and Palermo's: where a job is, and what its key does after it."""

import re
import time
from datetime import datetime

import pytest

from palermo.client.handle import Job
from palermo.client.status import JobStatus
from tests.acceptance.place import Place
from tests.helpers import eventually


def enqueue(place: Place, job: str, *args: object, **options: object) -> Job:
    return place.client.enqueue(job, args, {}, **options)  # type: ignore[arg-type]


def status(place: Place, id: str) -> JobStatus:
    """By the id alone, as somebody else would ask."""
    return place.client.job_by_id(id).status()


def becomes(place: Place, id: str, state: str) -> JobStatus:
    def found() -> JobStatus:
        now = status(place, id)
        assert now == state, (now, now.reason)
        return now

    return eventually(found)


def test_C7_the_status_of_a_job_is_where_it_is_in_its_life(place: Place) -> None:
    waiting = enqueue(place, "shop.note", "x", queue="slow")
    later = enqueue(place, "shop.note", "x", delay=3_600)
    assert (status(place, waiting.id), waiting.status().queue) == ("pending", "slow")
    becomes(place, later.id, "scheduled")
    assert (status(place, later.id).run_at or 0) > (later.created_at or 0) + 3_590
    place.inspector.cancel(waiting.id)
    becomes(place, waiting.id, "cancelled")

    running = enqueue(place, "shop.hold", "x")
    failing = enqueue(place, "shop.fail", "wrong")
    retrying = enqueue(place, "timed.told", 3_600)
    done = enqueue(place, "shop.note", "x", keep_result=True)
    worker = place.worker("-c", "4", "-q", "jobs", modules=("shop", "timed"))

    working = becomes(place, running.id, "working")
    assert (working.worker or "").startswith(f"pid:{worker.pid}@")
    assert (working.job, working.over) == ("shop.hold", False)
    failed = becomes(place, failing.id, "failed")
    assert (failed.error, failed.message, failed.attempt, failed.over) == ("ValueError", "wrong", 1, True)
    tried = becomes(place, retrying.id, "retrying")
    assert (tried.error, tried.attempt) == ("ValueError", 2)
    ended = becomes(place, done.id, "done")
    assert (ended.result_kept, ended.queue, ended.over) == (True, "jobs", True)
    assert (ended.took or 0) < (ended.ended_at or 0)

    place.inspector.cancel(running.id)
    place.inspector.discard(failing.id)
    place.inspector.cancel_scheduled([later.id, retrying.id])
    assert becomes(place, running.id, "cancelled").queue == "jobs"
    assert becomes(place, failing.id, "discarded").message.startswith("discard by ")
    assert becomes(place, later.id, "cancelled") == "cancelled"

    plain = becomes(place, enqueue(place, "shop.note", "not kept").id, "done")
    assert (plain.result_kept, plain.attempt, plain.over) == (False, 1, True)


def test_C7_where_the_journal_has_failures_alone_a_deduped_job_is_known_to_be_done_and_another_is_not(
    sqlite_place: Place,
) -> None:
    place = sqlite_place
    place.environment["PALERMO_JOURNAL"] = "failures"
    deduped = enqueue(place, "shop.note", "x", dedupe=600)
    plain = enqueue(place, "shop.note", "y")
    place.burst()

    done = status(place, deduped.id)
    assert (done, done.over) == ("done", True)
    assert "as dedupe says" in done.reason
    unknown = status(place, plain.id)
    assert unknown == "unknown"
    assert "not among the failed jobs" in unknown.reason


def test_C7_the_status_of_a_unique_job_tells_of_the_job_that_runs_after_it(place: Place) -> None:
    """carmine's locked-with-requeue and done-with-requeue."""
    once_more = {"unique": "until_done", "unique_key": "page", "on_duplicate": "rerun"}
    first = enqueue(place, "shop.hold", "first", **once_more)
    place.worker("-c", "2")
    place.await_lines(1)
    assert becomes(place, first.id, "working").next_id == ""

    second = enqueue(place, "shop.hold", "second", "other gate", **once_more)

    running = becomes(place, first.id, "working")
    assert (running, running.next_id, running.key) == ("working", second.id, "shop.hold:page")
    assert f"next job of its key  {second.id}\n" in place.palermo("status", first.id)
    kept = status(place, second.id)
    assert (kept, kept.next_id) == ("pending", "")
    assert f"until job {first.id} has ended" in kept.reason

    place.open_gate()
    place.await_lines(3)
    done = becomes(place, first.id, "done")
    assert done.next_id == second.id
    assert place.rows("status", first.id)["next_id"] == second.id

    place.open_gate("other gate")
    eventually(lambda: status(place, first.id).next_id == "")
    assert becomes(place, second.id, "done").closed_until is None


def test_C7_the_status_of_a_job_whose_key_stays_closed_says_until_when(place: Place) -> None:
    """carmine's done-with-backoff."""
    begun = time.time()
    ids = [
        enqueue(place, "shop.note", "a", dedupe=600).id,
        enqueue(place, "shop.note", "b", unique=600).id,
        enqueue(place, "shop.note", "c", throttle=600).id,
    ]
    plain = enqueue(place, "shop.note", "d").id
    kept = enqueue(place, "shop.note", "e", throttle=600)
    assert (becomes(place, kept.id, "scheduled").run_at or 0) > begun + 590
    place.burst()

    for id in ids:
        done = becomes(place, id, "done")
        assert begun + 590 < (done.closed_until or 0) < time.time() + 610, done.key
        told = place.rows("status", id)["closed_until"]
        assert datetime.fromisoformat(told).timestamp() == pytest.approx(done.closed_until, abs=0.001)
    assert status(place, ids[2]).next_id == kept.id
    assert "its key is closed until  20" in place.palermo("status", ids[0])
    unkeyed = becomes(place, plain, "done")
    assert (unkeyed.key, unkeyed.next_id, unkeyed.closed_until) == ("", "", None)


def test_a_job_that_a_job_enqueued_names_it_wherever_it_is(place: Place) -> None:
    def parent(id: str) -> str:
        return status(place, id).parent

    place.worker("-c", "3", modules=("families",))
    first = enqueue(place, "families.settle_down").id
    (many,) = place.await_lines(1, "many")

    states = {"runs": "working", "fails": "failed", "retries": "retrying", "waits": "pending", "later": "scheduled"}
    states |= {"limited": "pending", "unique": "pending", "tenant": "pending", many: "done", "birth@aunts": "done"}
    for id, state in states.items():
        assert becomes(place, id, state).parent == first, id
    assert becomes(place, first, "done").parent == ""
    assert place.rows("status", "waits")["parent"] == first
    assert re.search(rf"^parent +{first}$", place.palermo("status", "later"), re.MULTILINE)
    (running,) = eventually(lambda: place.only_worker()["jobs"])
    assert running["parent"] == first
    assert place.rows("failed", "show", "fails")["parent"] == first
    steps = eventually(lambda: [step for step in place.rows("history", "waits") if step["kind"] == "enqueued"])
    assert [step["parent"] for step in steps] == [first]

    # What a person does with it later changes nothing of that.
    place.inspector.requeue("fails")
    eventually(lambda: status(place, "fails").attempt == 2)
    assert becomes(place, "fails", "failed").parent == first
    place.inspector.move_waiting("nobody", "waits", "elsewhere")
    assert becomes(place, "waits", "pending").queue == "elsewhere"
    assert parent("waits") == first
    place.inspector.run_now("later")
    assert becomes(place, "later", "done").parent == first
    place.open_gate()
    assert becomes(place, "runs", "done").parent == first
    # Run again by a person, it is another job, which no job enqueued.
    assert parent(place.inspector.run_again(many).id) == ""


def test_what_lies_too_deep_to_be_looked_at_is_said(place: Place) -> None:
    place.client.enqueue_many((("shop.note"), [number], {}) for number in range(300))
    deep = enqueue(place, "shop.note", "deep", id="deep")
    place.client.enqueue_many((("shop.note"), [number], {}) for number in range(300))

    # The client writes into the journal a moment after it has enqueued.
    eventually(lambda: deep.status() == "pending")
    found = deep.status()

    assert found.queue == "jobs"
    assert "so the journal tells" in found.reason
    assert "the middle of queue 'jobs', where 401 jobs wait" in found.reason
