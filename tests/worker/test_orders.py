"""Orders to real workers: what each does, and what it answers."""

from typing import Any

import pytest

from palermo.contract.worker_info import WorkerCommand
from tests.harness.rig import Rig
from tests.helpers import eventually
from tests.rabbitmq.patience import have_patience


def command(rig: Rig, action: str, **more: Any) -> list[dict[str, Any]]:
    order = WorkerCommand(action=action, by="anna@desk", **more)
    return [dict(answer.values) for answer in rig.client.run(lambda broker: broker.command(order, timeout=60))]


def test_stop_finishes_what_runs_and_says_so(rig: Rig) -> None:
    worker, _ = rig.holding()

    assert command(rig, "dance") == []
    assert command(rig, "stop") == [{"state": "stopping", "jobs": 1}]

    rig.open_gate()
    assert worker.wait() == 0
    assert rig.lines() == ["held begins", "held ends"]
    assert "order received action=stop by=anna@desk" in worker.log
    assert "unknown order" in worker.log


def test_stack_shows_the_jobs_and_the_worker_and_kill_gives_back_what_runs(rig: Rig) -> None:
    worker, id = rig.holding()

    def stacks() -> dict[str, Any] | None:
        """Of a slot that gets no turn for 2 s there are none."""
        (answer,) = command(rig, "stack")
        return None if "it gave no answer" in answer["text"] else answer

    answer = eventually(stacks) or {}
    assert answer["text"].startswith(f"job crew.hold {id} in slot 1:\n")
    assert "\n\nworker:\n" in answer["text"]
    of_job, of_worker = answer["stacks"]
    assert {name: of_job[name] for name in ("id", "job", "slot")} == {"id": id, "job": "crew.hold", "slot": 1}
    assert "in hold" in of_job["text"]
    assert of_worker.keys() == {"text"}

    assert command(rig, "kill") == [{"state": "stopping", "jobs": 1}]
    assert worker.wait() == 1
    eventually(lambda: rig.pending() == 1)


def test_memory_and_processor_time_are_those_of_all_its_processes(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    have_patience(monkeypatch)
    rig.idle("--max-jobs", "1")
    before = rig.inspector.workers.show(rig.only_worker()["id"])
    assert before["memory"] > 10_000_000
    assert before["cpu"] > 0

    for nth in range(3):
        rig.enqueue("note", str(rig.notes_path), f"{nth}")
    eventually(lambda: rig.only_worker()["processed"] == 3)

    # A process that has ended counts on.
    eventually(lambda: [each["cpu"] for each in rig.inspector.workers.usage() if each["cpu"] > before["cpu"]])
    assert rig.inspector.workers.usage(["pid:0@nowhere"]) == rig.inspector.workers.usage([]) == []


def test_cancel_ends_the_job_that_runs_and_outcome_tells(rig: Rig) -> None:
    worker, id = rig.holding()
    (running,) = command(rig, "outcome", id=id)
    assert command(rig, "outcome", ids=("another", id)) == [{"known": [id]}]
    assert running.items() >= {"state": "running", "job": "crew.hold", "queue": "jobs", "settled": False}.items()

    ended = {"state": "cancelled", "job": "crew.hold", "queue": "jobs", "settled": True}
    # On a busy machine the job may end after the answer to the first cancel.
    eventually(lambda: command(rig, "cancel", id=id) == [ended])
    assert command(rig, "outcome", id=id) == [ended]
    assert command(rig, "outcome", ids=("another", id)) == [{"known": [id]}]
    assert command(rig, "cancel", id="another") == []
    assert rig.pending() == 0
    assert rig.errors() == {}
    assert f"job cancelled id={id}" in worker.log
    assert "ran=yes by=anna@desk" in worker.log
