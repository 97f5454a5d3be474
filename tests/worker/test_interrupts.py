"""Exceptions that break into a job, in the test's own process."""

import signal
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
