"""Results and states of jobs, by workers of every pool, on both brokers."""

import asyncio
import sys
from pathlib import Path
from typing import Any

import pytest

from palermo import jobs
from palermo.errors import JobFailed, JournalOff, NotFound, ResultNotKept, ResultRefused, ResultTimeout
from palermo.handles import Job
from tests.helpers import eventually
from tests.worker.site import PROGRAMS, Site

MODULE = "crew_results"


def enqueue(site: Site, job: str, *args: Any, **options: Any) -> Job:
    return site.client.enqueue(f"{MODULE}.{job}", args, {}, **options)


def state(site: Site, id: str) -> str:
    return str(site.client.job_by_id(id).status())


def test_whoever_has_the_id_gets_what_the_job_returned(any_site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    site = any_site
    site.start("-c", "2", "--log-level", "warning", modules=(MODULE,))
    job = enqueue(site, "add", 1, 2)

    # Without its code its dataclass has nothing to be restored to.
    with pytest.raises(Exception, match=r"crew_results\.Sum"):
        job.result(20)
    monkeypatch.syspath_prepend(str(PROGRAMS))
    monkeypatch.setattr(jobs.registry, "_jobs", dict(jobs.registry._jobs))
    monkeypatch.delitem(sys.modules, MODULE, raising=False)
    crew = __import__(MODULE)
    assert job.result(20) == crew.Sum([1, 2], 3)
    assert site.client.job_by_id(job.id).result(20) == crew.Sum([1, 2], 3)
    status = job.status()
    assert (status, status.result_kept, status.attempt, status.over) == ("done", True, 1, True)

    assert asyncio.run(enqueue(site, "aadd", 3).result_async(20)) == crew.Sum([3], 3)
    assert enqueue(site, "fails_once", "x").result(20) == 2

    with pytest.raises(JobFailed, match="failed: ValueError: no") as failed:
        enqueue(site, "raises", "no").result(20)
    assert (failed.value.state, failed.value.error, failed.value.message) == ("failed", "ValueError", "no")
    with pytest.raises(JobFailed, match="was discarded: gone") as discarded:
        enqueue(site, "discards", "gone").result(20)
    assert discarded.value.state == "discarded"
    with pytest.raises(ResultRefused, match=r"100,002 bytes and the setting max_result allows 65,536"):
        enqueue(site, "large", 100_000).result(20)
    with pytest.raises(ResultTimeout, match=r"has not ended within 0\.2 s"):
        enqueue(site, "tries_later").result(0.2)

    unkept = enqueue(site, "unkept", "x", keep_result=False)
    with pytest.raises(ResultNotKept, match="was enqueued without keep_result"):
        unkept.result(20)
    assert unkept.wait(20) == "done"
    assert enqueue(site, "unkept", "asked", keep_result=True).result(20) == "asked"
    with pytest.raises(NotFound, match="does not wait in a queue or for its time, does not run"):
        site.client.job_by_id("nobody").result(20)
    many = [enqueue(site, "unkept", number, keep_result=True) for number in range(50)]
    assert [job.result(20) for job in reversed(many)] == list(reversed(range(50)))


def test_a_failed_job_that_was_requeued_is_waited_for_again(any_site: Site) -> None:
    site = any_site
    site.start("--log-level", "warning", modules=(MODULE,))
    job = enqueue(site, "raises", "no")
    with pytest.raises(JobFailed):
        job.result(20)
    eventually(lambda: state(site, job.id) == "failed" and job.id in site.errors())
    site.inspector.pause("jobs")
    site.inspector.requeue(job.id)

    with pytest.raises(ResultTimeout):
        job.result(0.3)

    site.inspector.resume("jobs")
    with pytest.raises(JobFailed, match="ValueError"):
        job.result(20)


@pytest.mark.parametrize(("pool", "job"), [("process", "tells"), ("thread", "tells"), ("async", "atells")])
def test_what_a_job_tells_is_seen_while_it_runs_and_kept(site: Site, pool: str, job: str) -> None:
    from palermo import results

    site.start("--pool", pool, "-c", "2", "--log-level", "warning", modules=(MODULE,))
    begun = enqueue(site, job, str(site.gate))
    heard: list[Any] = []

    def told() -> bool:
        (row,) = [row for worker in site.workers() for row in worker["jobs"]]
        return (row["progress"], row["text"], row["line"]) == (0.25, "one of four", "and waiting")

    eventually(lambda: site.workers() and site.workers()[0]["jobs"] and told())
    status = begun.status()
    assert (status, status.progress, status.text) == ("working", 0.25, "one of four")
    (worker,) = site.workers()
    assert site.inspector.lines(begun.id, worker["id"]) == ["begun", "and waiting"]

    site.open_gate()
    ended = results.wait(site.client, site.client.job_by_id(begun.id), 20, heard.append)

    assert ended == "done"
    lines = [record["text"] for record in heard if record["kind"] == "log"]
    assert lines == ["begun", "and waiting", *(f"line {n}" for n in range(998)), lines[-1]]
    assert lines[-1].startswith("more than 1,000 lines")
    progress = [record for record in heard if record["kind"] == "progress"]
    assert (progress[0]["fraction"], progress[-1]["fraction"]) == (0.25, 1.0)
    assert progress[-1]["text"] == "step 1,000 of 1,000"
    assert len(progress) < 10
    assert heard[-1]["kind"] == "succeeded"


def test_results_come_from_every_pool(site: Site) -> None:
    for pool in ("thread", "async"):
        kept = [enqueue(site, job, n, keep_result=True) for n in range(20) for job in ("unkept", "large")]
        site.burst("--pool", pool, "-c", "4", modules=(MODULE,))

        assert [job.result(20) for job in kept] == [value for n in range(20) for value in (n, "x" * n)]


def test_a_worker_killed_between_result_and_acknowledgement_runs_it_again_and_the_result_stays(any_site: Site) -> None:
    site = any_site
    brink = site.path / "brink"
    job = enqueue(site, "counts", str(site.notes_path), 7)
    command = [sys.executable, str(PROGRAMS / "brink.py"), "worker", MODULE]
    worker = site.run(command, BRINK=str(brink))

    eventually(brink.exists, within=20)
    assert job.result(20) == 7
    worker.end()

    site.burst("--log-level", "warning", modules=(MODULE,))
    assert site.notes() == ["7", "7"]
    assert site.client.job_by_id(job.id).result(20) == 7
    assert site.pending() == 0


def test_no_job_is_acknowledged_without_its_result_whenever_workers_die(any_site: Site) -> None:
    site = any_site
    kept = [enqueue(site, "counts", str(site.notes_path), number) for number in range(120)]
    for part in (20, 50, 80):
        worker = site.start("-c", "4", "--log-level", "error", modules=(MODULE,))
        eventually(lambda part=part: len(set(site.notes())) >= part, within=30, every=0.001)  # type: ignore[misc]
        worker.end()

    site.burst("-c", "4", "--log-level", "error", modules=(MODULE,))

    assert [job.result(20) for job in kept] == list(range(120))


def test_with_the_journal_off_jobs_run_and_whoever_asks_is_told(tmp_path: Path) -> None:
    site = Site(tmp_path, journal="off")
    job = enqueue(site, "add", 1)

    log = site.burst(modules=(MODULE,), PALERMO_JOURNAL="off")

    assert "results are not kept: the setting journal is off" in log
    with pytest.raises(JournalOff, match="the setting journal is off"):
        job.result(1)
    assert job.status().reason.endswith("The setting journal is off, so nothing tells of jobs that have ended.")
    site.close()
