"""The scores of the rounds: medians, ratios to the base of the same round, and how far they differ."""

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

#: The scores of one contender in one round, by the key of a Metric.
Score = Mapping[str, float]


@dataclass(frozen=True, slots=True, kw_only=True)
class Metric:
    """One of the figures that a workload gives."""

    key: str
    #: With its unit, as it stands above the column.
    head: str
    #: Digits behind the point.
    digits: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Spread:
    """A median and what lies around it."""

    median: float
    lowest: float
    highest: float

    @classmethod
    def of(cls, values: Sequence[float]) -> "Spread":
        return cls(median=statistics.median(values), lowest=min(values), highest=max(values))


def ratios(scores: Sequence[Score], base: Sequence[Score], key: str) -> list[float]:
    """One to another, round by round; rounds in which either has nothing are left out."""
    pairs = zip(scores, base, strict=False)
    return [mine[key] / other[key] for mine, other in pairs if mine.get(key) and other.get(key)]


def spread(scores: Sequence[Score], key: str) -> Spread | None:
    """The median of one figure over all rounds that have it."""
    values = [score[key] for score in scores if key in score]
    return Spread.of(values) if values else None


def percentile(values: Sequence[float], share: float) -> float:
    """The value that this share of all, from 0 to 1, does not exceed."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(len(ordered) * share))]
