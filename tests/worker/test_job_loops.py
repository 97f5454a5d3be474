"""The event loops in which slots run async jobs, and processes that jobs fork in them."""

import pytest

from tests.harness.rig import Rig

POOLS = pytest.mark.parametrize("pool", ["process", "thread"])


def burst(rig: Rig, pool: str, *arguments: str) -> str:
    return rig.burst("--pool", pool, "-c", "1", *arguments, modules=("crew_loops",))


@POOLS
def test_what_a_module_keeps_for_async_jobs_works_in_every_job(rig: Rig, pool: str) -> None:
    for _ in range(3):
        rig.enqueue("shares", str(rig.notes_path), module="crew_loops")

    burst(rig, pool)

    assert rig.errors() == {}
    assert rig.lines() == ["shared"] * 3


@POOLS
def test_tasks_that_an_async_job_leaves_are_cancelled_and_named(rig: Rig, pool: str) -> None:
    left = rig.enqueue("leaves_a_task", str(rig.notes_path), module="crew_loops")
    rig.enqueue("shares", str(rig.notes_path), module="crew_loops")

    log = burst(rig, pool)

    assert rig.lines() == ["left", "cleaned up", "shared"]
    (line,) = [line for line in log.splitlines() if "left tasks behind" in line]
    assert all(text in line for text in (f"id={left}", "job=crew_loops.leaves_a_task", "tasks='refresh (lingers)'"))


@POOLS
def test_the_loop_of_async_jobs_is_closed_when_their_slot_ends(rig: Rig, pool: str) -> None:
    rig.enqueue("leaves_a_generator", str(rig.notes_path), module="crew_loops")

    burst(rig, pool)

    assert rig.lines() == ["generator closed"]


@pytest.mark.parametrize(
    ("pool", "job"),
    [
        ("process", "forks"),
        ("process", "aforks"),
        ("process", "forks_and_fails"),
        ("thread", "forks"),
        ("async", "forks"),
        ("async", "aforks"),
    ],
)
def test_a_process_that_a_job_forks_and_that_leaves_the_job_is_named(rig: Rig, pool: str, job: str) -> None:
    rig.enqueue(job, str(rig.notes_path), module="crew_loops")

    log = burst(rig, pool)

    assert rig.lines() == ["child exited with 1"]
    assert log.count("a process that a job forked left the job") == 1
    assert "descriptor" not in log
    assert rig.errors() == {}
