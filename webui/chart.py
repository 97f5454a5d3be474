"""The chart of jobs processed and failed, as paths of an SVG. No script draws it, and no style sheet sizes it."""

from collections.abc import Sequence
from dataclasses import dataclass

from palermo.sampling import Sample
from palermo.webui.sampler import KEPT

#: Seconds that one bar stands for, and the bars in the chart.
BAR = 5.0
BARS = int(KEPT / BAR)

#: The SVG's own units; it is stretched to the room there is.
WIDTH, HEIGHT = 600, 100


@dataclass(frozen=True, slots=True, kw_only=True)
class Chart:
    """Two paths, and what is written around them."""

    done: str
    failed: str
    #: Jobs a second at the top of the chart.
    top: float
    processed_count: int
    failed_count: int
    #: How many seconds were seen at all.
    seen: float


def chart_of(samples: Sequence[Sample], now: float) -> Chart:
    """The last ten minutes before `now`, Unix seconds; failed jobs stand on those that succeeded."""
    end = now // BAR * BAR + BAR
    processed, failed = [0.0] * BARS, [0.0] * BARS
    for sample in samples:
        for bar, share in _bars(sample, end):
            processed[bar] += sample.processed * share
            failed[bar] += sample.failed * share
    top = _round_up(max((count / BAR for count in processed), default=0.0))
    succeeded = [max(0.0, all_ - bad) for all_, bad in zip(processed, failed, strict=True)]
    nothing = [0.0] * BARS
    return Chart(
        done=_path(nothing, succeeded, top),
        failed=_path(succeeded, failed, top),
        top=top,
        processed_count=sum(sample.processed for sample in samples),
        failed_count=sum(sample.failed for sample in samples),
        seen=sum(sample.span for sample in samples),
    )


def _bars(sample: Sample, end: float) -> list[tuple[int, float]]:
    """Which bars a sample covers, counted from the left, and what part of it falls on each."""
    start = sample.at - sample.span
    first, last = (int((at - end) // BAR) + BARS for at in (start, sample.at))
    found = []
    for bar in range(first, last + 1):
        left = end + (bar - BARS) * BAR
        overlap = min(sample.at, left + BAR) - max(start, left)
        if 0 <= bar < BARS and overlap > 0:
            found.append((bar, overlap / sample.span))
    return found


def _path(below: Sequence[float], counts: Sequence[float], top: float) -> str:
    """One path for all bars that are above zero; failed ones are never too low to be seen."""
    width = WIDTH / BARS
    steps = []
    for nth, (base, count) in enumerate(zip(below, counts, strict=True)):
        if count <= 0 or top <= 0:
            continue
        height = max(1.5, count / BAR / top * HEIGHT)
        foot = HEIGHT - base / BAR / top * HEIGHT
        steps.append(f"M{nth * width + 0.4:g} {foot:.1f}h{width - 0.8:g}v-{height:.1f}h-{width - 0.8:g}z")
    return "".join(steps)


def _round_up(rate: float) -> float:
    """The next of 1, 2, 5 times a power of ten, so that the scale does not jump at every sample."""
    if rate <= 0:
        return 1.0
    step = 0.1
    while True:
        for factor in (1, 2, 5):
            if step * factor >= rate:
                return step * factor
        step *= 10
