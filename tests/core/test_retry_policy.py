"""Whether a job that did not end well runs again, as a table, and when."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from palermo.core.backoff import BackoffFunction, DelayList, Exponential, Fixed, Linear, backoff, quartic, seconds
from palermo.core.message import Message
from palermo.core.retry_policy import Discard, Drop, GiveUp, Retry, RunAgain, Snooze, decide, is_failure, make_policy
from palermo.core.times import MAX_DELAY
from palermo.errors import JobCrashed, JobTimeout, OptionInvalid, RerunTimeout

NOW = 1_000_000.0


def decided(options: dict[str, Any], error: BaseException | None = None, **message: Any) -> Any:
    made = Message(id="1", queue="q", job="j", **message)
    return decide(make_policy(**options), error or ValueError("no"), made, now=NOW, chance=0.5)


EXHAUSTED = GiveUp(exhausted=True)
BOTH = {"retries": 2, "retry_for": 60, "backoff": 10}
ERRORS = {"retry_on": (OSError, JobTimeout), "discard_on": [KeyError, FileNotFoundError]}
NAMED = {"retries": 3, "backoff": Fixed(delay=10), **ERRORS}
HUNG = RerunTimeout("hung")
LATER = Retry("later", delay=7)


@pytest.mark.parametrize(
    ("options", "error", "message", "decision"),
    [
        # How often.
        ({}, None, {}, GiveUp()),  # the default of the original and of Resque: straight to failed
        ({"retries": 0}, None, {}, GiveUp()),
        ({"retries": 3, "backoff": 10}, None, {}, RunAgain(10)),
        ({"retries": 3, "backoff": 10}, None, {"policy_retries": 2}, RunAgain(10)),
        ({"retries": 3, "backoff": 10}, None, {"policy_retries": 3}, EXHAUSTED),
        ({"retries": 3, "backoff": [1, 5]}, None, {"policy_retries": 1}, RunAgain(5)),
        ({"retries": 3}, None, {}, RunAgain(20)),  # Sidekiq's: 0⁴ + 15 + 0.5 * 10
        ({"backoff": 10}, None, {"policy_retries": 24}, RunAgain(10)),  # how, and not how often: 25
        ({"backoff": 10}, None, {"policy_retries": 25}, EXHAUSTED),
        ({"retry_on": ValueError}, None, {"policy_retries": 25}, EXHAUSTED),
        ({"discard_on": KeyError}, None, {}, GiveUp()),
        # For how long.
        ({"retry_for": 60, "backoff": 10}, None, {}, RunAgain(10)),  # its first failure is this one
        ({"retry_for": 60, "backoff": 10}, None, {"policy_retries": 5_000}, RunAgain(10)),
        ({"retry_for": 60, "backoff": 10}, None, {"retrying_since": NOW - 49}, RunAgain(10)),
        ({"retry_for": 60, "backoff": 10}, None, {"retrying_since": NOW - 55}, RunAgain(5)),  # when the time is up
        ({"retry_for": 60, "backoff": 10}, None, {"retrying_since": NOW - 60}, EXHAUSTED),
        (BOTH, None, {"policy_retries": 2, "retrying_since": NOW - 1}, EXHAUSTED),
        (BOTH, None, {"policy_retries": 1, "retrying_since": NOW - 60}, EXHAUSTED),
        # A job that expires is not tried too late.
        ({"retries": 3, "backoff": 10}, None, {"expires_at": NOW + 10.5}, RunAgain(10)),
        ({"retries": 3, "backoff": 10}, None, {"expires_at": NOW + 10}, EXHAUSTED),
        # After which errors: subclasses count, and to throw away wins.
        (NAMED, ConnectionResetError("x"), {}, RunAgain(10)),
        (NAMED, OSError("x"), {}, RunAgain(10)),
        (NAMED, ValueError("x"), {}, GiveUp()),
        (NAMED, FileNotFoundError("x"), {}, Drop()),
        (NAMED, KeyError("x"), {}, Drop()),
        (NAMED, JobTimeout("x"), {}, RunAgain(10)),
        (NAMED, JobCrashed("x"), {}, GiveUp()),
        *(
            ({"retries": 1, "backoff": 10}, error, {}, RunAgain(10))
            for error in (ValueError(), SystemExit(), KeyboardInterrupt(), JobCrashed(), JobTimeout())
        ),
        # A job whose rerun_after has passed: as if its worker had died, twice more, though it declares no retries.
        ({}, HUNG, {}, RunAgain(0)),
        ({}, HUNG, {"policy_retries": 1}, RunAgain(0)),
        ({}, HUNG, {"policy_retries": 2}, EXHAUSTED),
        ({"retries": 0}, HUNG, {}, GiveUp()),
        ({"retries": 1}, HUNG, {"policy_retries": 1}, EXHAUSTED),
        ({"retries": 5, "backoff": 10}, HUNG, {"policy_retries": 4}, RunAgain(0)),
        ({"retry_for": 60}, HUNG, {"policy_retries": 5_000}, RunAgain(0)),
        ({"retry_on": KeyError}, HUNG, {"policy_retries": 1}, RunAgain(0)),
        ({"retries": 5}, HUNG, {"max_retries": 0}, GiveUp()),
        ({}, HUNG, {"max_retries": 1}, RunAgain(0)),
        # One enqueue may say another number, and ask for retries of a job that has none.
        ({"retries": 3, "backoff": 10}, None, {"max_retries": 5, "policy_retries": 2}, RunAgain(10)),
        ({"retries": 3, "backoff": 10}, None, {"max_retries": 2, "policy_retries": 2}, EXHAUSTED),
        ({"retries": 3, "backoff": 10}, None, {"max_retries": 0, "policy_retries": 2}, GiveUp()),
        ({}, None, {"max_retries": 1}, RunAgain(20)),
        ({}, LATER, {"max_retries": 1, "policy_retries": 1}, EXHAUSTED),
        # A job may ask for a retry: 25 where it declares nothing, and whatever the error is.
        ({}, LATER, {}, RunAgain(7)),
        ({}, LATER, {"policy_retries": 24}, RunAgain(7)),
        ({}, LATER, {"policy_retries": 25}, EXHAUSTED),
        ({"retries": 3}, LATER, {"policy_retries": 2}, RunAgain(7)),
        ({"retries": 3}, LATER, {"policy_retries": 3}, EXHAUSTED),
        ({"retries": 0}, LATER, {}, GiveUp()),
        ({"retries": 3, "retry_on": KeyError, "discard_on": Exception}, LATER, {}, RunAgain(7)),
        ({"backoff": [3, 4]}, Retry(), {"policy_retries": 1}, RunAgain(4)),
        ({}, Retry(), {}, RunAgain(20)),
    ],
)
def test_what_follows_a_run_that_did_not_end_well(
    options: dict[str, Any], error: BaseException | None, message: dict[str, Any], decision: object
) -> None:
    assert decided(options, error, **message) == decision


def test_a_job_may_snooze_or_discard_itself_whatever_its_policy() -> None:
    for options in ({}, {"retries": 3, "retry_on": KeyError}, {"discard_on": Exception}):
        assert decided(options, Snooze(60), policy_retries=99) == RunAgain(60, counted=False)
        assert decided(options, Discard("gone"), policy_retries=99) == Drop("gone")


def test_a_function_decides_by_attempt_and_error() -> None:
    def waits(attempt: int, error: BaseException) -> object:
        return {1: 33, 2: None, 3: "discard", 4: "fail"}[attempt] if isinstance(error, ValueError) else 1

    found = [decided({"backoff": waits}, policy_retries=done) for done in range(4)]

    assert found == [RunAgain(33), RunAgain(26), Drop(), EXHAUSTED]
    assert decided({"backoff": waits}, KeyError()) == RunAgain(1)


@pytest.mark.parametrize("delay", [-1, "soon", True, float("nan"), 1e12])
def test_a_delay_that_means_nothing_is_refused_where_it_is_raised(delay: Any) -> None:
    with pytest.raises(OptionInvalid, match="delay="):
        Snooze(delay)
    with pytest.raises(OptionInvalid, match="delay="):
        Retry(delay=delay)


def test_only_an_error_is_a_failure() -> None:
    assert [is_failure(error) for error in (ValueError(), Retry(), Snooze(1), Discard())] == [True, True, False, False]


@pytest.mark.parametrize(
    ("policy", "waits"),
    [
        (Fixed(delay=3), [3, 3, 3, 3]),
        (Linear(step=2, cap=5), [2, 4, 5, 5]),
        (Exponential(), [1, 2, 4, 8]),
        (Exponential(base=10, factor=3, cap=100), [10, 30, 90, 100]),
        (Exponential(base=8, jitter=0.5), [6, 12, 24, 48]),
        (DelayList(delays=(1, 5, 30)), [1, 5, 30, 30]),
        (quartic, [20, 26, 46, 116]),
    ],
)
def test_each_shape_has_its_waits(policy: BackoffFunction, waits: list[float]) -> None:
    assert [policy(attempt, 0.5) for attempt in range(1, 5)] == waits


SHAPES: tuple[BackoffFunction, ...] = (quartic, Linear(step=1e6), Exponential(base=5, factor=9, jitter=1.0))


@given(st.integers(min_value=1, max_value=100_000), st.floats(min_value=0, max_value=1))
def test_no_policy_waits_for_ever(attempt: int, chance: float) -> None:
    for shape in SHAPES:
        wait = seconds(shape, attempt, chance)
        assert isinstance(wait, float)
        assert 0 <= wait <= MAX_DELAY


@pytest.mark.parametrize(
    ("value", "first"), [("exponential", 20), ("linear", 15), ("fixed", 15), (7, 7), (0.5, 0.5), ([2, 9], 2), ((4,), 4)]
)
def test_an_option_names_a_policy(value: object, first: float) -> None:
    assert seconds(backoff(value), 1, 0.5) == first
    for count in range(25):  # Sidekiq counts from 0: count⁴ + 15 + rand(10 (count + 1))
        for chance in (0.0, 0.5, 0.999):
            assert seconds(backoff("exponential"), count + 1, chance) == count**4 + 15 + chance * 10 * (count + 1)


def test_a_function_of_attempt_and_error_is_a_policy() -> None:
    error = LookupError()

    assert seconds(backoff(lambda attempt, error: attempt * 100), 3, 0) == 300
    assert seconds(backoff(lambda attempt, error: 7 if isinstance(error, LookupError) else 1), 3, 0, error) == 7
    # It may choose the default or no retry.
    for answer, means in ((None, 20.0), ("fail", "fail"), ("discard", "discard"), (0, 0.0)):
        assert seconds(backoff(lambda attempt, error, answer=answer: answer), 1, 0.5) == means


@pytest.mark.parametrize("value", ["expo", True, -1, [], [1, "2"], [-1], None, float("inf"), {}, Fixed])
def test_other_values_are_refused(value: object) -> None:
    with pytest.raises(OptionInvalid, match="backoff="):
        backoff(value)


@pytest.mark.parametrize(
    "shape",
    [
        Fixed(delay=-1),
        Fixed(delay="5"),  # type: ignore[arg-type]
        Linear(step=-5),
        Exponential(base=-2),
        Exponential(factor=-1),
        Exponential(base=[]),  # type: ignore[arg-type]
        Exponential(jitter=2),
        DelayList(delays=(1, -1)),
    ],
)
def test_a_shape_that_makes_no_wait_is_refused_where_the_job_is_declared(shape: object) -> None:
    with pytest.raises(OptionInvalid, match=r"backoff=.* gives a delay that is not between 0 seconds and ten years"):
        backoff(shape)


@pytest.mark.parametrize("given", ["soon", -1, [], float("nan"), True])
def test_what_a_function_gives_must_be_seconds(given: object) -> None:
    with pytest.raises(OptionInvalid, match="attempt 2"):
        seconds(backoff(lambda attempt, error: given), 2, 0.5)
