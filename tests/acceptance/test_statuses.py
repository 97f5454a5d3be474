"""The statuses that carmine's status(id) tells, and Palermo's: queued, queued with backoff, locked, done, and ours.

Palermo has nothing to which carmine's states of unique and requeued messages could apply.
"""

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
