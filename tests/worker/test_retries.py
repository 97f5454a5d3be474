"""Retries as users have them: worker processes, every pool, every broker."""

from collections import Counter

import pytest

from tests.harness.rig import Rig
from tests.scale import scaled

MODULE = "crew_retries"

#: So many that fail.
JOBS = scaled(60, 1_000)

#: Pools, each with what its jobs' names begin with: "a" for coroutines.
POOLS = pytest.mark.parametrize(("pool", "a"), [("process", ""), ("thread", ""), ("async", "a")])


def enqueue(rig: Rig, job: str, *args: object, **options: object) -> str:
    return rig.enqueue(job, *args, module=MODULE, **options)


def burst(rig: Rig, pool: str, *arguments: str) -> str:
    return rig.burst("--pool", pool, *arguments, modules=(MODULE,))


def attempts(rig: Rig, id: str) -> list[tuple[int, str, str]]:
    return [(one["attempt"], one["class"], one["message"]) for one in rig.inspector.failed.show(id)["attempts"]]


@POOLS
def test_a_job_with_three_retries_runs_four_times(rig: Rig, pool: str, a: str) -> None:
    id = enqueue(rig, f"{a}fails", str(rig.notes_path), "x")

    log = burst(rig, pool)

    assert rig.lines() == ["x 1", "x 2", "x 3", "x 4", "x exhausted by x in try 4"]
    assert attempts(rig, id) == [(number, "ValueError", f"x in try {number}") for number in (1, 2, 3, 4)]
    assert rig.inspector.failed.show(id)["retries"] == 3
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
    rows = list(rig.inspector.failed.list(limit=2_000))
    assert len(rows) == JOBS
    assert {tuple(one["attempt"] for one in row["attempts"]) for row in rows} == {(1, 2, 3, 4)}


def test_a_job_may_snooze_ten_times_and_its_attempt_stays(rig: Rig) -> None:
    rig.notes_path.touch()
    enqueue(rig, "snoozes", str(rig.notes_path), 10)
    discarded = enqueue(rig, "discards", "itself")

    log = burst(rig, "process")

    assert rig.lines() == ["snoozes 1"] * 11
    assert log.count("job snoozed") == 10
    assert (
        f"job discarded id={discarded} job={MODULE}.discards queue=jobs attempt=1 slot=1 reason='user is gone'" in log
    )
    assert (rig.errors(), rig.pending()) == ({}, 0)
