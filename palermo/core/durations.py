"""Many durations as a few numbers: count, sum, minimum, maximum, and a histogram for percentiles.

All values are in seconds. Results of many workers and periods can be added. Sum, minimum and maximum stay exact;
percentiles are exact to the width of a bucket, 19 per cent. In JSON, the histogram's bucket numbers are text.
"""

import math
from bisect import bisect_left
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, TypeGuard

from msgspec import Struct, field

#: The number of durations in each bucket.
Histogram = dict[int, int]

#: Upper bound of bucket 0, in seconds. Each bucket's bound is 2 ** 0.25 times that of the one before.
SMALLEST = 0.000_1
_STEPS = 4

#: The last bucket, which starts above a year.
LAST = 160


def upper(bucket: int) -> float:
    """The longest duration in a bucket, in seconds."""
    return SMALLEST * math.exp2(bucket / _STEPS)


#: A search in it, twice for each job, costs a third of a logarithm.
_UPPER = [upper(number) for number in range(LAST)]

#: The bucket of a duration. A negative one, caused by clock differences, counts as zero.
bucket: Callable[[float], int] = partial(bisect_left, _UPPER)


def quantile(histogram: Mapping[int, int], part: float) -> float | None:
    """The duration that a fraction `part` (0 to 1) doesn't exceed, in seconds; None for an empty histogram."""
    total = sum(histogram.values())
    if not total:
        return None
    wanted = max(1, math.ceil(part * total))
    for number in sorted(histogram):
        wanted -= histogram[number]
        if wanted <= 0:
            return upper(number)
    raise AssertionError("the histogram has fewer values than its total")


#: Longer than any job takes; a larger number in a record is ignored as invalid.
_MOST = 2.0**40


#: Buckets by their keys in a record: text if the record was JSON, otherwise integers.
_BUCKETS: Mapping[Any, int] = {key: number for number in range(LAST + 1) for key in (number, str(number))}


class Durations(Struct):
    """All durations of one kind of event."""

    count: int = 0
    sum: float = 0.0
    least: float = math.inf
    most: float = 0.0
    histogram: Histogram = field(default_factory=dict)

    def add(self, seconds: float) -> None:
        """Add one duration. A negative one, caused by clock differences, counts as zero."""
        # Called twice for every job: comparing costs half as much as min and max.
        if seconds < 0.0:
            seconds = 0.0
        if seconds < self.least:
            self.least = seconds
        if seconds > self.most:
            self.most = seconds
        self.count += 1
        self.sum += seconds
        number = bucket(seconds)
        self.histogram[number] = self.histogram.get(number, 0) + 1

    def merge(self, other: "Durations") -> None:
        """Add another object's durations."""
        self.count += other.count
        self.sum += other.sum
        self.least = min(self.least, other.least)
        self.most = max(self.most, other.most)
        mine = self.histogram
        for number, count in other.histogram.items():
            mine[number] = mine.get(number, 0) + count

    @property
    def mean(self) -> float | None:
        """The arithmetic mean; None without durations."""
        return self.sum / self.count if self.count else None

    def quantile(self, part: float) -> float | None:
        """The duration that a fraction `part` (0 to 1) doesn't exceed; None without durations."""
        found = quantile(self.histogram, part)
        return None if found is None else min(max(found, self.least), self.most)

    def fields(self, name: str) -> dict[str, Any]:
        """The fields of a journal record: `name` with the histogram, and its sum, min and max; {} without durations."""
        if not self.count:
            return {}
        return {
            name: self.histogram,
            f"{name}_sum": round(self.sum, 6),
            f"{name}_min": round(self.least, 6),
            f"{name}_max": round(self.most, 6),
        }

    def read(self, record: Mapping[str, Any], name: str) -> None:
        """Add the result of `fields`; an invalid histogram adds nothing.

        If the record has only the histogram, sum, minimum and maximum are estimated from it.
        """
        buckets = record.get(name)
        if not isinstance(buckets, Mapping):
            return
        mine, known = self.histogram, dict[int, int]()
        for key, count in buckets.items():
            number = _BUCKETS.get(key)
            if number is not None and type(count) is int and count > 0:
                mine[number] = mine.get(number, 0) + count
                known[number] = count
        if not known:
            return
        total, least, most = (record.get(f"{name}_{what}") for what in ("sum", "min", "max"))
        if not (_is_duration(total) and _is_duration(least) and _is_duration(most)):
            total, least, most = _estimated(known)
        self.count += sum(known.values())
        self.sum += total
        self.least = min(self.least, least)
        self.most = max(self.most, most)


def _is_duration(value: object) -> TypeGuard[float]:
    return isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value < _MOST


def _estimated(histogram: Histogram) -> tuple[float, float, float]:
    """The sum, the minimum and the maximum, estimated from a histogram."""
    first, last = min(histogram), max(histogram)
    total = sum(upper(number) * count for number, count in histogram.items())
    return total, upper(first - 1) if first else 0.0, upper(last)
