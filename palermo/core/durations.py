"""Many durations as a few numbers: how many, their sum, the least, the most, and a histogram for what is between.

Everything is in seconds. Adding up those of many workers and many minutes gives the numbers of all: sum, least
and most exactly, percentiles to the width of a bucket of palermo.core.histogram.
"""

import math
from collections.abc import Mapping
from dataclasses import field
from typing import Any, TypeGuard

from palermo.core.histogram import LAST, Histogram, bucket, merge, quantile, upper
from palermo.core.values import dataclass

#: More than any job takes; beyond it a number in a record is taken for nonsense.
_MOST = 2.0**40


#: Buckets by what they are called in a record that has been JSON, and in one that has not.
_BUCKETS: Mapping[Any, int] = {key: number for number in range(LAST + 1) for key in (number, str(number))}


@dataclass(slots=True)
class Durations:
    """What is known of how long something took, each time."""

    count: int = 0
    sum: float = 0.0
    least: float = math.inf
    most: float = 0.0
    histogram: Histogram = field(default_factory=dict)

    def add(self, seconds: float) -> None:
        """One more; below zero, as clocks that differ make it, counts as zero."""
        # Twice for every job that is run: comparing costs half of what min and max do.
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
        """Add those that another one knows of."""
        self.count += other.count
        self.sum += other.sum
        self.least = min(self.least, other.least)
        self.most = max(self.most, other.most)
        mine = self.histogram
        for number, count in other.histogram.items():
            mine[number] = mine.get(number, 0) + count

    @property
    def mean(self) -> float | None:
        """The arithmetic mean; None for none."""
        return self.sum / self.count if self.count else None

    def quantile(self, part: float) -> float | None:
        """The duration that this part (0 to 1) of all did not exceed; within least and most; None for none."""
        found = quantile(self.histogram, part)
        return None if found is None else min(max(found, self.least), self.most)

    def fields(self, name: str) -> dict[str, Any]:
        """As a record of the journal has them: `name` with the histogram, and its sum, min and max; {} for none."""
        if not self.count:
            return {}
        return {
            name: self.histogram,
            f"{name}_sum": round(self.sum, 6),
            f"{name}_min": round(self.least, 6),
            f"{name}_max": round(self.most, 6),
        }

    def read(self, record: Mapping[str, Any], name: str) -> None:
        """Add what `fields` made; by the histogram alone where a writer said no more, and nothing where it is none."""
        buckets = record.get(name)
        if not isinstance(buckets, Mapping):
            return
        mine, found = self.histogram, 0
        for key, count in buckets.items():
            number = _BUCKETS.get(key)
            if number is not None and type(count) is int and count > 0:
                mine[number] = mine.get(number, 0) + count
                found += count
        if not found:
            return
        total, least, most = (record.get(f"{name}_{what}") for what in ("sum", "min", "max"))
        if not (_is_duration(total) and _is_duration(least) and _is_duration(most)):
            total, least, most = _estimated(buckets)
        self.count += found
        self.sum += total
        self.least = min(self.least, least)
        self.most = max(self.most, most)


def _is_duration(value: object) -> TypeGuard[float]:
    return isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value < _MOST


def _estimated(buckets: Mapping[Any, Any]) -> tuple[float, float, float]:
    """What the sum, the least and the most may be."""
    known: Histogram = {}
    merge(known, buckets)
    first, last = min(known), max(known)
    total = sum(upper(number) * count for number, count in known.items())
    return total, upper(first - 1) if first else 0.0, upper(last)
