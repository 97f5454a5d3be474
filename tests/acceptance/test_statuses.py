"""The status of a job: where it is, who enqueued it, and what its key does after it."""

import re

from palermo.client.handle import Job
from palermo.client.status import JobStatus
from tests.harness.rig import Rig
from tests.helpers import eventually


def enqueue(rig: Rig, job: str, *args: object, **options: object) -> Job:
    return rig.client.enqueue(job, args, {}, **options)  # type: ignore[arg-type]


def status(rig: Rig, id: str) -> JobStatus:
    """By the id alone, as another program would ask."""
    return rig.client.job_by_id(id).status()


def becomes(rig: Rig, id: str, state: str) -> JobStatus:
    def found() -> JobStatus:
        now = status(rig, id)
        assert now == state, (now, now.reason)
        return now

    return eventually(found)


def test_the_status_of_a_job_is_where_it_is_in_its_life(rig: Rig) -> None:
    waiting = enqueue(rig, "shop.note", "x", queue="slow")
    later = enqueue(rig, "shop.note", "x", delay=3_600)
    assert (status(rig, waiting.id), waiting.status().queue) == ("pending", "slow")
    becomes(rig, later.id, "scheduled")
    assert (status(rig, later.id).run_at or 0) > (later.created_at or 0) + 3_590
    rig.inspector.jobs.cancel(waiting.id)
    becomes(rig, waiting.id, "cancelled")

    running = enqueue(rig, "shop.hold", "x")
    failing = enqueue(rig, "shop.fail", "wrong")
    retrying = enqueue(rig, "shop.fail_for_long", "again")
    done = enqueue(rig, "shop.note", "x", keep_result=True)
    worker = rig.worker("-c", "4", "-q", "jobs")

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

    rig.inspector.jobs.cancel(running.id)
    eventually(lambda: failing.id in rig.failed())  # it is recorded as failed before it is among the failed jobs
    rig.inspector.failed.discard(failing.id)
    rig.inspector.scheduled.cancel([later.id, retrying.id])
    assert becomes(rig, running.id, "cancelled").queue == "jobs"
    assert becomes(rig, failing.id, "discarded").message.startswith("discard by ")
    becomes(rig, later.id, "cancelled")
    plain = becomes(rig, enqueue(rig, "shop.note", "not kept").id, "done")
    assert (plain.result_kept, plain.attempt, plain.over) == (False, 1, True)


def test_a_status_names_the_next_job_of_its_key(sqlite_rig: Rig) -> None:
    rig = sqlite_rig
    once_more = {"unique": "until_done", "unique_key": "page", "on_duplicate": "rerun"}
    first = enqueue(rig, "shop.hold", "first", **once_more)
    rig.worker("-c", "2")
    rig.await_lines(1)
    assert becomes(rig, first.id, "working").next_id == ""

    second = enqueue(rig, "shop.hold", "second", "other gate", **once_more)

    running = becomes(rig, first.id, "working")
    assert (running.next_id, running.key) == (second.id, "shop.hold:page")
    assert second.id in rig.palermo("status", first.id)
    kept = status(rig, second.id)
    assert (kept, kept.next_id) == ("pending", "")
    assert first.id in kept.reason
    rig.open_gate()
    rig.await_lines(3)
    becomes(rig, first.id, "done")
    assert rig.rows("status", first.id)["next_id"] == second.id
    rig.open_gate("other gate")
    eventually(lambda: status(rig, first.id).next_id == "")
    assert becomes(rig, second.id, "done").closed_until is None


def test_a_job_enqueued_by_a_job_names_it_wherever_it_is(rabbitmq_rig: Rig) -> None:
    rig = rabbitmq_rig

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

    # What an operator does with it later changes nothing of that.
    rig.inspector.failed.requeue("fails")
    eventually(lambda: status(rig, "fails").attempt == 2)
    assert becomes(rig, "fails", "failed").parent == first
    rig.inspector.jobs.move("nobody", "waits", "elsewhere")
    assert becomes(rig, "waits", "pending").queue == "elsewhere"
    assert parent("waits") == first
    rig.inspector.scheduled.run_now("later")
    assert becomes(rig, "later", "done").parent == first
    rig.open_gate()
    assert becomes(rig, "runs", "done").parent == first
    # Run again by an operator, it is another job, which no job enqueued.
    assert parent(rig.inspector.jobs.run_again(many).id) == ""


def test_without_a_full_journal_only_a_deduped_job_is_known_to_be_done(sqlite_rig: Rig) -> None:
    rig = sqlite_rig
    rig.environment["PALERMO_JOURNAL"] = "failures"
    deduped = enqueue(rig, "shop.note", "x", dedupe=600)
    plain = enqueue(rig, "shop.note", "y")

    rig.burst()

    done = status(rig, deduped.id)
    assert (done, done.over) == ("done", True)
    assert status(rig, plain.id) == "unknown"
