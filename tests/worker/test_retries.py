"""Retries as users have them: worker processes, every pool, every broker."""

from collections import Counter

import pytest

from tests.brokers import BROKERS
from tests.harness.rig import Rig
from tests.scale import scaled

MODULE = "crew_retries"

#: So many that fail.
JOBS = scaled(60, 1_000)


def attempts(rig: Rig, id: str) -> list[tuple[int, str, str]]:
    return [(one["attempt"], one["class"], one["message"]) for one in rig.inspector.failed.show(id)["attempts"]]


#: Brokers and pools, each with what the jobs' names begin with: "a" for coroutines.
@pytest.mark.slow
@pytest.mark.parametrize(
    ("any_rig", "pool", "a"),
    [*((broker, "process", "") for broker in BROKERS), ("sqlite", "thread", ""), ("sqlite", "async", "a")],
    indirect=["any_rig"],
)
def test_failing_jobs_with_three_retries_run_exactly_four_times_each(any_rig: Rig, pool: str, a: str) -> None:
    rig = any_rig
    names = [str(number) for number in range(JOBS)]
    jobs = rig.client.enqueue_many([(f"{MODULE}.{a}fails", (str(rig.notes_path), name), {}) for name in names])

    log = rig.burst("--pool", pool, "-c", "4")

    counted = Counter(rig.lines())
    wanted = {f"{name} {number}" for name in names for number in (1, 2, 3, 4)}
    assert counted == Counter(wanted | {f"{name} exhausted by {name} in try 4" for name in names})
    rows = list(rig.inspector.failed.list(limit=2_000))
    assert [(row["retries"], len(row["attempts"])) for row in rows] == [(3, 4)] * JOBS
    assert attempts(rig, jobs[7].id) == [(number, "ValueError", f"7 in try {number}") for number in (1, 2, 3, 4)]
    assert log.count("retry_in=0.0") == 3 * JOBS
    assert f"job failed id={jobs[7].id} job={MODULE}.{a}fails queue=jobs attempt=4" in log


def test_a_job_may_snooze_ten_times_and_its_attempt_stays(rig: Rig) -> None:
    rig.notes_path.touch()
    rig.enqueue("snoozes", str(rig.notes_path), 10)
    discarded = rig.enqueue("discards", "itself")

    log = rig.burst()

    assert rig.lines() == ["snoozes 1"] * 11
    assert log.count("job snoozed") == 10
    assert (
        f"job discarded id={discarded} job={MODULE}.discards queue=jobs attempt=1 slot=1 reason='user is gone'" in log
    )
    assert (rig.errors(), rig.pending()) == ({}, 0)
