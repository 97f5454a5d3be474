"""A job that did not end well: what is done with it, and who is told, without a process."""

from typing import Any

import pytest

import palermo
from palermo.core.failure import Failure
from palermo.core.lifecycle import Dropped, Raised, Retrying
from palermo.errors import JobTimeout
from tests.worker.bench import Bench


@pytest.fixture
def bench(bench: Bench) -> Bench:
    palermo.failure_backend(lambda report: bench.seen.append(f"back end {report.failure.exception_class}"))
    return bench


def failing(bench: Bench, error: BaseException, **options: Any) -> None:
    """A job that raises this, and whose hooks say so."""

    class Job:
        def process(self, *args: int) -> None:
            self.runs = 1
            raise error

        def on_failure(self, error: BaseException, *args: int) -> None:
            bench.seen.append(f"on_failure {type(error).__name__} {args}")

        def on_exhausted(self, error: BaseException, *args: int) -> None:
            bench.seen.append(f"on_exhausted {type(error).__name__} {args} {self.runs}")

    bench.job(Job, **options)


def test_every_failed_run_is_told_and_only_the_last_exhausts_and_reports(bench: Bench) -> None:
    failing(bench, ValueError("no"), retries=2, backoff=7)

    first = bench.run([1])
    second = bench.run([1], retries=1, policy_retries=1)
    last = bench.run([1], retries=2, policy_retries=2)

    assert isinstance(first, Retrying)
    assert (first.delay, first.failure and first.failure.message) == (7.0, "no")
    assert isinstance(second, Retrying)
    assert isinstance(last, Raised)
    assert bench.seen == [*["on_failure ValueError (1,)"] * 3, "on_exhausted ValueError (1,) 1", "back end ValueError"]


@pytest.mark.parametrize(
    ("error", "options", "result", "told"),
    [
        (ValueError("no"), {}, Raised, ["on_failure ValueError ()", "back end ValueError"]),
        (palermo.Snooze(60), {"retries": 2}, Retrying(None, 60.0), []),
        (palermo.Discard("user is gone"), {"retries": 2}, Dropped("user is gone"), []),
        (
            FileNotFoundError("gone"),
            {"retries": 2, "discard_on": OSError},
            Dropped("FileNotFoundError: gone"),
            ["on_failure FileNotFoundError ()"],
        ),
        (
            ValueError("no"),
            {"retries": 5, "backoff": lambda attempt, error: "fail"},
            Raised,
            ["on_failure ValueError ()", "on_exhausted ValueError () 1", "back end ValueError"],
        ),
    ],
    ids=["no policy", "snoozes", "discards itself", "to be discarded", "backoff gives up"],
)
def test_an_end_at_the_first_run_is_told_to_those_it_concerns(
    bench: Bench, error: Exception, options: dict[str, Any], result: Any, told: list[str]
) -> None:
    failing(bench, error, **options)

    # A snooze is no retry, however many there were.
    found = bench.run(retries=1, policy_retries=99) if told == [] else bench.run()

    assert found == result or type(found) is result
    assert bench.seen == told


def test_a_job_may_ask_for_a_retry_from_an_error_which_is_the_one_kept(bench: Bench) -> None:
    def job() -> None:
        try:
            raise ConnectionError("refused")
        except ConnectionError as error:
            raise palermo.Retry(delay=3) from error

    bench.job(job)
    result = bench.run()

    assert isinstance(result, Retrying)
    assert result.delay == 3.0
    assert result.failure is not None
    assert (result.failure.exception_class, result.failure.message) == ("ConnectionError", "refused")
    assert "palermo.Retry" in result.failure.stack_trace


def test_a_retry_with_a_reason_fails_for_it_in_the_end(bench: Bench) -> None:
    failing(bench, palermo.Retry("not there yet"))

    result = bench.run(policy_retries=25)

    assert isinstance(result, Raised)
    assert (result.failure.exception_class, result.failure.message) == ("palermo.Retry", "not there yet")
    assert bench.seen == ["on_failure Retry ()", "on_exhausted Retry () 1", "back end palermo.Retry"]


@pytest.mark.parametrize("answer", ["soon", -1, ZeroDivisionError()], ids=str)
def test_a_wrong_backoff_function_is_logged_and_waits(
    bench: Bench, caplog: pytest.LogCaptureFixture, answer: Any
) -> None:
    def backoff(attempt: int, error: BaseException) -> Any:
        assert (attempt, str(error)) == (1, "no")
        if isinstance(answer, Exception):
            raise answer
        return answer

    failing(bench, ValueError("no"), backoff=backoff)
    result = bench.run()

    assert isinstance(result, Retrying)
    assert result.delay == 20.0
    assert caplog.text.count("backoff function failed, using the default delay id=1 job=job") == 1


def test_a_class_that_cannot_be_made_is_retried(bench: Bench) -> None:
    class Job:
        def __init__(self) -> None:
            raise ConnectionError

        def process(self) -> None: ...

    bench.job(Job, retries=1)

    assert isinstance(bench.run(), Retrying)


def test_a_crash_is_answered_by_the_policy(bench: Bench) -> None:
    failing(bench, ValueError(), retries=1, backoff=4, retry_on=JobTimeout)
    timeout = Failure(exception_class="palermo.errors.JobTimeout", message="killed", stack_trace="", failed_at=1)
    crash = Failure(exception_class="palermo.errors.JobCrashed", message="killed", stack_trace="", failed_at=1)

    assert bench.executor().crashed(bench.message(), timeout) == Retrying(timeout, 4.0)
    assert bench.executor().crashed(bench.message(policy_retries=1), timeout) == Raised(timeout)
    assert bench.executor().crashed(bench.message(), crash) == Raised(crash)
    assert bench.executor().crashed(bench.message(job="nobody"), crash) == Raised(crash)
