"""The event loops in which slots run async jobs, and processes that jobs fork in them."""

import pytest

from tests.harness.rig import Rig

MODULE = "crew_loops"


@pytest.mark.parametrize("pool", ["process", "thread"])
def test_async_jobs_of_a_slot_share_a_loop_that_is_left_clean(rig: Rig, pool: str) -> None:
    jobs = ("shares", "shares", "leaves_a_task", "shares", "leaves_a_generator")
    ids = [rig.enqueue(job, str(rig.notes_path)) for job in jobs]

    log = rig.burst("--pool", pool, "-c", "1")

    assert rig.errors() == {}
    assert rig.lines() == ["shared", "shared", "left", "cleaned up", "shared", "generator closed"]
    (line,) = [line for line in log.splitlines() if "tasks that the job left behind" in line]
    assert all(text in line for text in (f"id={ids[2]}", "job=crew_loops.leaves_a_task", "tasks='refresh (lingers)'"))


@pytest.mark.parametrize(
    ("pool", "job"), [("process", "aforks"), ("process", "forks_and_fails"), ("thread", "forks"), ("async", "aforks")]
)
def test_a_process_that_a_job_forks_and_that_leaves_the_job_is_named(rig: Rig, pool: str, job: str) -> None:
    rig.enqueue(job, str(rig.notes_path))

    log = rig.burst("--pool", pool, "-c", "1")

    assert rig.lines() == ["child exited with 1"]
    assert log.count("process forked by a job returned from the job") == 1
    assert "descriptor" not in log
    assert rig.errors() == {}
