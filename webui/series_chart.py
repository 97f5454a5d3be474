"""Charts of statistics: bars of what was done and lines of how long it took, as paths of an SVG.

No script draws them and no style sheet sizes them. A plot is stretched to the room there is (WIDTH by HEIGHT of its own
units); what must not be stretched, labels and marks of deploys, has places in per cent.
"""

import math
from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from dataclasses import dataclass

from palermo.core.durations import Durations
from palermo.core.journal import Kind
from palermo.history.deploys import Deploy
from palermo.history.series import Cell
from palermo.webui.formats import took

#: The units of a plot.
WIDTH, HEIGHT = 600, 100

#: The lines of how long something took.
LINES = {"p50": 0.5, "p95": 0.95, "p99": 0.99}

#: Where lines may lie across a plot of durations, in seconds: as people count them.
_TICKS = (1e-6, 1e-5, 1e-4, 0.001, 0.01, 0.1, 1.0, 10.0, 60.0, 600.0, 3_600.0, 36_000.0, 864_000.0, 8_640_000.0)

#: The least that a bar is high: a single failure among millions must be seen.
_LEAST = 1.5


@dataclass(frozen=True, slots=True)
class Label:
    """A place on an axis, in per cent from the left or from the top, and what stands there."""

    place: float
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Bars:
    """What was done in each cell; failures stand on what succeeded, and what was enqueued is a line."""

    done: str
    failed: str
    enqueued: str
    #: Jobs in a cell at the top.
    top: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Lines:
    """Percentiles along time, on a logarithmic scale."""

    #: Paths by percentile.
    paths: dict[str, str]
    #: Round durations, the longest first.
    grid: tuple[Label, ...]


def bars(cells: Sequence[Cell]) -> Bars:
    """What was processed in each cell; failed are runs, tried again or not."""
    failed = [cell.tally.failed for cell in cells]
    done = [cell.tally.processed - cell.tally.failed for cell in cells]
    enqueued = [cell.tally.number(Kind.ENQUEUED) for cell in cells]
    top = _round_up(
        max((max(cell.tally.processed, came) for cell, came in zip(cells, enqueued, strict=True)), default=0)
    )
    return Bars(
        done=_bars([0] * len(cells), done, top),
        failed=_bars(done, failed, top),
        enqueued=_steps([HEIGHT - count / top * HEIGHT if any(enqueued) else None for count in enqueued]),
        top=top,
    )


def lines(durations: Sequence[Durations]) -> Lines | None:
    """The percentiles of each cell; None where nothing was measured in any."""
    found = {name: [each.quantile(part) for each in durations] for name, part in LINES.items()}
    known = [max(value, _TICKS[0]) for values in found.values() for value in values if value is not None]
    if not known:
        return None
    first = min(max(0, bisect_right(_TICKS, min(known)) - 1), len(_TICKS) - 2)
    last = min(len(_TICKS) - 1, max(bisect_left(_TICKS, max(known)), first + 1))
    ticks = _TICKS[first : last + 1]
    low, high = math.log(ticks[0]), math.log(ticks[-1])

    def height(seconds: float | None) -> float | None:
        if seconds is None:
            return None
        return min(HEIGHT, max(0.0, HEIGHT * (high - math.log(max(seconds, _TICKS[0]))) / (high - low)))

    step = math.ceil((len(ticks) - 1) / 4)
    return Lines(
        paths={name: _steps([height(value) for value in values]) for name, values in found.items()},
        grid=tuple(Label(round(height(tick) or 0.0, 2), in_short(tick)) for tick in ticks[::-1][::step]),
    )


def in_short(seconds: float) -> str:
    """A round duration without what is zero: `15 min`."""
    return took(seconds).replace(".0 ", " ").removesuffix(" 0 s").removesuffix(" 0 min").removesuffix(" 0 h")


def marks(deploys: Sequence[Deploy], cells: Sequence[Cell]) -> list[Label]:
    """Where the deploys are, from the left."""
    if not cells:
        return []
    start, last = cells[0].start, cells[-1]
    span = last.start + last.seconds - start
    return [Label(round(100 * (deploy.at - start) / span, 2), deploy.release) for deploy in deploys]


def _bars(below: Sequence[int], counts: Sequence[int], top: int) -> str:
    width = WIDTH / max(1, len(counts))
    gap = min(0.8, width / 6)
    steps = []
    for nth, (base, count) in enumerate(zip(below, counts, strict=True)):
        if count <= 0:
            continue
        height = max(_LEAST, count / top * HEIGHT)
        foot = min(HEIGHT - base / top * HEIGHT, HEIGHT)
        steps.append(f"M{nth * width + gap / 2:.2f} {foot:.1f}h{width - gap:.2f}v-{height:.1f}h-{width - gap:.2f}z")
    return "".join(steps)


def _steps(heights: Sequence[float | None]) -> str:
    """A line that is level in each cell, and broken where nothing is known."""
    width = WIDTH / max(1, len(heights))
    parts = []
    drawing = False
    for nth, height in enumerate(heights):
        if height is None:
            drawing = False
            continue
        parts.append(f"V{height:.1f}" if drawing else f"M{nth * width:.2f} {height:.1f}")
        parts.append(f"H{(nth + 1) * width:.2f}")
        drawing = True
    return "".join(parts)


def _round_up(count: int) -> int:
    """The next of 1, 2, 5 times a power of ten, so that the scale does not jump at every job."""
    step = 1
    while True:
        for factor in (1, 2, 5):
            if step * factor >= count:
                return step * factor
        step *= 10
