"""When a job that failed is tried again."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from palermo.core.backoff import BackoffFunction, DelayList, Exponential, Fixed, Linear, backoff, quartic, seconds
from palermo.core.times import MAX_DELAY
from palermo.errors import OptionInvalid


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
