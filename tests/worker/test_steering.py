"""Pausing queues and cancelling jobs under real workers."""

import os
import re
import signal
from concurrent.futures import ThreadPoolExecutor

import pytest

from tests.harness.processes import exists
from tests.harness.rig import Rig
from tests.helpers import eventually


def dropped(log: str) -> dict[str, str]:
    """By id, whether a job that was cancelled had begun."""
    found = re.findall(r"job cancelled id=(\S+) .* ran=(yes|no)", log)
    assert len(found) == len(dict(found)), "one job was cancelled twice"
    return dict(found)


def test_a_cancelled_workflow_has_not_just_finished(rig: Rig) -> None:
    rig.idle()
    id = rig.enqueue("waits_for_nobody")
    eventually(lambda: [row["id"] for row in rig.inspector.workflows.list()] == [id])

    (row,) = rig.inspector.jobs.cancel(id)
    assert row["state"] == "marked"
    assert rig.inspector.workflows.list() == []


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
