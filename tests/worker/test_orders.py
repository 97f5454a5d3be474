"""Orders to real workers: what each does, and what it answers."""

import time
from typing import Any

import pytest

from palermo.contract.worker_info import WorkerCommand
from tests.helpers import eventually
from tests.rabbitmq.patience import have_patience
from tests.worker.site import Site


def command(site: Site, action: str, **more: Any) -> list[dict[str, Any]]:
    order = WorkerCommand(action=action, by="anna@desk", **more)
    return [dict(answer.values) for answer in site.client.run(lambda broker: broker.command(order, timeout=60))]


def holding(site: Site) -> str:
    """A job that a worker runs; its id."""
    id = site.hold()
    eventually(lambda: "held begins" in site.notes())
    return id


def test_quiet_lets_running_jobs_go_on_and_resume_ends_it(any_site: Site) -> None:
    site = any_site
    site.start()
    holding(site)
    site.enqueue("note", str(site.notes_path), "next")

    assert command(site, "quiet") == [{"state": "quiet"}]

    site.open_gate()
    eventually(lambda: site.notes() == ["held begins", "held ends"])
    # On Redis a worker says this at its next heartbeat.
    eventually(lambda: (row := site.worker())["state"] == "quiet" and not row["jobs"])
    assert site.notes()[2:] == []

    assert command(site, "resume")[0]["state"] in ("idle", "working")
    eventually(lambda: site.notes()[-1] == "next")


def test_stop_finishes_what_runs_and_says_so(any_site: Site) -> None:
    site = any_site
    worker = site.start()
    holding(site)

    assert command(site, "stop") == [{"state": "stopping", "jobs": 1}]

    site.open_gate()
    assert worker.wait() == 0
    assert site.notes() == ["held begins", "held ends"]
    assert "order received action=stop by=anna@desk" in worker.log


def test_an_idle_worker_answers_before_it_stops(any_site: Site) -> None:
    site = any_site
    worker = site.start()
    site.ready(worker)

    assert command(site, "stop") == [{"state": "stopping", "jobs": 0}]

    assert worker.wait() == 0


def test_kill_gives_back_what_runs(any_site: Site) -> None:
    site = any_site
    worker = site.start()
    holding(site)

    assert command(site, "kill") == [{"state": "stopping", "jobs": 1}]

    assert worker.wait() == 1
    eventually(lambda: site.pending() == 1)


def test_stack_shows_the_jobs_first_and_then_the_worker(any_site: Site) -> None:
    site = any_site
    site.start()
    id = holding(site)

    def stacks() -> dict[str, Any] | None:
        """Of a slot that gets no turn for 2 s there are none."""
        (answer,) = command(site, "stack")
        return None if "it gave no answer" in answer["text"] else answer

    answer = eventually(stacks) or {}

    assert answer["text"].startswith(f"job crew.hold {id} in slot 1:\n")
    assert "\n\nworker:\n" in answer["text"]
    assert "in hold" in answer["text"]
    job, worker = answer["stacks"]
    assert {name: job[name] for name in ("id", "job", "slot")} == {"id": id, "job": "crew.hold", "slot": 1}
    assert "in hold" in job["text"]
    assert worker.keys() == {"text"}


def test_memory_tells_what_its_processes_have_and_the_processor_time_that_they_used(
    any_site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    have_patience(monkeypatch)
    site = any_site
    worker = site.start("--max-jobs", "1")
    site.ready(worker)
    before = site.inspector.worker(site.worker()["id"])
    assert before["memory"] > 10_000_000
    assert before["cpu"] > 0

    for nth in range(3):
        site.enqueue("note", str(site.notes_path), f"{nth}")
    eventually(lambda: site.worker()["processed"] == 3)

    # A process that has ended counts on.
    eventually(lambda: [each["cpu"] for each in site.inspector.usage() if each["cpu"] > before["cpu"]])
    assert site.inspector.usage(["pid:0@nowhere"]) == site.inspector.usage([]) == []


def test_cancel_ends_the_job_that_runs_and_outcome_tells(any_site: Site) -> None:
    site = any_site
    worker = site.start()
    id = holding(site)
    (running,) = command(site, "outcome", id=id)
    assert command(site, "outcome", ids=("another", id)) == [{"known": [id]}]
    assert running.items() >= {"state": "running", "job": "crew.hold", "queue": "jobs", "settled": False}.items()

    def cancelled() -> dict[str, Any] | None:
        """A worker answers after 3 s at the latest, whether the job has ended or not."""
        began = time.monotonic()
        (answer,) = command(site, "cancel", id=id)
        slow = answer["state"] == "cancelling" and time.monotonic() - began >= 3
        return None if slow else answer

    answer = eventually(cancelled)

    ended = {"state": "cancelled", "job": "crew.hold", "queue": "jobs", "settled": True}
    assert answer == ended
    assert command(site, "outcome", id=id) == [ended]
    assert command(site, "outcome", ids=("another", id)) == [{"known": [id]}]
    assert command(site, "cancel", id="another") == []
    assert site.pending() == 0
    assert site.errors() == {}
    assert f"job cancelled id={id}" in worker.log
    assert "ran=yes by=anna@desk" in worker.log


def test_what_nobody_knows_is_not_obeyed(site: Site) -> None:
    worker = site.start()
    site.ready(worker)

    assert command(site, "dance") == []

    assert "unknown order" in worker.log
