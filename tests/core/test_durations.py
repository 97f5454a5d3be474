"""Durations: what is known of many without keeping them."""

import json
import random

import pytest

from palermo.core.durations import Durations


def durations(*seconds: float) -> Durations:
    found = Durations()
    for each in seconds:
        found.add(each)
    return found


def test_sum_extremes_and_mean_are_exact() -> None:
    found = durations(0.25, 1.5, 0.5)

    assert (found.count, found.sum, found.least, found.most, found.mean) == (3, 2.25, 0.25, 1.5, 0.75)


def test_of_none_nothing_is_known_and_nothing_is_written() -> None:
    found = durations()

    assert (found.mean, found.quantile(0.5), found.fields("wait")) == (None, None, {})


def test_what_clocks_that_differ_make_negative_counts_as_none() -> None:
    assert (durations(-3.0).least, durations(-3.0).most, durations(-3.0).quantile(0.99)) == (0.0, 0.0, 0.0)


@pytest.mark.parametrize("part", [0.5, 0.9, 0.95, 0.99])
def test_a_percentile_is_exact_to_the_width_of_its_bucket(part: float) -> None:
    chance = random.Random(7)
    values = sorted(chance.lognormvariate(-2, 1.5) for _ in range(5_000))

    found = durations(*values).quantile(part)

    assert found == pytest.approx(values[int(part * len(values)) - 1], rel=0.2)


def test_percentiles_are_between_the_shortest_and_the_longest() -> None:
    assert durations(0.301, 0.301).quantile(0.99) == 0.301
    assert durations(0.3, 0.4).quantile(0.01) >= 0.3  # type: ignore[operator]


def test_through_a_record_and_back_nothing_is_lost() -> None:
    found = durations(0.000_01, 0.25, 1.5, 70_000.0)

    record = json.loads(json.dumps({"kind": "counts", **found.fields("run")}))

    read = durations()
    read.read(record, "run")
    assert read == Durations(4, 70_001.75001, 0.000_01, 70_000.0, found.histogram)


def test_merging_is_adding() -> None:
    one, other = durations(0.25, 2.0), durations(0.125)
    one.merge(other)

    assert one == durations(0.25, 2.0, 0.125)


@pytest.mark.parametrize(
    "record",
    [
        {},
        {"wait": None},
        {"wait": [1, 2]},
        {"wait": {"a": 1, "-1": 2, "3": "x", "4": -1}},
        {"wait": {}, "wait_sum": 5.0},
    ],
)
def test_what_is_no_histogram_counts_nothing(record: dict[str, object]) -> None:
    found = durations()
    found.read(record, "wait")
    assert found == durations()


def test_a_histogram_alone_says_about_how_much_and_how_long() -> None:
    exact = durations(0.25, 0.5, 0.5)

    found = durations()
    found.read({"wait": exact.histogram, "wait_sum": "1.25", "wait_min": -1, "wait_max": float("nan")}, "wait")

    assert found.count == 3
    assert found.sum == pytest.approx(exact.sum, rel=0.2)
    assert found.least <= 0.25
    assert found.most == pytest.approx(0.5, rel=0.2)
