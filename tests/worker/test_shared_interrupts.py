"""Interrupts for one job of several in a process."""

import asyncio
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest

from palermo.core.lifecycle import Cancelled, Interrupted, Raised, Succeeded
from palermo.errors import JobCancelled, JobError, JobTerminated, JobTimeout
from palermo.worker.child.interrupts import SharedInterrupts
from tests.helpers import eventually
from tests.worker.bench import Bench


@pytest.fixture
def interrupts() -> SharedInterrupts:
    return SharedInterrupts()


@pytest.fixture
def bench(interrupts: SharedInterrupts) -> Bench:
    bench = Bench()
    bench.interrupts = interrupts
    interrupts.begin()
    return bench


def in_thread(run: Callable[[], Any]) -> tuple[threading.Thread, list[Any]]:
    results: list[Any] = []
    thread = threading.Thread(target=lambda: results.append(run()))
    thread.start()
    return thread, results


@pytest.mark.parametrize(
    ("error", "result"),
    [(JobTerminated("end"), Interrupted), (JobCancelled("end"), Cancelled), (JobTimeout("end"), Raised)],
    ids=["terminated", "cancelled", "timeout"],
)
def test_a_job_in_a_thread_is_told_and_comes_back_as_what_it_was_told(
    bench: Bench, interrupts: SharedInterrupts, error: JobError, result: type
) -> None:
    def job() -> None:
        try:
            bench.seen.append("runs")
            while True:
                time.sleep(0.001)
        except JobError as told:
            bench.seen.append(str(told))
            raise

    bench.job(job)
    thread, results = in_thread(bench.run)
    eventually(lambda: bench.seen == ["runs"])

    interrupts.interrupt(error)

    thread.join(60)
    assert [type(each) for each in results] == [result]
    assert bench.seen == ["runs", "end"]
    if isinstance(results[0], Raised):
        failure = results[0].failure
        assert (failure.exception_class, failure.message) == ("palermo.errors.JobTimeout", "end")


def test_what_is_told_before_the_job_begins_is_raised_when_it_does(bench: Bench, interrupts: SharedInterrupts) -> None:
    bench.job(lambda: bench.seen.append("ran"))
    interrupts.interrupt(JobTimeout("too long"))

    assert bench.failure().message == "too long"
    assert bench.seen == []


def test_what_is_told_after_the_job_has_ended_harms_no_other(bench: Bench, interrupts: SharedInterrupts) -> None:
    bench.job(lambda: None)
    assert bench.run() == Succeeded()

    interrupts.interrupt(JobTimeout("too long"))
    interrupts.begin()

    assert bench.run() == Succeeded()


def test_telling_jobs_that_are_about_to_end_never_escapes_them(bench: Bench, interrupts: SharedInterrupts) -> None:
    bench.job(lambda: time.sleep(0))
    stop = threading.Event()

    def interrupt() -> None:
        while not stop.is_set():
            interrupts.interrupt(JobTimeout("too long"))
            time.sleep(0.0001)  # so that the job gets its turn

    teller = threading.Thread(target=interrupt)
    teller.start()
    results = set()
    try:
        for _ in range(100):
            interrupts.begin()
            results.add(type(bench.run()).__name__)
    finally:
        stop.set()
        teller.join()
    assert results <= {"Succeeded", "Raised"}


def test_a_coroutine_is_cancelled_and_comes_out_as_what_for(bench: Bench, interrupts: SharedInterrupts) -> None:
    async def job() -> None:
        try:
            bench.seen.append("runs")
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            bench.seen.append("cancelled")
            raise

    async def run() -> Any:
        message = bench.message()
        task = asyncio.ensure_future(bench.executor().run_async(message))
        while not bench.seen:  # noqa: ASYNC110 - the job is no part of this coroutine
            await asyncio.sleep(0.001)
        interrupts.interrupt(JobTimeout("too long"))
        return await task

    bench.job(job)
    result = asyncio.run(run())

    assert bench.seen == ["runs", "cancelled"]
    assert result.failure.exception_class == "palermo.errors.JobTimeout"
    assert "in job" in result.failure.stack_trace
