"""Times as people write them, where a job waits until it is due, and durations, known of many without keeping them."""

import json
import math
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from palermo.core import due_times
from palermo.core.durations import LAST, SMALLEST, Durations, bucket, quantile, upper
from palermo.core.message import MAX_SECONDS, Message
from palermo.core.times import parse_duration, parse_instant, parse_time
from palermo.errors import OptionInvalid

TODAY = 1_000_000.0


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("1970-01-12T13:46:40Z", TODAY),
        (" 1970-01-12T14:46:40+01:00 ", TODAY),
        ("1970-01-12T13:46:40.5+00:00", TODAY + 0.5),
        ("1970-01-13T00Z", 1_036_800.0),
    ],
)
def test_an_instant_is_iso_8601_with_a_zone(text: str, seconds: float) -> None:
    assert parse_instant(text) == seconds
    assert parse_time(text, TODAY, ago=True) == parse_time(text, TODAY, ago=False) == seconds


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("soon", "'soon' is not a time; write 5m or 2d from now, or 2026-12-01T09:00Z."),
        ("", "'' is not a time"),
        ("2026-12-01T09:00", "'2026-12-01T09:00' has no time zone; write 2026-12-01T09:00Z or 2026-12-01T09:00+01:00."),
        ("2026-12-01", "'2026-12-01' has no time zone; write 2026-12-01T00:00Z or 2026-12-01T00:00+01:00."),
        ("x" * 1_000, f"'{'x' * 40}' is not a time"),
    ],
)
def test_what_is_no_time_is_refused_in_words(text: str, told: str) -> None:
    with pytest.raises(ValueError, match=re.escape(told)):
        parse_time(text, TODAY, ago=False)


@pytest.mark.parametrize(
    ("text", "seconds"), [("90", 90), ("90s", 90), ("5m", 300), ("1h30m", 5_400), ("2d", 172_800), ("1.5", 1.5)]
)
def test_a_duration_is_read_and_goes_before_or_after_now(text: str, seconds: float) -> None:
    assert parse_duration(text) == seconds
    assert (parse_time(text, TODAY, ago=True), parse_time(text, TODAY, ago=False)) == (TODAY - seconds, TODAY + seconds)


@pytest.mark.parametrize("text", ["", "m", "x", "5 minutes", "-5", "1m1h"])
def test_what_is_no_duration_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="is not a duration"):
        parse_duration(text)


#: The beginning of a day.
NOW = 1_800_057_600.0
MINUTE, HOUR, DAY = 60, 3_600, 86_400

instants = st.floats(min_value=0, max_value=MAX_SECONDS)
waits = st.floats(min_value=0.001, max_value=399 * DAY)


@pytest.mark.parametrize(
    ("wait", "intake", "level"),
    [
        (-1e9, None, None),
        (0, None, None),
        (0.001, due_times.Intake.SOON, None),
        (119, due_times.Intake.SOON, None),
        (120, due_times.Intake.NEW, "minute"),
        (HOUR - 1, due_times.Intake.NEW, "minute"),
        (HOUR, due_times.Intake.NEW, "hour"),
        (DAY - 1, due_times.Intake.NEW, "hour"),
        (DAY, due_times.Intake.NEW, "day"),
        (300 * DAY, due_times.Intake.NEW, "day"),
        (70_000 * DAY, due_times.Intake.NEW, "day"),
    ],
)
def test_what_is_farther_away_waits_in_longer_buckets(
    wait: float, intake: due_times.Intake | None, level: str | None
) -> None:
    found = due_times.bucket_of(NOW + wait, NOW)

    assert due_times.intake_of(NOW + wait, NOW) == intake
    assert (found and due_times.LEVELS[found.level].name) == level


@given(instants, waits)
def test_a_job_waits_in_shorter_and_shorter_buckets_with_its_instant(now: float, wait: float) -> None:
    due = now + wait
    before, bucket = len(due_times.LEVELS), due_times.bucket_of(due, now)
    while bucket is not None:
        span = due_times.LEVELS[bucket.level].span
        assert bucket.number * span <= due < (bucket.number + 1) * span
        assert bucket.opens > now
        assert bucket.level < before
        assert due_times.Bucket.parse(str(bucket)) == bucket
        now, before = bucket.opens, bucket.level
        bucket = due_times.bucket_of(due, now)
    assert due - now <= 2 * MINUTE


def test_a_job_of_another_year_waits_in_the_farthest_day_and_moves_on_from_there() -> None:
    due = NOW + 3_000 * DAY
    first = due_times.bucket_of(due, NOW)
    assert first == due_times.bucket_of(NOW + 400 * DAY, NOW)
    assert first is not None
    assert due_times.bucket_of(due, first.opens) == due_times.bucket_of(first.opens + 400 * DAY, first.opens)


@pytest.mark.parametrize(
    "text", ["", "day", "day.", "a.b", "week.1", "minute.-5", "hour.01", "day.5.2", "day." + "9" * 300, "day.٣"]
)
def test_other_names_are_none_of_ours(text: str) -> None:
    with pytest.raises(ValueError, match="is not a bucket name"):
        due_times.Bucket.parse(text)


def test_what_is_no_instant_is_refused_and_a_moved_job_expires_later() -> None:
    assert due_times.check_due(5) == 5.0
    for due in (math.nan, math.inf, -math.inf, True, "tomorrow", None, 0, -5.0, MAX_SECONDS):
        with pytest.raises(OptionInvalid):
            due_times.check_due(due)

    message = Message(id="7c9e", queue="jobs", job="x.y", run_at=NOW, expires_at=NOW + 60)
    later = due_times.moved_to(message, NOW + 500)
    assert (later.run_at, later.expires_at) == (NOW + 500, NOW + 560)


def test_another_program_s_time_is_taken_over_into_our_own_header() -> None:
    message = Message(id="7c9e", queue="jobs", job="x.y", run_at=NOW, extra={due_times.FOREIGN: NOW, "tenant": "a"})

    assert due_times.is_early(message, NOW - 1)
    assert not due_times.is_early(message, NOW)
    ours = due_times.without_foreign_time(message)
    assert (ours.run_at, ours.extra) == (NOW, {"tenant": "a"})
    assert not due_times.is_early(ours, NOW - 1)


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
