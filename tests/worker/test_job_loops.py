"""The event loops in which the slots of process and thread pools run async jobs."""

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
