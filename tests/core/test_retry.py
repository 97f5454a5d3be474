"""When a job that failed is tried again."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from palermo.core.retry import LONGEST, Exponential, Fixed, Linear, Listed, backoff, quartic, seconds, total
from palermo.errors import OptionInvalid


@pytest.mark.parametrize(
    ("policy", "waits"),
    [
        (Fixed(delay=3), [3, 3, 3, 3]),
        (Linear(step=2, cap=5), [2, 4, 5, 5]),
        (Exponential(), [1, 2, 4, 8]),
        (Exponential(base=10, factor=3, cap=100), [10, 30, 90, 100]),
        (Exponential(base=8, jitter=0.5), [6, 12, 24, 48]),
        (Listed(delays=(1, 5, 30)), [1, 5, 30, 30]),
        (quartic, [20, 26, 46, 116]),
    ],
)
def test_each_shape_has_its_waits(policy: Fixed, waits: list[float]) -> None:
    assert total(policy, 4) == waits


@given(st.integers(min_value=1, max_value=100_000), st.floats(min_value=0, max_value=1))
def test_no_policy_waits_for_ever(attempt: int, chance: float) -> None:
    for policy in (quartic, Linear(step=1e6), Exponential(base=5, factor=9, jitter=1.0)):
        assert 0 <= seconds(policy, attempt, chance) <= LONGEST


@pytest.mark.parametrize(
    ("value", "first"), [("exponential", 20), ("linear", 15), ("fixed", 15), (7, 7), (0.5, 0.5), ([2, 9], 2), ((4,), 4)]
)
def test_an_option_names_a_policy(value: object, first: float) -> None:
    assert seconds(backoff(value), 1, 0.5) == first


def test_a_function_is_a_policy() -> None:
    assert seconds(backoff(lambda attempt, chance: attempt * 100), 3, 0) == 300


@pytest.mark.parametrize("value", ["expo", True, -1, [], [1, "2"], [-1], None, float("inf"), {}])
def test_other_values_are_refused(value: object) -> None:
    with pytest.raises(OptionInvalid, match="backoff="):
        backoff(value)


@pytest.mark.parametrize("given", ["soon", -1, None, float("nan"), True])
def test_what_a_function_gives_must_be_seconds(given: object) -> None:
    with pytest.raises(OptionInvalid, match="attempt 2"):
        seconds(lambda attempt, chance: given, 2, 0.5)  # type: ignore[arg-type, return-value]
