"""The earlier errors of a job that are kept."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from palermo.core import failure
from palermo.core.failure import Attempt, Failure, append_attempt, attempts_header, attempts_in, cut_attempts
from palermo.core.message import MAX_HEADERS, Message, fit_headers, headers_size, to_headers

FAILURE = Failure(exception_class="ValueError", message="no", stack_trace="", failed_at=1_700)


def attempt(number: int, message: str = "no") -> Attempt:
    return Attempt(number=number, exception_class="ValueError", message=message, failed_at=1_700)


@pytest.mark.slow
@given(st.lists(st.text(max_size=500), max_size=300))
def test_the_log_stays_in_its_budget_and_keeps_the_first_and_the_newest(messages: list[str]) -> None:
    log: tuple[Attempt, ...] = ()
    for number, text in enumerate(messages, start=1):
        log = append_attempt(log, attempt(number, text))

    numbers = [one.number for one in log]
    assert sum(one.size for one in log) <= failure.ATTEMPTS_BUDGET
    assert numbers[:1] == [1][: len(messages)]
    assert cut_attempts(log, 0) == ()
    assert numbers[1:] == list(range(len(messages) - len(numbers) + 2, len(messages) + 1))


def test_a_failure_is_kept_in_short_and_no_smaller_than_on_the_wire() -> None:
    kept = Attempt.of(replace(FAILURE, message="ü" * 10_000, stack_trace="x" * 9_000), 3)
    log = tuple(attempt(number, "ü" * number) for number in range(1, 100))

    assert kept == attempt(3, "ü" * 500)
    assert headers_size({"attempts-log": attempts_header(log)}) <= sum(one.size for one in log) + 30


@given(st.lists(st.builds(attempt, st.integers(1, 99), st.text(st.characters(codec="utf-8"))), max_size=5))
def test_the_header_reads_as_it_was_written(log: list[Attempt]) -> None:
    assert attempts_in([*attempts_header(log), "x", {"attempt": "2"}, None]) == tuple(log)


def test_the_log_is_cut_before_the_traceback_where_headers_do_not_fit() -> None:
    log = tuple(attempt(number, "m" * 500) for number in range(1, 50))
    trace = "t" * 16_000
    kept = cut_attempts(log, failure.ATTEMPTS_BUDGET)
    tried = Message(id="1", queue="q", job="j", failure=replace(FAILURE, stack_trace=trace), attempts=kept)
    message = replace(tried, extra={"big": "x" * 100_000})

    cut_down = fit_headers(message)

    assert headers_size(to_headers(cut_down)) <= MAX_HEADERS
    assert [one.number for one in cut_down.attempts][:1] == [1]
    assert len(cut_down.attempts) < len(message.attempts)
    assert cut_down.failure is not None
    assert cut_down.failure.stack_trace == trace
