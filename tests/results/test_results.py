"""Results and states of jobs, by workers of every pool, on each broker."""

import asyncio
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from palermo import jobs
from palermo.brokers.features.unique_keys import Keys
from palermo.client import results, status
from palermo.client.handle import Job
from palermo.client.journal_watch import JournalWatch
from palermo.client.status import status_at_end
from palermo.contract.finding import JobLocation
from palermo.core.lifecycle import JobState
from palermo.core.message import Message
from palermo.errors import (
    JobFailed,
    JournalOff,
    LeaderUnavailable,
    NotFound,
    ResultNotKept,
    ResultRefused,
    ResultTimeout,
)
from tests.harness.rig import PROGRAMS, Rig
from tests.helpers import eventually
from tests.history.written import Record, done_by, failed, write

MODULE = "crew_results"


def enqueue(rig: Rig, job: str, *args: Any, **options: Any) -> Job:
    return rig.client.enqueue(f"{MODULE}.{job}", args, {}, **options)


def state(rig: Rig, id: str) -> str:
    return str(rig.client.job_by_id(id).status())


@pytest.mark.slow
def test_the_id_alone_is_enough_to_get_what_the_job_returned(any_rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    rig = any_rig
    rig.worker("-c", "2", "--log-level", "warning", modules=(MODULE,))
    job = enqueue(rig, "add", 1, 2)

    # Without its code its dataclass has nothing to be restored to.
    with pytest.raises(Exception, match=r"crew_results\.Sum"):
        job.result(60)
    monkeypatch.syspath_prepend(str(PROGRAMS))
    monkeypatch.setattr(jobs.registry, "_jobs", dict(jobs.registry._jobs))
    monkeypatch.delitem(sys.modules, MODULE, raising=False)
    crew = __import__(MODULE)
    assert job.result(60) == crew.Sum([1, 2], 3)
    assert rig.client.job_by_id(job.id).result(60) == crew.Sum([1, 2], 3)
    status = job.status()
    assert (status, status.result_kept, status.attempt, status.over) == ("done", True, 1, True)

    assert asyncio.run(enqueue(rig, "add", 3).result_async(60)) == crew.Sum([3], 3)
    assert enqueue(rig, "fails_once", "x").result(60) == 2

    with pytest.raises(JobFailed, match="failed: ValueError: no") as failed:
        enqueue(rig, "raises", "no").result(60)
    assert (failed.value.state, failed.value.error, failed.value.message) == ("failed", "ValueError", "no")
    with pytest.raises(JobFailed, match="was discarded: gone") as discarded:
        enqueue(rig, "discards", "gone").result(60)
    assert discarded.value.state == "discarded"
    with pytest.raises(ResultRefused, match=r"100,002 bytes, but max_result allows 65,536"):
        enqueue(rig, "large", 100_000).result(60)
    with pytest.raises(ResultTimeout, match=r"was seen within 0\.2 s\. .*whether a worker serves its queue"):
        enqueue(rig, "tries_later").result(0.2)

    unkept = enqueue(rig, "unkept", "x", keep_result=False)
    with pytest.raises(ResultNotKept, match="was enqueued without keep_result"):
        unkept.result(60)
    assert unkept.wait(60) == "done"
    assert enqueue(rig, "unkept", "asked", keep_result=True).result(60) == "asked"
    with pytest.raises(NotFound, match="is not waiting, scheduled, running or failed"):
        rig.client.job_by_id("nobody").result(60)
    many = [enqueue(rig, "unkept", number, keep_result=True) for number in range(50)]
    assert [job.result(60) for job in reversed(many)] == list(reversed(range(50)))


def test_a_job_that_one_search_misses_is_waited_for(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    searched, misses = results.locate, iter([False, True])

    async def missed_once(*arguments: Any, **options: Any) -> Any:
        place = await searched(*arguments, **options)
        return JobLocation() if "failed" in options and next(misses, False) else place

    monkeypatch.setattr(results, "_FIRST_PAUSE", 0.01)
    monkeypatch.setattr(results, "locate", missed_once)
    with pytest.raises(ResultTimeout):
        enqueue(rig, "unkept", "x").wait(1)
    assert not next(misses, False)


@pytest.mark.slow
def test_a_failed_job_that_was_requeued_is_waited_for_again(rig: Rig) -> None:
    job = enqueue(rig, "raises", "no")
    rig.burst(modules=(MODULE,))
    with pytest.raises(JobFailed):
        job.result(60)
    eventually(lambda: state(rig, job.id) == "failed" and job.id in rig.errors())
    rig.inspector.failed.requeue(job.id)

    with pytest.raises(ResultTimeout):
        job.result(0.3)
    rig.burst(modules=(MODULE,))
    with pytest.raises(JobFailed, match="ValueError"):
        job.result(60)


def taken(attempt: int) -> JobLocation:
    """The place of a job that a worker has taken, but not reported yet."""
    message = Message(id="moving", queue="mail", job="shop.resize", body=b"", retries=attempt - 1)
    return JobLocation(state=JobState.WORKING, message=message, worker="pid:7@host")


@pytest.mark.parametrize(
    ("record", "place", "error"),
    [
        (failed("moving"), taken(1), JobFailed),
        (failed("moving"), taken(2), ResultTimeout),
        (
            done_by("ann", "give up", ids=["moving"]),
            replace(taken(2), state=JobState.PENDING, worker=None),
            ResultTimeout,
        ),
    ],
)
def test_a_failure_is_the_end_unless_it_was_of_an_earlier_run(
    rig: Rig, monkeypatch: pytest.MonkeyPatch, record: Record, place: JobLocation, error: type[Exception]
) -> None:
    async def located(*_: Any, **__: Any) -> JobLocation:
        return place

    write(rig.client, [record | {"at": time.time()}])
    monkeypatch.setattr(results, "locate", located)

    with pytest.raises(error):
        rig.client.job_by_id("moving").result(2)


def test_a_requeued_job_whose_success_is_not_recorded_is_done(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    looks = [taken(2)]

    async def located(*_: Any, **options: Any) -> JobLocation:
        # Only the repeated searches leave out failed jobs, and only their first one finds it.
        repeated = "failed" in options
        return taken(2) if not repeated else looks.pop() if looks else JobLocation()

    write(rig.client, [failed("moving", at=time.time())])
    monkeypatch.setattr(results, "_FIRST_PAUSE", 0.01)
    monkeypatch.setattr(results, "locate", located)

    assert rig.client.job_by_id("moving").wait(60) == "done"


def test_a_wait_ends_though_its_first_look_saw_the_run_being_settled(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    looked = results.locate
    rig.worker("--log-level", "warning", modules=(MODULE,))
    job = enqueue(rig, "raises_later", str(rig.gate))

    looks: list[Any] = []

    def working() -> bool:
        looks[:] = [rig.client.run(lambda session: looked(session, job.id, job.queue))]
        return looks[0].running is not None

    eventually(working)
    rig.open_gate()
    with pytest.raises(JobFailed):
        job.result(60)

    async def first_while_settling(*arguments: Any, **options: Any) -> Any:
        return looks.pop() if looks else await looked(*arguments, **options)

    monkeypatch.setattr(results, "locate", first_while_settling)
    with pytest.raises(JobFailed, match="ValueError: later"):
        job.result(60)
    assert not looks


def test_a_status_looks_again_before_it_says_that_nothing_is_known(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    async def meanwhile() -> None:
        await asyncio.to_thread(enqueue, rig, "unkept", "x", id="moving")

    monkeypatch.setattr(status, "_wait_for_records", meanwhile)
    assert state(rig, "moving") == "pending"


def test_a_status_spends_its_patience_with_the_journal_once(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    async def slowly(*_: Any) -> None:
        await asyncio.sleep(1.5)

    monkeypatch.setattr(JournalWatch, "find_end", slowly)
    found = rig.client.watch(status.find_status(rig.client, rig.client.job_by_id("nobody"), 2.0))

    assert "The journal was not read in time." in found.reason
    assert found == "unknown"


def test_a_silent_leader_of_keys_hides_no_status(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    async def silent(*_: Any, **__: Any) -> None:
        raise LeaderUnavailable("the leader in keys does not answer")

    monkeypatch.setattr(Keys, "page", silent)

    assert (
        rig.client.job_by_id("nobody")
        .status()
        .reason.endswith("Its key cannot be read: the leader in keys does not answer")
    )


def test_waiting_for_a_job_that_does_not_run_yet_ends_when_it_is_cancelled(rig: Rig) -> None:
    waits = enqueue(rig, "add", 1, keep_result=True)
    scheduled = enqueue(rig, "add", 1, keep_result=True, delay=600)
    told: list[str] = []
    waiting = threading.Thread(target=lambda: told.append(str(scheduled.wait(60))))
    waiting.start()
    # Reading the journal goes on before and after the cancel.
    eventually(lambda: scheduled.id in rig.client.watch(waiters))

    rig.inspector.jobs.cancel([waits.id, scheduled.id])

    waiting.join(60)
    assert told == ["cancelled"]
    assert waits.wait(60) == "cancelled"
    with pytest.raises(JobFailed, match="was cancelled"):
        waits.result(60)


async def waiters(watch: JournalWatch) -> list[str]:
    return list(watch._waiters)


@pytest.mark.parametrize(("pool", "job"), [("process", "tells"), ("thread", "tells"), ("async", "atells")])
def test_what_a_job_reports_is_seen_while_it_runs_and_kept(rig: Rig, pool: str, job: str) -> None:
    rig.worker("--pool", pool, "-c", "2", "--log-level", "warning", modules=(MODULE,))
    begun = enqueue(rig, job, str(rig.gate))
    heard: list[Any] = []

    def told() -> bool:
        rows = [row for worker in rig.workers() for row in worker["jobs"]]
        return [(row["progress"], row["text"], row["line"]) for row in rows] == [(0.25, "one of four", "and waiting")]

    eventually(told)
    status = begun.status()
    assert (status, status.progress, status.text) == ("working", 0.25, "one of four")
    worker = rig.only_worker()
    # A worker has one second for this answer.
    eventually(lambda: rig.inspector.jobs.lines(begun.id, worker["id"]) == ["begun", "and waiting"])

    rig.open_gate()
    ended = status_at_end(rig.client.watch(results.end(rig.client, rig.client.job_by_id(begun.id), 60, heard.append)))

    assert (ended, begun.result(60)) == ("done", "told")
    lines = [record["text"] for record in heard if record["kind"] == "log"]
    assert lines == ["begun", "and waiting", *(f"line {n}" for n in range(998)), lines[-1]]
    assert lines[-1].startswith("more than 1,000 lines")
    progress = [record for record in heard if record["kind"] == "progress"]
    assert (progress[0]["fraction"], progress[-1]["fraction"]) == (0.25, 1.0)
    assert progress[-1]["text"] == "step 1,000 of 1,000"
    # At most one in a second, of a thousand.
    assert len(progress) < 100
    assert heard[-1]["kind"] == "succeeded"


@pytest.mark.slow
def test_a_result_outlasts_a_worker_killed_before_it_acknowledges(any_rig: Rig) -> None:
    rig = any_rig
    brink = rig.path / "brink"
    job = enqueue(rig, "counts", str(rig.notes_path), 7)
    worker = rig.worker(program="brink.py", modules=(MODULE,), BRINK=str(brink))

    eventually(brink.exists)
    assert job.result(60) == 7
    worker.end()

    # No burst: it ends if the broker has not yet taken the job back from the dead.
    rig.worker("--log-level", "warning", modules=(MODULE,))
    eventually(lambda: rig.lines() == ["7", "7"])
    assert rig.client.job_by_id(job.id).result(60) == 7
    assert rig.pending() == 0


def test_with_the_journal_off_jobs_run_and_asking_for_results_says_so(tmp_path: Path) -> None:
    rig = Rig(tmp_path, journal="off")
    job = enqueue(rig, "add", 1)

    log = rig.burst(modules=(MODULE,), PALERMO_JOURNAL="off")

    assert 'result not kept, because the "journal" setting is "off"' in log
    with pytest.raises(JournalOff, match='the "journal" setting is "off"'):
        job.result(1)
    assert job.status().reason.endswith('The "journal" setting is "off", so jobs that have ended are not recorded.')
    rig.close()
