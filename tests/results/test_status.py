"""The status of a job: which of the places where it may be decides."""

import time
from typing import Any

import pytest

from palermo.brokers.rabbitmq.browsing import job_search
from palermo.client import status as statuses
from palermo.client.status import JobStatus
from palermo.contract.finding import JobLocation
from tests.harness.rig import Rig
from tests.helpers import eventually
from tests.history.written import ended, failed, write


def status(rig: Rig, id: str) -> JobStatus:
    """By the id alone, as another program would ask."""
    return rig.client.job_by_id(id).status()


def enqueue(rig: Rig, **options: Any) -> Any:
    return rig.client.enqueue("shop.resize", (), {}, queue="mail", **options)


def test_a_job_whose_success_was_read_is_done_while_it_is_still_there(rig: Rig) -> None:
    # As while its worker, which has recorded the success, acknowledges it.
    job = enqueue(rig)
    write(rig.client, [ended(job.id, at=time.time())])

    assert job.wait(60) == "done"
    assert job.status() == "done"


def test_a_waiting_job_is_found_without_a_journal(tmp_path: Any) -> None:
    with Rig(tmp_path, journal="off") as rig:
        assert enqueue(rig).status() == "pending"


def test_a_job_requeued_while_the_journal_is_read_waits(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    job = enqueue(rig)
    write(rig.client, [failed(job.id, at=time.time())])
    locate, missed = statuses.locate, [JobLocation()]

    async def locate_late(*arguments: Any, **options: Any) -> JobLocation:
        return missed.pop() if missed else await locate(*arguments, **options)

    monkeypatch.setattr(statuses, "locate", locate_late)

    assert job.status() == "pending"
    assert not missed


def test_a_job_failed_unless_it_has_left_the_failed_jobs(rig: Rig) -> None:
    # A failure is recorded before the job is among the failed ones.
    write(rig.client, [failed("just now", at=time.time()), failed("taken away", at=time.time() - 60)])

    taken_away = status(rig, "taken away")

    assert status(rig, "just now") == "failed"
    assert taken_away == "unknown"
    assert taken_away.reason == "It failed, but is no longer among the failed jobs."


def test_a_job_that_is_kept_with_its_key_is_scheduled(rig: Rig) -> None:
    job = enqueue(rig, debounce=600)

    found = job.status()

    assert (found, found.key) == ("scheduled", "debounce:shop.resize")
    assert found.run_at is not None
    assert found.run_at > time.time() + 500


@pytest.mark.slow
def test_of_a_job_amid_a_long_queue_the_journal_knows_the_last_step(
    rabbitmq_url: str, exchange: str, tmp_path: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(job_search, "DEPTH", 2)
    with Rig(tmp_path, url=rabbitmq_url, exchange=exchange) as rig:
        ids = [enqueue(rig).id for _ in range(7)]
        write(rig.client, [failed("failed", at=time.time() - 60)])

        amid = eventually(lambda: found if (found := status(rig, ids[3])) == "pending" else None)

        assert amid.job == "shop.resize"
        assert amid.reason == "according to the journal; not searched: the middle of queue 'mail', where 3 jobs wait"
        # It may be where nobody looked.
        assert status(rig, "failed") == "failed"
