"""Retries as users have them: worker processes, every pool, every broker."""

from collections import Counter
from itertools import pairwise

import pytest

from tests.helpers import Stopwatch, eventually
from tests.scale import scaled
from tests.worker.site import Site

MODULE = "crew_retries"

#: So many that fail.
JOBS = scaled(120, 1_000)

#: Pools, each with what its jobs' names begin with: "a" for coroutines.
POOLS = pytest.mark.parametrize(("pool", "a"), [("process", ""), ("thread", ""), ("async", "a"), ("async", "")])
EACH = pytest.mark.parametrize("pool", ["process", "thread", "async"])


def enqueue(site: Site, job: str, *args: object, **options: object) -> str:
    return site.enqueue(job, *args, module=MODULE, **options)


def burst(site: Site, pool: str, *arguments: str) -> str:
    return site.burst("--pool", pool, *arguments, modules=(MODULE,))


def attempts(site: Site, id: str) -> list[tuple[int, str, str]]:
    return [(one["attempt"], one["class"], one["message"]) for one in site.inspector.failed_job(id)["attempts"]]


@POOLS
def test_a_job_with_three_retries_runs_four_times_and_then_is_exhausted_once(any_site: Site, pool: str, a: str) -> None:
    site = any_site
    id = enqueue(site, f"{a}fails", str(site.notes_path), "x")

    log = burst(site, pool)

    assert site.notes() == ["x 1", "x 2", "x 3", "x 4", "x exhausted by x in try 4"]
    assert attempts(site, id) == [(number, "ValueError", f"x in try {number}") for number in (1, 2, 3, 4)]
    assert site.inspector.failed_job(id)["retries"] == 3
    assert log.count("retry_in=0.0") == 3
    assert f"job failed id={id} job={MODULE}.{a}fails queue=jobs attempt=4" in log


def test_k1_many_failing_jobs_run_exactly_four_times_each(any_site: Site) -> None:
    site = any_site
    names = [str(number) for number in range(JOBS)]
    calls = (("crew_retries.fails", (str(site.notes_path), name), {}) for name in names)
    site.client.enqueue_many(calls)

    site.burst("-c", "4", "--log-level", "error", modules=(MODULE,))

    counted = Counter(site.notes())
    wanted = {f"{name} {number}" for name in names for number in (1, 2, 3, 4)}
    assert counted == Counter(wanted | {f"{name} exhausted by {name} in try 4" for name in names})
    rows = list(site.inspector.failed(limit=2_000))
    assert len(rows) == JOBS
    assert {tuple(one["attempt"] for one in row["attempts"]) for row in rows} == {(1, 2, 3, 4)}


@EACH
def test_a_crash_is_a_failed_try(any_site: Site, pool: str) -> None:
    site = any_site
    id = enqueue(site, "crashes", str(site.notes_path))

    burst(site, pool)

    assert site.notes() == ["crashes 1", "crashes 2", "crashes 3"]
    assert [(number, name) for number, name, _ in attempts(site, id)] == [
        (number, "palermo.errors.JobCrashed") for number in (1, 2, 3)
    ]


@EACH
def test_a_job_killed_for_its_timeout_is_retried(site: Site, pool: str) -> None:
    id = enqueue(site, "overruns", str(site.notes_path))

    burst(site, pool, "--timeout-grace", "0.3")

    assert site.notes() == ["overruns 1", "overruns 2"]
    assert [name for _, name, _ in attempts(site, id)] == ["palermo.errors.JobTimeout"] * 2


@POOLS
def test_a_job_may_snooze_ten_times_and_its_attempt_stays(site: Site, pool: str, a: str) -> None:
    site.notes_path.touch()
    enqueue(site, f"{a}snoozes", str(site.notes_path), 10)

    log = burst(site, pool)

    assert site.notes() == ["snoozes 1"] * 11
    assert log.count("job snoozed") == 10
    assert site.errors() == {}
    assert site.pending() == 0


@EACH
def test_a_job_discarded_leaves_a_line_in_the_log(site: Site, pool: str) -> None:
    itself = enqueue(site, "discards", "itself")
    by_policy = enqueue(site, "discards", "raises")

    log = burst(site, pool)

    assert f"job discarded id={itself} job={MODULE}.discards queue=jobs attempt=1 slot=1 reason='user is gone'" in log
    assert f"job discarded id={by_policy}" in log
    assert "reason=\"KeyError: 'gone'\"" in log
    assert site.errors() == {}
    assert site.pending() == 0


def test_a_job_may_ask_for_retries_and_gets_25(site: Site) -> None:
    id = enqueue(site, "asks", str(site.notes_path))

    burst(site, "process")

    assert site.notes() == [f"asks {number}" for number in range(1, 27)]
    assert site.errors() == {id: ("palermo.Retry", "not there yet")}


def test_one_enqueue_may_ask_for_another_number(site: Site) -> None:
    id = enqueue(site, "fails", str(site.notes_path), "x", retries=1)

    burst(site, "process")

    assert site.notes() == ["x 1", "x 2", "x exhausted by x in try 2"]
    assert site.inspector.failed_job(id)["retries"] == 1


def test_l5_a_retry_is_never_early_and_not_late(any_site: Site) -> None:
    site = any_site
    enqueue(site, "recovers", str(site.notes_path))
    watch = Stopwatch()

    worker = site.start(modules=(MODULE,))

    lines = eventually(lambda: found if len(found := site.notes()) == 3 else [])
    ran = [float(line.split()[2]) for line in lines]
    assert [line.split()[:2] for line in lines] == [["recovers", "1"], ["recovers", "2"], ["recovers", "3"]]
    assert "retry_in=0.2" in worker.log
    pauses = [after - before for before, after in pairwise(ran)]
    assert min(pauses) >= 0.2
    # Only the shorter one: the machine may stand still in the other.
    assert min(pauses) < 1.2 + watch.stalled()


def test_a_requeue_by_hand_gives_all_retries_again_and_keeps_the_earlier_errors(any_site: Site) -> None:
    site = any_site
    id = enqueue(site, "fails", str(site.notes_path), "x")
    burst(site, "process")

    site.inspector.requeue(id)
    burst(site, "process")

    assert [note for note in site.notes() if "exhausted" not in note] == [f"x {number}" for number in range(1, 9)]
    assert [number for number, _, _ in attempts(site, id)] == list(range(1, 9))


def test_a_worker_counts_failed_runs(site: Site) -> None:
    enqueue(site, "fails", str(site.notes_path), "x")

    worker = site.start(modules=(MODULE,))

    eventually(lambda: site.errors())
    eventually(lambda: [(row["processed"], row["failed"]) for row in site.workers()] == [(4, 4)])
    assert worker.alive
