"""Exceptions that break into a job, in the test's own process."""

import signal
import time
from collections.abc import Iterator
from contextlib import suppress

import pytest

from palermo.core.lifecycle import Interrupted, Succeeded
from palermo.errors import JobTimeout
from palermo.worker.child.interrupts import Interrupts
from palermo.worker.signals import TERMINATE
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


def test_a_job_in_time_leaves_no_timer_behind(bench: Bench) -> None:
    bench.job(lambda: bench.seen.append(signal.getitimer(signal.ITIMER_REAL)[0]))

    began = time.monotonic()
    assert bench.run(timeout=60.0) == Succeeded()
    assert 59.9 - (time.monotonic() - began) < bench.seen[0] <= 60
    assert signal.getitimer(signal.ITIMER_REAL) == (0.0, 0.0)


def test_a_handler_of_the_users_own_is_put_back(bench: Bench) -> None:
    own = signal.signal(signal.SIGALRM, bench_alarm := lambda number, frame: None)
    try:
        bench.job(lambda: None)
        bench.run(timeout=60.0)

        assert signal.getsignal(signal.SIGALRM) is bench_alarm
    finally:
        signal.signal(signal.SIGALRM, own)


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


def test_a_job_that_expired_is_not_run(bench: Bench) -> None:
    bench.job(lambda: bench.seen.append("ran"))

    assert bench.failure(expires_at=1_234.8).exception_class == "palermo.errors.JobExpired"
    assert bench.run(expires_at=1_235.0) == Succeeded()
    assert bench.seen == ["ran"]
