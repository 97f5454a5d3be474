"""The overview's chart of jobs processed and failed, as paths of an SVG.

No script draws it, and no style sheet sizes it.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from palermo.inspector.rates import Sample
from palermo.webui.state.sampler import WINDOW

#: Seconds that one bar covers, and the number of bars.
BAR = 5.0
BARS = int(WINDOW / BAR)

#: In the SVG's own units. It is stretched to the space on the page.
WIDTH, HEIGHT = 600, 100


@dataclass(frozen=True, slots=True, kw_only=True)
class Chart:
    """The two paths of the bars, and the numbers around them."""

    done: str
    failed: str
    #: Jobs a second at the top of the chart.
    top: float
    processed_count: int
    failed_count: int
    #: How many seconds the samples cover.
    seen: float


def throughput_chart(samples: Sequence[Sample], now: float) -> Chart:
    """The chart of the ten minutes before `now`, in Unix seconds. Failed jobs stand on top of succeeded ones."""
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
    """The bars that a sample covers, counted from the left, each with the part of the sample in it."""
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
    """One path for all bars above zero. A bar is never too low to be seen."""
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
    """The rate rounded up to 1, 2 or 5 times a power of ten, so that the scale does not change with every sample."""
    if rate <= 0:
        return 1.0
    step = 0.1
    while True:
        for factor in (1, 2, 5):
            if step * factor >= rate:
                return step * factor
        step *= 10
