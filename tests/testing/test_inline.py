"""Inline mode: an enqueue runs the job at once, by the same code."""

import asyncio
from unittest.mock import ANY

import pytest

from palermo.testing import Palermo
from tests.testing import jobs
from tests.testing.jobs import Broken, ran

pytestmark = pytest.mark.palermo(inline=True)


def test_an_enqueue_runs_what_is_due_at_once_while_inline_is_on(palermo: Palermo) -> None:
    job = jobs.add.enqueue(1)

    assert ran == [(1, 2)]
    assert job.status() == "done"
    palermo.refute_enqueued()
    assert jobs.kept.enqueue(2).result(timeout=30) == 4

    palermo.inline = False
    jobs.add.enqueue(1)
    palermo.inline = True
    jobs.add.enqueue_many([(1,), (2,)])
    palermo.publish("test.done", 3)
    assert ran == [(1, 2), *[(1, 2)] * 2, (2, 2), ("heard", 3)]
    ran.clear()
    jobs.outer.enqueue(1)
    assert ran == ["outer 1 begins", "outer 0 begins", "outer 0 ends", "outer 1 ends"], "a job runs inside of another"


def test_an_inner_error_is_raised_in_the_test_and_not_in_the_outer_job(palermo: Palermo) -> None:
    with pytest.raises(Broken):
        jobs.outer_of_broken.enqueue()

    assert ran == ["broken", "outer goes on"]
    assert [one.job for one in palermo.failures] == ["tests.testing.jobs.broken"]


def test_retries_and_delayed_jobs_wait_for_their_time(palermo: Palermo) -> None:
    palermo.raise_failures = False
    jobs.retried.enqueue(1)
    jobs.add.enqueue_in(60, 1)

    assert ran == [1]
    palermo.assert_enqueued(jobs.retried)
    palermo.clock.advance(61)
    palermo.work()
    assert ran == [1, 2, (1, 2)]


def test_a_unique_key_is_free_after_the_run_and_a_limit_holds_during_it(palermo: Palermo) -> None:
    jobs.limited.enqueue(1)
    assert ran == ["limited 1 begins", "limited 1 ends", "limited 0 begins", "limited 0 ends"]

    assert jobs.unique.enqueue("a")
    assert jobs.unique.enqueue("a")
    assert ran[4:] == ["a", "a"]
    palermo.inline = False
    assert jobs.unique.enqueue("a")
    assert not jobs.unique.enqueue("a")


async def test_an_asyncio_test(palermo: Palermo) -> None:
    jobs.loops.clear()
    await jobs.in_loop.enqueue_async()
    assert jobs.loops == [asyncio.get_running_loop()]
    jobs.coroutine.enqueue("not awaited")

    assert ran == [("not awaited", ANY)]
