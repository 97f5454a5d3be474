"""The instants of a cron expression, with the clock-change rules of Debian's cron.

An expression for fixed times follows the wall clock. If a time is skipped, it runs at the first instant after the gap;
if a time is repeated, it runs once, at its first occurrence. Any other expression, for every hour or every few minutes,
follows elapsed time: it is due whenever the wall clock shows a matching time. Both rules hold for changes of any length
at any hour, since some zones change their clocks by half an hour, or at midnight.
"""

from bisect import bisect_left
from collections.abc import Callable, Iterator
from datetime import UTC, date, datetime, time, timedelta, tzinfo

from msgspec import Struct

_MINUTE, _HOUR, _DAY = timedelta(minutes=1), timedelta(hours=1), timedelta(days=1)

#: An expression without a matching day in this time is never due. The weekday of 29 February repeats within 40 years.
_HORIZON = timedelta(days=50 * 366)


class Cron(Struct, frozen=True, kw_only=True):
    """A parsed cron expression; the numbers are in ascending order."""

    seconds: tuple[int, ...]
    minutes: tuple[int, ...]
    hours: tuple[int, ...]
    has_day: Callable[[date], bool]
    #: Whether it follows the wall clock instead of elapsed time.
    fixed: bool

    def instants(self, after: float, zone: tzinfo) -> Iterator[float]:
        """Its due times after `after`, in Unix seconds and ascending order.

        The iterator ends if no day matches for fifty years.
        """
        last = after
        for instant in self._by_wall_clock(after, zone) if self.fixed else self._by_elapsed_time(after, zone):
            if instant > last:
                last = instant
                yield float(instant)

    def _by_wall_clock(self, after: float, zone: tzinfo) -> Iterator[int]:
        start = _shown(after, zone)
        for wall in self._walls(start, start + _HORIZON):
            aware = wall.replace(tzinfo=zone)
            instant = int(aware.timestamp())
            if _shown(instant, zone) != wall:  # skipped: with fold=1 the same wall time is before the gap
                instant = _change(int(aware.replace(fold=1).timestamp()), instant, zone)
            yield instant

    def _by_elapsed_time(self, after: float, zone: tzinfo) -> Iterator[int]:
        start = int(after)
        for _ in range(_HORIZON.days):
            end = start + int(_DAY.total_seconds())
            # Between two changes of its offset a wall clock shows each time once, in order.
            if (offset := _offset(start, zone)) != _offset(end, zone):
                end = _change(start, end, zone)
            moved = datetime.fromtimestamp(start, UTC).replace(tzinfo=None) + offset
            for wall in self._walls(moved, moved + timedelta(seconds=end - start)):
                yield start + int((wall - moved).total_seconds())
            start = end

    def _walls(self, start: datetime, end: datetime) -> Iterator[datetime]:
        """The matching wall-clock times from `start` (included) to `end` (excluded), without clock changes."""
        midnight = datetime.combine(start, time())
        while midnight < end:
            for hour in self.hours if self.has_day(midnight.date()) else ():
                at_hour = midnight + hour * _HOUR
                for minute in self.minutes if at_hour + _HOUR > start else ():
                    at_minute = at_hour + minute * _MINUTE
                    for second in self.seconds if at_minute + _MINUTE > start else ():
                        wall = at_minute + timedelta(seconds=second)
                        if wall >= end:
                            return
                        if wall >= start:
                            yield wall
            midnight += _DAY


def _shown(instant: float, zone: tzinfo) -> datetime:
    """The wall-clock time in this zone."""
    return datetime.fromtimestamp(instant, zone).replace(tzinfo=None, fold=0)


def _offset(instant: int, zone: tzinfo) -> timedelta:
    offset = datetime.fromtimestamp(instant, zone).utcoffset()
    assert offset is not None
    return offset


def _change(before: int, after: int, zone: tzinfo) -> int:
    """The instant between these two at which the zone's offset changes."""
    old = _offset(before, zone)
    return before + bisect_left(range(before, after), True, key=lambda instant: _offset(instant, zone) != old)
