"""Histograms of durations, from which percentiles are read; buckets grow by a quarter of an octave each.

A histogram maps buckets to counts; in JSON the buckets are text. Histograms are merged by adding, so
those of many workers and many minutes give the percentiles of all. A percentile is exact to the width
of its bucket, 19 per cent.
"""

import math
from bisect import bisect_left
from collections.abc import Mapping

Histogram = dict[int, int]

#: The upper end of bucket 0, in seconds. Each bucket is 2 ** 0.25 times as wide as the one before.
SMALLEST = 0.000_1
_STEPS = 4

#: The last bucket, which begins beyond a year.
LAST = 160


def upper(bucket: int) -> float:
    """The longest duration in a bucket, in seconds."""
    return SMALLEST * math.exp2(bucket / _STEPS)


#: Looked up twice for each job that runs, at a third of the cost of a logarithm.
_UPPER = [upper(number) for number in range(LAST)]


def bucket(seconds: float) -> int:
    """The bucket of a duration; a negative one, which comes from clocks that differ, counts as zero."""
    return bisect_left(_UPPER, seconds)


def merge(into: Histogram, other: Mapping[int, int] | Mapping[str, int]) -> None:
    """Add another histogram, also one that has been JSON; entries that are no bucket or no count are left out."""
    for key, count in other.items():
        try:
            number = int(key)
        except ValueError:
            continue
        if 0 <= number <= LAST and isinstance(count, int) and count > 0:
            into[number] = into.get(number, 0) + count


def quantile(histogram: Mapping[int, int], part: float) -> float | None:
    """The duration that this part (0 to 1) of all did not exceed, in seconds; None for an empty histogram."""
    total = sum(histogram.values())
    if not total:
        return None
    wanted = max(1, math.ceil(part * total))
    for number in sorted(histogram):
        wanted -= histogram[number]
        if wanted <= 0:
            return upper(number)
    raise AssertionError("more were wanted than there are")
