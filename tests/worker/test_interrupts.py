"""Exceptions that break into a job, in the test's own process: into the only one, or one of several."""

import asyncio
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any

import pytest

from palermo.core.lifecycle import Cancelled, Interrupted, Raised, Succeeded
from palermo.errors import JobCancelled, JobError, JobTerminated, JobTimeout
from palermo.worker.child.interrupts import Interrupts, SharedInterrupts
from palermo.worker.signals import TERMINATE
from tests.helpers import eventually
from tests.worker.bench import Bench


@pytest.fixture
def bench() -> Iterator[Bench]:
    bench = Bench()
    yield bench
    signal.signal(TERMINATE, signal.SIG_DFL)


def test_a_job_without_a_timeout_sets_no_timer(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(signal, "setitimer")
    monkeypatch.delattr(signal, "signal")
    bench.job(lambda: None)

    assert bench.run() == Succeeded()


def test_a_job_in_time_leaves_no_timer_and_no_handler_behind(bench: Bench) -> None:
    bench.job(lambda: bench.seen.append(signal.getitimer(signal.ITIMER_REAL)[0]))
    before = signal.signal(signal.SIGALRM, own := lambda number, frame: None)
    try:
        assert bench.run(timeout=600.0) == Succeeded()

        assert 300 < bench.seen[0] <= 600
        assert signal.getitimer(signal.ITIMER_REAL) == (0.0, 0.0)
        assert signal.getsignal(signal.SIGALRM) is own
    finally:
        signal.signal(signal.SIGALRM, before)


def test_a_timeout_is_raised_once_so_that_cleaning_up_may_take_its_time(bench: Bench) -> None:
    def job() -> None:
        # The alarm itself may ring before the job's first line, if the process gets no turn.
        try:
            signal.raise_signal(signal.SIGALRM)
        except JobTimeout:
            signal.raise_signal(signal.SIGALRM)
            bench.seen.append("caught")
            raise

    bench.job(job)
    bench.job(lambda: None, name="next")

    assert bench.failure(timeout=60.0).exception_class == "palermo.errors.JobTimeout"
    assert bench.seen == ["caught"]
    assert bench.run(job="next") == Succeeded()


def test_a_coroutine_may_return_after_an_interrupt_like_a_function(bench: Bench) -> None:
    async def job() -> None:
        threading.Timer(0.1, signal.pthread_kill, (threading.main_thread().ident, signal.SIGALRM)).start()
        with suppress(asyncio.CancelledError):
            await asyncio.sleep(60)

    bench.job(job)
    assert bench.run(timeout=60.0) == Succeeded()


def test_what_ends_the_worker_raises_in_a_job_and_between_jobs_nothing(bench: Bench) -> None:
    interrupts = Interrupts()
    interrupts.install()
    signal.raise_signal(TERMINATE)
    bench.interrupts = interrupts

    def job() -> None:
        with suppress(ZeroDivisionError):
            signal.raise_signal(TERMINATE)

    bench.job(job)
    bench.job(lambda: None, name="next")

    assert bench.run() == Interrupted()
    assert bench.run(job="next") == Succeeded()


@pytest.fixture
def interrupts() -> SharedInterrupts:
    return SharedInterrupts()


@pytest.fixture
def shared(interrupts: SharedInterrupts) -> Bench:
    shared = Bench()
    shared.interrupts = interrupts
    interrupts.begin()
    return shared


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
    shared: Bench, interrupts: SharedInterrupts, error: JobError, result: type
) -> None:
    def job() -> None:
        try:
            shared.seen.append("runs")
            while True:
                time.sleep(0.001)
        except JobError as told:
            shared.seen.append(str(told))
            interrupts.interrupt(JobCancelled("again"))
            time.sleep(0.001)
            shared.seen.append("cleaned up")
            raise

    shared.job(job)
    thread, results = in_thread(shared.run)
    eventually(lambda: shared.seen == ["runs"])

    interrupts.interrupt(error)

    thread.join(60)
    assert [type(each) for each in results] == [result]
    assert shared.seen == ["runs", "end", "cleaned up"]
    if isinstance(results[0], Raised):
        failure = results[0].failure
        assert (failure.exception_class, failure.message) == ("palermo.errors.JobTimeout", "end")


def test_what_is_told_before_the_job_begins_is_raised_when_it_does(shared: Bench, interrupts: SharedInterrupts) -> None:
    shared.job(lambda: shared.seen.append("ran"))
    interrupts.interrupt(JobTimeout("too long"))

    assert shared.failure().message == "too long"
    assert shared.seen == []


def test_what_is_told_after_the_job_has_ended_harms_no_other(shared: Bench, interrupts: SharedInterrupts) -> None:
    shared.job(lambda: None)
    assert shared.run() == Succeeded()

    interrupts.interrupt(JobTimeout("too long"))
    interrupts.begin()

    assert shared.run() == Succeeded()


def test_telling_jobs_that_are_about_to_end_never_escapes_them(shared: Bench, interrupts: SharedInterrupts) -> None:
    shared.job(lambda: time.sleep(0))
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
            results.add(type(shared.run()).__name__)
    finally:
        stop.set()
        teller.join()
    assert results <= {"Succeeded", "Raised"}


def test_a_coroutine_is_cancelled_and_comes_out_as_what_for(shared: Bench, interrupts: SharedInterrupts) -> None:
    async def job() -> None:
        try:
            shared.seen.append("runs")
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            shared.seen.append("cancelled")
            raise

    async def run() -> Any:
        message = shared.message()
        task = asyncio.ensure_future(shared.executor().run_async(message))
        while not shared.seen:  # noqa: ASYNC110 - the job is no part of this coroutine
            await asyncio.sleep(0.001)
        interrupts.interrupt(JobTimeout("too long"))
        return await task

    shared.job(job)
    result = asyncio.run(run())

    assert shared.seen == ["runs", "cancelled"]
    assert result.failure.exception_class == "palermo.errors.JobTimeout"
    assert "in job" in result.failure.stack_trace
