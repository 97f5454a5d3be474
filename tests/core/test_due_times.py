"""Where a job waits until it is due, and changes of its instant."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from palermo.core import due_times
from palermo.core.message import MAX_SECONDS, Message
from palermo.errors import OptionInvalid

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
