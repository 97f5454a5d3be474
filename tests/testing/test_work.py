"""`work` and `work_until_idle`: what runs, where it runs, and what is raised."""

import asyncio
import threading
import traceback
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from msgspec.structs import replace

import palermo as module
from palermo.errors import JobFailed, UsageError
from palermo.testing import Palermo
from tests.helpers import eventually
from tests.testing import jobs
from tests.testing.jobs import Broken, ran


def test_work_runs_what_is_due_and_until_idle_what_follows(palermo: Palermo, monkeypatch: pytest.MonkeyPatch) -> None:
    jobs.outer.enqueue(2)
    jobs.add.enqueue(1)

    assert palermo.work() == 2
    assert ran == ["outer 2 begins", "outer 2 ends", (1, 2)]
    assert palermo.work() == 1
    assert palermo.work() == 1
    assert palermo.work() == 0
    jobs.outer.enqueue(3)
    assert palermo.work_until_idle() == 4
    palermo.refute_enqueued()
    jobs.mail.enqueue("a")
    jobs.add.enqueue(1)
    assert palermo.work("mail") == 1
    assert ran[-1] == "a"
    palermo.assert_enqueued(jobs.add)
    monkeypatch.setattr("palermo.testing.palermo.MAX_ROUNDS", 5)
    jobs.endless.enqueue()
    with pytest.raises(UsageError, match="endlessly"):
        palermo.work_until_idle()


def test_the_error_of_a_job_is_raised_with_the_traceback_of_the_job(palermo: Palermo) -> None:
    job = jobs.broken.enqueue()

    with pytest.raises(Broken, match="it broke") as caught:
        palermo.work()

    names = [frame.name for frame in traceback.extract_tb(caught.value.__traceback__)]
    assert names[-2:] == ["broken", "break_down"]
    assert not [name for name in names if name in ("_steps", "call")]
    told = f"Raised by job tests.testing.jobs.broken {job.id} in run 1; it is in the failed queue."
    assert caught.value.__notes__ == [told]
    assert job.status() == "failed"
    assert palermo.work() == 0, "an error is raised once"

    jobs.retried.enqueue(1)
    with pytest.raises(Broken, match="run 1"):
        palermo.work_until_idle()
    assert palermo.work_until_idle() == 0
    assert palermo.assert_enqueued(jobs.retried, 1).attempt == 2


def test_all_jobs_run_before_the_errors_of_several_are_raised_together(palermo: Palermo) -> None:
    jobs.broken.enqueue()
    jobs.add.enqueue(1)
    jobs.broken.enqueue()

    with pytest.raises(BaseExceptionGroup) as caught:
        palermo.work()

    assert [type(error) for error in caught.value.exceptions] == [Broken, Broken]
    assert ran == ["broken", (1, 2), "broken"]


def test_errors_are_collected_if_the_test_says_so(palermo: Palermo) -> None:
    palermo.raise_failures = False
    job = jobs.retried.enqueue()

    for _ in range(3):
        assert palermo.work_until_idle() == 1
        palermo.clock.advance(61)

    assert [(one.id, one.attempt, one.retry_in, str(one.error)) for one in palermo.failures] == [
        (job.id, 1, 60.0, "run 1"),
        (job.id, 2, 60.0, "run 2"),
        (job.id, 3, None, "run 3"),
    ]
    assert [one.will_retry for one in palermo.failures] == [True, True, False]
    assert job.status() == "failed"
    ran.clear()
    jobs.interrupted.enqueue()
    jobs.add.enqueue(1)
    with pytest.raises(KeyboardInterrupt):  # Ctrl-C ends the test at once
        palermo.work()
    assert ran == []


def test_a_job_that_fails_without_a_run_is_a_failure_too(palermo: Palermo) -> None:
    jobs.unique.enqueue_in(60, "a")
    (holder,) = palermo.enqueued()
    stranger = replace(holder.message, id="stranger", run_at=None)
    palermo.client.run(lambda broker: broker.publish(stranger))

    with pytest.raises(JobFailed, match=r"job stranger didn't run: .*DuplicateJob"):
        palermo.work()

    assert [one.id for one in palermo.failures] == ["stranger"]
    assert ran == []


def test_a_running_job_is_cancelled(palermo: Palermo) -> None:
    job = jobs.turns.enqueue()

    def cancel() -> None:
        eventually(lambda: ran)
        palermo.inspector().jobs.cancel(job.id)

    with ThreadPoolExecutor(1) as thread:
        thread.submit(cancel)
        assert palermo.work() == 1

    assert ran == ["turning", "turned"]
    assert job.status() == "cancelled"


@pytest.mark.parametrize("in_loop", [False, True])
def test_jobs_run_in_the_thread_of_the_test(palermo: Palermo, in_loop: bool) -> None:
    async def work() -> int:
        return palermo.work()

    jobs.where.enqueue()
    jobs.coroutine.enqueue("a")

    assert (asyncio.run(work()) if in_loop else palermo.work()) == 2

    # A loop that runs takes no second one in its thread.
    here = threading.current_thread().name
    assert ran == [here, ("a", "palermo-testing-job" if in_loop else here)]


async def test_work_in_an_asyncio_test(palermo: Palermo) -> None:
    here = asyncio.get_running_loop()
    jobs.loops.clear()
    await jobs.in_loop.enqueue_async()
    await jobs.add.enqueue_async(1)

    assert await palermo.work_async() == 2
    assert jobs.loops == [here]
    await jobs.outer.enqueue_async(1)
    assert await palermo.work_until_idle_async() == 2
    await jobs.broken.enqueue_async()
    with pytest.raises(Broken):
        await palermo.work_async()


def test_several_threads_may_work(palermo: Palermo) -> None:
    for number in range(20):
        jobs.add.enqueue(number)

    with ThreadPoolExecutor(3) as threads:
        list(threads.map(lambda _: palermo.work_until_idle(), range(3)))

    assert sorted(ran) == [(number, 2) for number in range(20)]


def test_the_default_client_is_lent_and_comes_back(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module.client.client, "_default", None)
    before = module.connect("sqlite:///:memory:")
    try:
        with Palermo() as palermo:
            assert jobs.add.enqueue(1)
            assert module.connect("amqp://elsewhere.example") is palermo.client
            with Palermo() as second:  # each has a broker of its own
                second.refute_enqueued()
                jobs.add.enqueue(2)
            palermo.assert_enqueued(jobs.add, 1)
            palermo.refute_enqueued(jobs.add, 2)

        assert module.client.client.default_client() is before
        assert before.enqueue(jobs.add.definition, (1,))
    finally:
        before.close()


def test_settings_hold(palermo: Palermo) -> None:
    options: dict[str, Any] = {"default_queue": "ours", "failed_per_queue": True, "serializer": "pickle"}
    for accept, runs in (((), 0), (("pickle",), 1)):
        ran.clear()
        with Palermo(accept=accept, raise_failures=False, **options) as other:
            jobs.broken.enqueue()
            other.work()
            assert [row["queue"] for row in other.inspector().failed.list()] == ["ours"]
        assert len(ran) == runs
