"""Orders to real workers, paused queues and cancelled jobs: what each does, and what is answered."""

import os
import re
import signal
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from palermo.contract.worker_info import WorkerCommand
from tests.harness.processes import exists
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


def dropped(log: str) -> dict[str, str]:
    """By id, whether a job that was cancelled had begun."""
    found = re.findall(r"job cancelled id=(\S+) .* ran=(yes|no)", log)
    assert len(found) == len(dict(found)), "one job was cancelled twice"
    return dict(found)


@pytest.mark.slow
def test_a_cancel_that_races_with_the_start_drops_or_ends_the_job(any_rig: Rig) -> None:
    rig = any_rig
    worker = rig.idle("-c", "2")

    def race(number: int) -> str:
        id = rig.enqueue("note", str(rig.notes_path), str(number))
        rig.inspector.jobs.cancel(id)
        return id

    with ThreadPoolExecutor(8) as threads:
        ids = list(threads.map(race, range(200)))

    def ran() -> set[str]:
        return {ids[int(number)] for number in rig.lines()}

    # A job that a cancel has just looked at is on its way back to its queue, where no count shows it yet.
    eventually(lambda: ran() | set(dropped(worker.log)) == set(ids))
    eventually(lambda: (rig.pending(), rig.only_worker()["state"]) == (0, "idle"))
    assert len(rig.lines()) == len(ran())
    assert ran().isdisjoint(id for id, began in dropped(worker.log).items() if began == "no")
    assert rig.errors() == {}


@pytest.mark.slow
def test_marks_survive_a_worker_that_is_killed_in_the_middle(any_rig: Rig) -> None:
    rig = any_rig
    calls = [("crew.note", (str(rig.notes_path), str(number)), {}) for number in range(400)]
    ids = [job.id for job in rig.client.enqueue_many(calls)]
    rig.inspector.jobs.cancel(ids[1::2])
    worker = rig.worker("-c", "2")
    eventually(lambda: len(rig.lines()) > 30)

    os.kill(worker.pid, signal.SIGKILL)
    eventually(lambda: not exists(worker.pid))
    # Not a burst: on Redis it may end before the dead worker's lease does, and with it the wait of the job it ran.
    rig.worker("-c", "2")

    eventually(lambda: {int(note) for note in rig.lines()} == set(range(0, 400, 2)))
    assert len(rig.lines()) <= 202
