"""Retries as users have them: worker processes, every pool, every broker."""

from collections import Counter
from itertools import pairwise

import pytest

from tests.harness.rig import Rig
from tests.helpers import Stopwatch, eventually
from tests.scale import scaled

MODULE = "crew_retries"

#: So many that fail.
JOBS = scaled(120, 1_000)

#: Pools, each with what its jobs' names begin with: "a" for coroutines.
POOLS = pytest.mark.parametrize(("pool", "a"), [("process", ""), ("thread", ""), ("async", "a"), ("async", "")])
EACH = pytest.mark.parametrize("pool", ["process", "thread", "async"])


def enqueue(rig: Rig, job: str, *args: object, **options: object) -> str:
    return rig.enqueue(job, *args, module=MODULE, **options)


def burst(rig: Rig, pool: str, *arguments: str) -> str:
    return rig.burst("--pool", pool, *arguments, modules=(MODULE,))


def attempts(rig: Rig, id: str) -> list[tuple[int, str, str]]:
    return [(one["attempt"], one["class"], one["message"]) for one in rig.inspector.failed_job(id)["attempts"]]


@POOLS
def test_a_job_with_three_retries_runs_four_times(rig: Rig, pool: str, a: str) -> None:
    id = enqueue(rig, f"{a}fails", str(rig.notes_path), "x")

    log = burst(rig, pool)

    assert rig.lines() == ["x 1", "x 2", "x 3", "x 4", "x exhausted by x in try 4"]
    assert attempts(rig, id) == [(number, "ValueError", f"x in try {number}") for number in (1, 2, 3, 4)]
    assert rig.inspector.failed_job(id)["retries"] == 3
    assert log.count("retry_in=0.0") == 3
    assert f"job failed id={id} job={MODULE}.{a}fails queue=jobs attempt=4" in log


def test_many_failing_jobs_run_exactly_four_times_each(any_rig: Rig) -> None:
    rig = any_rig
    names = [str(number) for number in range(JOBS)]
    calls = (("crew_retries.fails", (str(rig.notes_path), name), {}) for name in names)
    rig.client.enqueue_many(calls)

    rig.burst("-c", "4", "--log-level", "error", modules=(MODULE,))

    counted = Counter(rig.lines())
    wanted = {f"{name} {number}" for name in names for number in (1, 2, 3, 4)}
    assert counted == Counter(wanted | {f"{name} exhausted by {name} in try 4" for name in names})
    rows = list(rig.inspector.failed(limit=2_000))
    assert len(rows) == JOBS
    assert {tuple(one["attempt"] for one in row["attempts"]) for row in rows} == {(1, 2, 3, 4)}


@EACH
def test_a_crash_is_a_failed_try(rig: Rig, pool: str) -> None:
    id = enqueue(rig, "crashes", str(rig.notes_path))

    burst(rig, pool)

    assert rig.lines() == ["crashes 1", "crashes 2", "crashes 3"]
    assert [(number, name) for number, name, _ in attempts(rig, id)] == [
        (number, "palermo.errors.JobCrashed") for number in (1, 2, 3)
    ]


@POOLS
def test_a_job_may_snooze_ten_times_and_its_attempt_stays(rig: Rig, pool: str, a: str) -> None:
    rig.notes_path.touch()
    enqueue(rig, f"{a}snoozes", str(rig.notes_path), 10)

    log = burst(rig, pool)

    assert rig.lines() == ["snoozes 1"] * 11
    assert log.count("job snoozed") == 10
    assert rig.errors() == {}
    assert rig.pending() == 0


def test_a_job_discarded_leaves_a_line_in_the_log(rig: Rig) -> None:
    itself = enqueue(rig, "discards", "itself")
    by_policy = enqueue(rig, "discards", "raises")

    log = burst(rig, "process")

    assert f"job discarded id={itself} job={MODULE}.discards queue=jobs attempt=1 slot=1 reason='user is gone'" in log
    assert f"job discarded id={by_policy}" in log
    assert "reason=\"KeyError: 'gone'\"" in log
    assert (rig.errors(), rig.pending()) == ({}, 0)


def test_a_retry_is_never_early_and_not_late(any_rig: Rig) -> None:
    rig = any_rig
    enqueue(rig, "recovers", str(rig.notes_path))
    watch = Stopwatch()

    worker = rig.worker(modules=(MODULE,))

    lines = eventually(lambda: found if len(found := rig.lines()) == 3 else [])
    ran = [float(line.split()[2]) for line in lines]
    assert [line.split()[:2] for line in lines] == [["recovers", "1"], ["recovers", "2"], ["recovers", "3"]]
    assert "retry_in=0.2" in worker.log
    pauses = [after - before for before, after in pairwise(ran)]
    assert min(pauses) >= 0.2
    # Only the shorter one: the machine may stand still in the other.
    assert min(pauses) < 1.2 + watch.stalled()
    eventually(lambda: [(row["processed"], row["failed"]) for row in rig.workers()] == [(3, 2)])


def test_a_requeue_gives_all_retries_again_and_keeps_the_earlier_errors(any_rig: Rig) -> None:
    rig = any_rig
    id = enqueue(rig, "fails", str(rig.notes_path), "x")
    burst(rig, "process")

    rig.inspector.requeue(id)
    burst(rig, "process")

    assert [note for note in rig.lines() if "exhausted" not in note] == [f"x {number}" for number in range(1, 9)]
    assert [number for number, _, _ in attempts(rig, id)] == list(range(1, 9))
