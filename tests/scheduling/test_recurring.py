"""When recurring jobs are due."""

from bisect import bisect_left
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from functools import cache
from itertools import accumulate, islice, takewhile
from zoneinfo import ZoneInfo, available_timezones

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
    assert cron("*/5 5-5/2 * * *").in_words() == "Every fifth minute from 05:00 through 05:59 (Europe/Rome)"
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


# -- when cron expressions are due where clocks change: compared with a clock that is read every 30 seconds


_DAY, _WEEK, _STEP = 86_400, 7 * 86_400, 30
_EPOCH = datetime(1970, 1, 1)
_FIELDS = (range(60), range(60), range(24), range(1, 32), range(1, 13))

_FIXED = [
    *("30 2 * * *", "0 0 * * *", "0,15,30,45 1-3 * * *", "0 0-23 * * *", "5-55/10 0,23 * * *", "0 12 1,15 * *"),
    *("30 0 0 * * *", "0 30 2 * * *", "0,30 0,30 0-4 * * *", "30 59 23 * * *", "*/30 30 2 * * *"),
]
_ELAPSED = [
    *("* * * * *", "0 * * * *", "0 */6 * * *", "*/20 9-17 * * *", "*/30 * * * *", "*/7 2 * * *", "15 */2 */2 * *"),
    *("0 * * * * *", "30 15 * * * *", "0 */10 1-3 * * *", "*/30 * 0 * * *"),
]


class WallClock:
    """What a clock on the wall shows from a day before a change until a day after it."""

    def __init__(self, zone: ZoneInfo, change: int) -> None:
        self.instants = range(change - _DAY, change + _DAY, _STEP)
        #: Seconds as if the clock were in UTC.
        self.shown = [shown(instant, zone) for instant in self.instants]
        self.furthest = list(accumulate(self.shown, max))
        #: The times from the first that is shown to the last, as an expression has them.
        self.walls = [(wall, *parts(wall)) for wall in range(self.shown[0], self.shown[-1] + 1, _STEP)]

    def by_elapsed_time(self, expression: str) -> list[int]:
        """Every instant at which it shows a matching time."""
        due = set(self.matching(expression))
        return [instant for instant, shown in zip(self.instants, self.shown, strict=True) if shown in due]

    def by_wall_clock(self, expression: str) -> list[int]:
        """For every matching time, skipped or not, the first instant at which it shows that time or a later one."""
        indices = {bisect_left(self.furthest, due) for due in self.matching(expression)}
        return [self.instants[index] for index in sorted(indices)]

    def matching(self, expression: str) -> list[int]:
        """The times that match, skipped ones as well."""
        *first, minutes, hours, days, months, _ = expression.split()
        given = zip((*(first or "0"), minutes, hours, days, months), _FIELDS, strict=True)
        second, minute, hour, day, month = (values(field, all) for field, all in given)
        return [
            wall
            for wall, s, m, h, d, n in self.walls
            if s in second and m in minute and h in hour and d in day and n in month
        ]


def parts(wall: int) -> tuple[int, int, int, int, int]:
    at = _EPOCH + timedelta(seconds=wall)
    return at.second, at.minute, at.hour, at.day, at.month


def values(field: str, all: range) -> set[int]:
    if "," in field:
        return set().union(*(values(one, all) for one in field.split(",")))
    span, _, step = field.partition("/")
    first, _, last = span.partition("-")
    found = all if first == "*" else range(int(first), int(last or first) + 1)
    return set(found[:: int(step or 1)])


def shown(instant: int, zone: ZoneInfo) -> int:
    wall = datetime.fromtimestamp(instant, zone).replace(tzinfo=None)
    return int((wall - _EPOCH).total_seconds())


def changes(zone: ZoneInfo) -> Iterator[int]:
    """The instants of five years at which the clocks of this zone change."""
    begin = int(datetime(2025, 1, 1, tzinfo=UTC).timestamp())

    def offset(instant: int) -> int:
        return shown(instant, zone) - instant

    # No two changes are within a week of each other.
    for day in range(begin, begin + 5 * 365 * _DAY, _WEEK):
        if offset(day) != offset(day + _WEEK):
            yield day + bisect_left(range(day, day + _WEEK), True, key=lambda at: offset(at) != offset(day))


@cache
def wall_clocks() -> dict[str, WallClock]:
    """One for every offset before a change, time of day and length of a change, by a zone that has it and the date."""
    found: dict[tuple[int, int, int], tuple[str, WallClock]] = {}
    for name in sorted(available_timezones() - {"localtime"}):
        zone = ZoneInfo(name)
        for change in changes(zone):
            before, after = shown(change - 1, zone) + 1, shown(change, zone)
            way = (before - change, before % _DAY, after - before)
            if way not in found:
                found[way] = f"{name} {datetime.fromtimestamp(change, UTC).date()}", WallClock(zone, change)
    return dict(found.values())


def ticks(expression: str, place: str, clock: WallClock) -> list[float]:
    recurring = RecurringJob(name="n", job="j", cron=expression, tz=place.split()[0])
    found = recurring.ticks(clock.instants[0] - 0.5)
    return list(takewhile(lambda tick: tick <= clock.instants[-1], found))


@pytest.mark.slow
@pytest.mark.parametrize("expression", [*_FIXED, *_ELAPSED])
def test_a_fixed_time_runs_once_a_day_and_others_whenever_a_clock_shows_it(expression: str) -> None:
    due = WallClock.by_wall_clock if expression in _FIXED else WallClock.by_elapsed_time

    wrong = [
        place for place, clock in wall_clocks().items() if ticks(expression, place, clock) != due(clock, expression)
    ]

    assert wrong == []


@pytest.mark.slow
def test_the_sample_has_changes_of_half_an_hour_and_at_midnight() -> None:
    clocks = wall_clocks().values()

    lengths = {clock.shown[_DAY // _STEP] - clock.shown[_DAY // _STEP - 1] - _STEP for clock in clocks}
    hours = {clock.shown[_DAY // _STEP - 1] % _DAY // 3_600 for clock in clocks}
    assert {1_800, -1_800, 3_600, -3_600} <= lengths
    assert {1, 2, 23} <= hours
