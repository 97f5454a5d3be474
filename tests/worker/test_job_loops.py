"""The event loops in which slots run async jobs, and processes that jobs fork in them."""

import pytest

from tests.worker.site import Site

POOLS = pytest.mark.parametrize("pool", ["process", "thread"])


def burst(site: Site, pool: str, *arguments: str) -> str:
    return site.burst("--pool", pool, "-c", "1", *arguments, modules=("crew_loops",))


@POOLS
def test_what_a_module_keeps_for_async_jobs_works_in_every_job(site: Site, pool: str) -> None:
    for _ in range(3):
        site.enqueue("shares", str(site.notes_path), module="crew_loops")

    burst(site, pool)

    assert site.errors() == {}
    assert site.notes() == ["shared"] * 3


@POOLS
def test_tasks_that_an_async_job_leaves_are_cancelled_and_named(site: Site, pool: str) -> None:
    left = site.enqueue("leaves_a_task", str(site.notes_path), module="crew_loops")
    site.enqueue("shares", str(site.notes_path), module="crew_loops")

    log = burst(site, pool)

    assert site.notes() == ["left", "cleaned up", "shared"]
    (line,) = [line for line in log.splitlines() if "left tasks behind" in line]
    assert all(text in line for text in (f"id={left}", "job=crew_loops.leaves_a_task", "tasks='refresh (lingers)'"))


@POOLS
def test_the_loop_of_async_jobs_is_closed_when_their_slot_ends(site: Site, pool: str) -> None:
    site.enqueue("leaves_a_generator", str(site.notes_path), module="crew_loops")

    burst(site, pool)

    assert site.notes() == ["generator closed"]


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
def test_a_process_that_a_job_forks_and_that_leaves_the_job_is_named(site: Site, pool: str, job: str) -> None:
    site.enqueue(job, str(site.notes_path), module="crew_loops")

    log = burst(site, pool)

    assert site.notes() == ["child exited with 1"]
    assert log.count("a process that a job forked left the job") == 1
    assert "descriptor" not in log
    assert site.errors() == {}
