"""Durations: what is known of many without keeping them."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from palermo.core.durations import LAST, SMALLEST, Durations, bucket, quantile, upper

DURATIONS = st.floats(min_value=0, max_value=1e8)


def durations(*seconds: float) -> Durations:
    found = Durations()
    for each in seconds:
        found.add(each)
    return found


def test_sum_extremes_and_mean_are_exact() -> None:
    found = durations(0.25, 1.5, 0.5)

    assert (found.count, found.sum, found.least, found.most, found.mean) == (3, 2.25, 0.25, 1.5, 0.75)
    none = durations()
    assert (none.mean, none.quantile(0.5), none.fields("wait")) == (None, None, {})

    negative = durations(-3.0)  # by clocks that differ
    assert (negative.least, negative.most, negative.quantile(0.99)) == (0.0, 0.0, 0.0)
    assert durations(0.301, 0.301).quantile(0.99) == 0.301
    assert durations(0.3, 0.4).quantile(0.01) >= 0.3  # type: ignore[operator]


def test_nothing_is_lost_through_a_record_or_by_merging() -> None:
    found = durations(0.000_01, 0.25, 1.5)
    found.merge(durations(70_000.0))

    record = json.loads(json.dumps({"kind": "counts", **found.fields("run")}))

    read = durations()
    read.read(record, "run")
    assert read == found == Durations(4, 70_001.75001, 0.000_01, 70_000.0, found.histogram)


@pytest.mark.parametrize(
    ("record", "histogram"),
    [
        ({}, {}),
        ({"wait": None}, {}),
        ({"wait": [1, 2]}, {}),
        ({"wait": {}, "wait_sum": 5.0}, {}),
        ({"wait": {"3": 2, "x": 1, "-1": 5, "999": 5, "4": "many", "5": -1}}, {3: 2}),
    ],
)
def test_what_is_no_histogram_bucket_or_count_is_left_out(record: dict[str, object], histogram: dict[int, int]) -> None:
    found = durations()
    found.read(record, "wait")
    assert (found.histogram, found.count) == (histogram, sum(histogram.values()))
    assert histogram or found == durations()


def test_a_histogram_alone_says_about_how_much_and_how_long() -> None:
    exact = durations(0.25, 0.5, 0.5)

    found = durations()
    found.read({"wait": exact.histogram, "wait_sum": "1.25", "wait_min": -1, "wait_max": float("nan")}, "wait")

    assert found.count == 3
    assert found.sum == pytest.approx(exact.sum, rel=0.2)
    assert found.least <= 0.25
    assert found.most == pytest.approx(0.5, rel=0.2)


@given(DURATIONS)
def test_a_duration_lies_in_its_bucket(seconds: float) -> None:
    number = bucket(seconds)

    assert seconds <= upper(number) * (1 + 1e-8)
    assert number == 0 or seconds >= upper(number - 1) * (1 - 1e-8)
    assert [bucket(each) for each in (-5, 0, SMALLEST, 2 * SMALLEST, 16 * SMALLEST, 1e300)] == [0, 0, 0, 4, 16, LAST]


@given(st.lists(DURATIONS, min_size=1), st.sampled_from([0.5, 0.95, 0.99, 1.0]))
def test_a_percentile_of_merged_histograms_is_exact_to_a_bucket(durations: list[float], part: float) -> None:
    whole = Durations()
    for seconds in durations:
        whole.read(json.loads(json.dumps({"run": {bucket(seconds): 1}})), "run")

    exact = sorted(durations)[max(0, -(-int(part * 100) * len(durations) // 100) - 1)]
    assert quantile(whole.histogram, part) == upper(bucket(exact))
    assert quantile({}, part) is None
