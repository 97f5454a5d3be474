"""Pausing queues and cancelling jobs under real workers."""

import os
import re
import signal
from concurrent.futures import ThreadPoolExecutor

import pytest

from tests.helpers import eventually
from tests.worker.site import Site, exists


def dropped(log: str) -> dict[str, str]:
    """By id, whether a job that was cancelled had begun."""
    found = re.findall(r"job cancelled id=(\S+) .* ran=(yes|no)", log)
    assert len(found) == len(dict(found)), "one job was cancelled twice"
    return dict(found)


@pytest.mark.parametrize("queues", ["jobs", "jobs,other", "*"])
def test_a_pause_survives_the_restart_of_workers(any_site: Site, queues: str) -> None:
    site = any_site
    site.enqueue("note", str(site.notes_path), "paused")
    site.inspector.pause("jobs", by="anna@desk")
    site.enqueue("note", str(site.notes_path), "other", queue="other")

    for _ in range(2):
        worker = site.start("-q", queues)
        site.ready(worker)
        worker.send(signal.SIGTERM)
        assert worker.wait() == 0
    assert "paused" not in site.notes()

    worker = site.start("-q", queues)
    site.ready(worker)
    site.inspector.resume("jobs")

    eventually(lambda: "paused" in site.notes())


def test_r11_a_pause_of_all_queues_holds_for_workers_that_start_later_and_new_queues(any_site: Site) -> None:
    site = any_site
    site.inspector.pause_all(by="anna@desk")
    for queue in ("jobs", "new"):
        site.enqueue("note", str(site.notes_path), queue, queue=queue)

    assert site.start("-q", "*", "--burst").wait() == 0
    worker = site.start("-q", "*")
    site.ready(worker)
    assert site.notes() == []

    site.inspector.resume_all()

    eventually(lambda: sorted(site.notes()) == ["jobs", "new"])


def test_a_busy_worker_finishes_its_job_and_takes_no_more_while_its_queue_is_paused(any_site: Site) -> None:
    site = any_site
    worker = site.start("-c", "2")
    site.ready(worker)
    site.hold()
    eventually(lambda: site.notes() == ["held begins"])

    site.inspector.pause("jobs")
    site.enqueue("note", str(site.notes_path), "next")
    site.open_gate()
    eventually(lambda: site.notes() == ["held begins", "held ends"])
    eventually(lambda: site.worker()["processed"] == 1)

    assert site.notes() == ["held begins", "held ends"]
    assert {row["name"]: row["paused"] for row in site.inspector.queues()}["jobs"]
    site.inspector.resume("jobs")
    eventually(lambda: site.notes()[-1] == "next")


def test_a_burst_takes_a_paused_queue_for_empty(any_site: Site) -> None:
    site = any_site
    site.enqueue("note", str(site.notes_path), "paused")
    site.enqueue("note", str(site.notes_path), "other", queue="other")
    site.inspector.pause("jobs")

    site.burst("-q", "jobs,other")

    assert site.notes() == ["other"]
    assert site.pending() == 1


def test_cancelled_jobs_are_dropped_in_their_turn_and_the_others_keep_their_order(any_site: Site) -> None:
    site = any_site
    ids = [site.enqueue("note", str(site.notes_path), str(number)) for number in range(10)]
    rows = site.inspector.cancel(ids[1::2], by="anna@desk")
    assert [(row["id"], row["state"], row["worker"]) for row in rows] == [(id, "marked", None) for id in ids[1::2]]
    assert [row["state"] for row in site.inspector.jobs("jobs")] == ["pending", "cancelled"] * 5

    log = site.burst("--log-level", "debug")

    assert site.notes() == ["0", "2", "4", "6", "8"]
    assert dropped(log) == dict.fromkeys(ids[1::2], "no")
    assert "by=anna@desk" in log
    assert f"job started id={ids[0]}" in log
    assert f"job started id={ids[1]}" not in log
    assert "processed=5 failed=0" in log
    assert site.errors() == {}


def test_a_running_job_is_cancelled_and_its_worker_named(any_site: Site) -> None:
    site = any_site
    worker = site.start()
    site.ready(worker)
    id = site.hold()
    eventually(lambda: site.notes() == ["held begins"])

    row = site.cancel(id, by="anna@desk")

    assert row == {
        "id": id,
        "state": "cancelled",
        "worker": site.worker()["id"],
        "job": "crew.hold",
        "queue": "jobs",
    }
    assert dropped(worker.log) == {id: "yes"}
    site.enqueue("note", str(site.notes_path), "next")
    eventually(lambda: site.notes() == ["held begins", "next"])


def test_a_job_that_ignores_its_end_is_killed(any_site: Site) -> None:
    site = any_site
    worker = site.start("--timeout-grace", "0.5", modules=("crew_limits",))
    id = site.enqueue("hogs_the_gil", str(site.notes_path), module="crew_limits")
    eventually(lambda: "waits" in " ".join(site.notes()))

    site.cancel(id)

    assert dropped(worker.log) == {id: "yes"}
    assert site.errors() == {}


def test_a_cancelled_job_that_failed_before_runs_when_it_is_requeued(any_site: Site) -> None:
    site = any_site
    id = site.enqueue("raises", "wrong")
    site.burst()
    site.inspector.cancel(id)
    assert list(site.errors()) == [id]

    site.inspector.requeue(id)

    assert dropped(site.burst()) == {}
    assert site.inspector.failed_job(id)["retries"] == 1


def test_a_cancel_that_races_with_the_start_drops_the_job_or_ends_it_and_never_both(any_site: Site) -> None:
    site = any_site
    worker = site.start("-c", "2")
    site.ready(worker)

    def race(number: int) -> str:
        id = site.enqueue("note", str(site.notes_path), str(number))
        site.inspector.cancel(id)
        return id

    with ThreadPoolExecutor(8) as threads:
        ids = list(threads.map(race, range(200)))

    def ran() -> set[str]:
        return {ids[int(number)] for number in site.notes()}

    # A job that a cancel has just looked at is on its way back to its queue, where no count shows it yet.
    eventually(lambda: ran() | set(dropped(worker.log)) == set(ids))
    eventually(lambda: (site.pending(), site.worker()["state"]) == (0, "idle"))
    assert len(site.notes()) == len(ran())
    assert ran().isdisjoint(id for id, began in dropped(worker.log).items() if began == "no")
    assert site.errors() == {}


def test_marks_survive_a_worker_that_is_killed_in_the_middle(any_site: Site) -> None:
    site = any_site
    calls = [("crew.note", (str(site.notes_path), str(number)), {}) for number in range(400)]
    ids = [job.id for job in site.client.enqueue_many(calls)]
    site.inspector.cancel(ids[1::2])
    worker = site.start("-c", "2")
    eventually(lambda: len(site.notes()) > 30)

    os.kill(worker.pid, signal.SIGKILL)
    eventually(lambda: not exists(worker.pid))
    # Not a burst: on Redis it may end before the dead worker's lease does, and with it the wait of the job it ran.
    site.start("-c", "2")

    eventually(lambda: {int(note) for note in site.notes()} == set(range(0, 400, 2)))
    assert len(site.notes()) <= 202
