"""Durations in buckets, and the percentiles that are read from them."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from palermo.core.durations import LAST, SMALLEST, Durations, bucket, quantile, upper

DURATIONS = st.floats(min_value=0, max_value=1e8)


@given(DURATIONS)
def test_a_duration_lies_in_its_bucket(seconds: float) -> None:
    number = bucket(seconds)

    assert seconds <= upper(number) * (1 + 1e-8)
    assert number == 0 or seconds >= upper(number - 1) * (1 - 1e-8)


@pytest.mark.parametrize(
    ("seconds", "number"), [(-5, 0), (0, 0), (SMALLEST, 0), (2 * SMALLEST, 4), (16 * SMALLEST, 16), (1e300, LAST)]
)
def test_buckets(seconds: float, number: int) -> None:
    assert bucket(seconds) == number


@given(st.lists(DURATIONS, min_size=1), st.sampled_from([0.5, 0.95, 0.99, 1.0]))
def test_a_percentile_of_merged_histograms_is_exact_to_a_bucket(durations: list[float], part: float) -> None:
    whole = Durations()
    for seconds in durations:
        whole.read(json.loads(json.dumps({"run": {bucket(seconds): 1}})), "run")

    exact = sorted(durations)[max(0, -(-int(part * 100) * len(durations) // 100) - 1)]
    assert quantile(whole.histogram, part) == upper(bucket(exact))


def test_an_empty_histogram_has_no_percentile() -> None:
    assert quantile({}, 0.5) is None


def test_what_is_no_bucket_and_no_count_is_left_out() -> None:
    into = Durations()

    into.read({"run": {"3": 2, "x": 1, "-1": 5, "999": 5, "4": "many", "5": -1}}, "run")

    assert (into.histogram, into.count) == ({3: 2}, 2)
