"""When recurring jobs are due."""

from datetime import UTC, datetime, timedelta
from itertools import islice

import pytest
from hypothesis import given
from hypothesis import strategies as st

from palermo.contract.recurring import RecurringJob, every_seconds
from palermo.errors import OptionInvalid


def cron(expression: str, *, tz: str = "Europe/Rome", missed: str = "once") -> RecurringJob:
    return RecurringJob(name="n", job="shop.sweep", cron=expression, tz=tz, missed=missed)


@given(
    st.sampled_from(["*/5 * * * *", "0 3 * * 1-5", "15 2 * * *", "0 0 1 * *", "*/10 * * * * *"]),
    st.floats(min_value=1_577_836_800, max_value=1_893_456_000),
)
def test_ticks_go_forward_and_are_the_same_for_all(expression: str, after: float) -> None:
    recurring = cron(expression)
    ticks = list(islice(recurring.ticks(after), 5))

    assert after < ticks[0]
    assert ticks == sorted(set(ticks))
    assert list(islice(recurring.ticks(ticks[0]), 4)) == ticks[1:]


@given(st.floats(min_value=1, max_value=1e6), st.floats(min_value=0, max_value=4e9))
def test_every_goes_by_elapsed_time(every: float, after: float) -> None:
    first, second = islice(RecurringJob(name="n", job="j", every=every).ticks(after), 2)

    assert after < first <= after + every * 1.000_001
    assert second - first == pytest.approx(every, rel=1e-6, abs=1e-5)


def every(seconds: float, missed: str) -> RecurringJob:
    return RecurringJob(name="n", job="j", every=seconds, missed=missed)


@pytest.mark.parametrize(
    ("missed", "fired"), [("skip", []), ("once", [1_090.0]), ("all", [1_010.0 + 10 * n for n in range(9)])]
)
def test_missed_ticks_go_by_policy(missed: str, fired: list[float]) -> None:
    assert every(10, missed).due(1_000.0, 1_097.0) == (fired, 1_100.0)
    # One on time fires whatever the policy.
    assert every(10, missed).due(1_000.0, 1_010.02) == ([1_010.0], 1_020.0)
    assert every(10, missed).due(1_000.0, 1_009.9) == ([], 1_010.0)


def test_a_year_of_missed_seconds_is_made_up_for_in_bounded_time() -> None:
    fired, following = every(1, "all").due(0.0, 31_536_000.5)
    assert (len(fired), following) == (1_000, 31_536_001.0)

    fired, following = every(1, "once").due(0.0, 31_536_000.5)
    assert (fired, following) == ([31_536_000.0], 31_536_001.0)

    # And a rare one that was missed long ago.
    last, now, fired_at, next_at = (
        datetime(*day, tzinfo=UTC).timestamp() for day in ((2025, 6, 1), (2026, 11, 21), (2026, 1, 1), (2027, 1, 1))
    )
    assert cron("0 0 1 1 *", tz="UTC").due(last, now) == ([fired_at], next_at)


def test_it_says_in_words_when_it_runs_and_may_be_a_timedelta() -> None:
    words = [each.in_words() for each in (every(1, "once"), every(90, "once"), every(7_200, "once"))]

    assert words == ["Every second", "Every 90 seconds", "Every 2 hours"]
    assert cron("*/5 * * * *").in_words() == "Every fifth minute of every hour (Europe/Rome)"
    assert every_seconds(timedelta(minutes=2)) == 120.0
    with pytest.raises(OptionInvalid, match="every="):
        every_seconds(timedelta(milliseconds=5))


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"cron": "61 * * * *"},
        {"cron": f"{'9' * 5_000} * * * *"},
        {"cron": "* * * * *", "tz": "Mars/Base"},
        {"cron": "* * * * *", "tz": "../etc"},
        {"every": True},
        {"every": 1e12},
    ],
)
def test_a_time_that_means_nothing_is_refused(options: dict[str, object]) -> None:
    with pytest.raises(OptionInvalid):
        RecurringJob(name="n", job="j", **options)  # type: ignore[arg-type]
