"""Pausing queues and cancelling jobs under real workers."""

import re
from concurrent.futures import ThreadPoolExecutor

import pytest

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


def test_a_requeued_job_is_cancelled_and_not_said_to_have_failed(rig: Rig) -> None:
    rig.idle()
    id = rig.enqueue("raises", "no")
    eventually(lambda: id in rig.failed())
    rig.inspector.queues.pause_all()
    rig.inspector.failed.requeue(id)

    (row,) = rig.inspector.jobs.cancel(id)
    assert (row["state"], row["worker"]) == ("marked", None)


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
