"""Charts as numbers, which static/charts.js draws, and the small charts beside names, which are paths of an SVG."""

import json
from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from typing import Literal

from msgspec import Struct

from palermo.contract import clock
from palermo.contract.rows import iso_instant
from palermo.core.durations import Durations
from palermo.core.failure import printable
from palermo.core.journal_records import RecordKind
from palermo.history.series import Cell
from palermo.history.statistics import Deploy, Report
from palermo.inspector.rates import Sample
from palermo.webui import tuning
from palermo.webui.render.formats import took
from palermo.webui.state.waiting import WaitingJobs

#: The units of a small chart.
_SPARK_WIDTH, _SPARK_HEIGHT = 96, 20

#: The percentiles that are drawn as lines.
LINES = {"p50": 0.5, "p95": 0.95, "p99": 0.99}

#: The durations at which a plot may have a grid line, in seconds: round values for people.
_TICKS = (1e-6, 1e-5, 1e-4, 0.001, 0.01, 0.1, 1.0, 10.0, 60.0, 600.0, 3_600.0, 36_000.0, 864_000.0, 8_640_000.0)

#: The least height of a bar in a small chart: a single failure among millions must be visible.
_LEAST = 1.5

#: Seconds that one bar of the overview covers, and the number of its bars.
BAR = 5.0
BARS = int(tuning.WINDOW / BAR)


#: What the values of a plot are. The script knows how each is written.
Unit = Literal["jobs", "jobs/s", "seconds", "bytes", "percent"]


class Plot(Struct, frozen=True, kw_only=True):
    """The numbers of a chart, for the script that draws it and for the table where no script runs."""

    unit: Unit
    #: Unix seconds at which the first part begins, and the seconds of each part.
    start: float
    step: float
    #: What stands on each other in a bar, the lowest first, and what is a line: names for people, by looks.
    bars: dict[str, str]
    lines: dict[str, str]
    #: For each part its numbers, in the order of the bars and lines.
    rows: Sequence[Sequence[float | None]]
    #: The values at the axis, which is then logarithmic; empty for an axis that begins at zero.
    ticks: tuple[float, ...] = ()
    deploys: Sequence[Deploy] = ()
    #: The addresses of the jobs behind a bar, and of the statistics of a part of the time, to which the script adds the
    #: time; "" for none.
    jobs: str = ""
    detail: str = ""

    @property
    def begun(self) -> bool:
        """Whether the last part has begun and is not over, so that its numbers still grow."""
        return self.start + self.step * len(self.rows) > clock.now()

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the numbers of a part."""
        return (*self.bars.values(), *self.lines.values())

    @property
    def table(self) -> list[tuple[str | None, Sequence[float | None]]]:
        """The parts in which something happened, the newest first: when each began, and its numbers."""
        starts = (iso_instant(self.start + nth * self.step) for nth in range(len(self.rows)))
        return [(start, row) for start, row in zip(starts, self.rows, strict=True) if any(row)][::-1]

    @property
    def json(self) -> str:
        """The plot as the script reads it."""
        return json.dumps(
            {
                "unit": self.unit,
                "start": self.start,
                "step": self.step,
                "bars": [{"look": look, "name": name} for look, name in self.bars.items()],
                "lines": [{"look": look, "name": name} for look, name in self.lines.items()],
                "rows": self.rows,
                "ticks": self.ticks,
                "marks": [(deploy.at, printable(deploy.release)) for deploy in self.deploys],
                "jobs": self.jobs,
                "detail": self.detail,
                "begun": self.begun,
            },
            separators=(",", ":"),
        )


def runs_plot(cells: Sequence[Cell], deploys: Sequence[Deploy], *, jobs: str, detail: str = "") -> Plot:
    """Succeeded and failed runs as bars, retried or not, and enqueued jobs as a line."""
    return Plot(
        unit="jobs",
        start=cells[0].start,
        step=cells[0].seconds,
        bars={"done": "succeeded", "failed": "failed"},
        lines={"enqueued": "enqueued"},
        rows=[
            (
                cell.tally.processed - cell.tally.failed,
                cell.tally.failed,
                cell.tally.number(RecordKind.ENQUEUED),
            )
            for cell in cells
        ],
        deploys=deploys,
        jobs=jobs,
        detail=detail,
    )


def durations_plot(
    cells: Sequence[Cell], durations: Sequence[Durations], deploys: Sequence[Deploy], *, jobs: str, detail: str = ""
) -> Plot | None:
    """The percentiles of these durations, one for each cell, on a logarithmic axis; None if nothing was measured."""
    rows = [[each.quantile(part) for part in LINES.values()] for each in durations]
    known = [max(value, _TICKS[0]) for row in rows for value in row if value is not None]
    if not known:
        return None
    first = min(max(0, bisect_right(_TICKS, min(known)) - 1), len(_TICKS) - 2)
    last = min(len(_TICKS) - 1, max(bisect_left(_TICKS, max(known)), first + 1))
    return Plot(
        unit="seconds",
        start=cells[0].start,
        step=cells[0].seconds,
        bars={},
        lines={name: name for name in LINES},
        rows=rows,
        ticks=_TICKS[first : last + 1],
        deploys=deploys,
        jobs=jobs,
        detail=detail,
    )


def in_short(seconds: float) -> str:
    """A round duration without its zero units: `15 min`."""
    return took(seconds).replace(".0 ", " ").removesuffix(" 0 s").removesuffix(" 0 min").removesuffix(" 0 h")


def waiting_plot(waiting: WaitingJobs, deploys: Sequence[Deploy] = ()) -> Plot:
    """The most jobs that waited in each part of the time."""
    return Plot(
        unit="jobs",
        start=waiting.start,
        step=waiting.step,
        bars={"waiting": "waiting"},
        lines={},
        rows=[(count,) for count in waiting.most],
        deploys=deploys,
    )


def usage_plot(
    parts: Sequence[float | None],
    *,
    start: float,
    step: float,
    unit: Literal["bytes", "percent"],
    deploys: Sequence[Deploy] = (),
) -> Plot:
    """The memory or processor time that a worker used in each part of the time from `start` on, in Unix seconds."""
    look, name = ("memory", "memory") if unit == "bytes" else ("cpu", "CPU")
    return Plot(
        unit=unit,
        start=start,
        step=step,
        bars={},
        lines={look: name},
        rows=[(None if value is None else round(value, 1),) for value in parts],
        deploys=[each for each in deploys if each.at >= start],
    )


def jobs_of(jobs: str, cell: Cell) -> str:
    """The address of the jobs that ended in a cell, from the address of all jobs."""
    # The end of a filter belongs to it, and the end of a cell to the next one.
    since, until = iso_instant(cell.start), iso_instant(cell.start + cell.seconds - 0.001)
    return f"{jobs}{'&' if '?' in jobs else '?'}since={since}&until={until}"


def sparkline(history: Sequence[int]) -> str:
    """The path of an SVG with a bar for each part of the history."""
    most = max(history, default=0)
    if not most:
        return ""
    step = _SPARK_WIDTH / len(history)
    parts = []
    for place, count in enumerate(history):
        if count:
            tall = max(2.0, _SPARK_HEIGHT * count / most)
            parts.append(f"M{place * step:.1f} {_SPARK_HEIGHT}v-{tall:.1f}h{step * 0.8:.1f}v{tall:.1f}z")
    return "".join(parts)


class Spark(Struct, frozen=True):
    """A small chart beside a name: the paths of its bars, and its numbers for people."""

    done: str
    failed: str
    text: str
    #: The path of the last part, both outcomes together, if that has only begun.
    begun: str = ""


def spark(counts: Sequence[tuple[int, int]], *, begun: bool = False) -> Spark:
    """The small chart of how many runs succeeded and failed in each part of the time.

    `begun` says that the last part is not over.
    """
    most = max((good + bad for good, bad in counts), default=0)
    step = _SPARK_WIDTH / max(1, len(counts))
    done: list[str] = []
    failed: list[str] = []
    for nth, (good, bad) in enumerate(counts):
        foot = 0.0
        for number, steps in ((good, done), (bad, failed)):
            if number:
                tall = max(_LEAST, _SPARK_HEIGHT * number / most)
                steps.append(f"M{nth * step:.1f} {_SPARK_HEIGHT - foot:.1f}v-{tall:.1f}h{step * 0.8:.1f}v{tall:.1f}z")
                foot += tall
    last = done.pop() if begun and done and counts[-1][0] else ""
    last += failed.pop() if begun and failed and counts[-1][1] else ""
    good, bad = (sum(each[part] for each in counts) for part in (0, 1))
    return Spark("".join(done), "".join(failed), f"{good + bad:,} runs, {bad:,} failed", last)


def usage_spark(percents: Sequence[float | None]) -> Spark:
    """The small chart of the processor time of a worker, in per cent of one processor."""
    known = [value for value in percents if value is not None]
    text = f"CPU in the last ten minutes, at most {round(max(known, default=0.0)):,} %"
    return Spark(sparkline([round((value or 0.0) * 10) for value in percents]), "", text)


class Throughput(Struct, frozen=True, kw_only=True):
    """The overview's chart, and the numbers around it."""

    processed_count: int
    failed_count: int
    #: How many seconds of the ten minutes are known.
    seen: float
    plot: Plot


def throughput(samples: Sequence[Sample], now: float, *, report: Report | None = None, jobs: str = "") -> Throughput:
    """The chart of the ten minutes before `now`, in Unix seconds. Failed jobs stand on top of succeeded ones.

    `report` is the journal's of the last hour: the time before the first sample is taken from it. `jobs` is the address
    of the jobs behind a bar.
    """
    end = now // BAR * BAR + BAR
    if report is not None:
        samples = [*_samples_before(samples, report, end - tuning.WINDOW, now), *samples]
    processed, failed = [0.0] * BARS, [0.0] * BARS
    for sample in samples:
        for bar, share in _bars_of(sample, end):
            processed[bar] += sample.processed * share
            failed[bar] += sample.failed * share
    good = [max(0.0, all_ - lost) / BAR for all_, lost in zip(processed, failed, strict=True)]
    bad = [count / BAR for count in failed]
    return Throughput(
        processed_count=sum(sample.processed for sample in samples),
        failed_count=sum(sample.failed for sample in samples),
        seen=tuning.WINDOW if report is not None else sum(sample.span for sample in samples),
        plot=Plot(
            unit="jobs/s",
            start=end - tuning.WINDOW,
            step=BAR,
            bars={"done": "succeeded", "failed": "failed"},
            lines={},
            rows=[(round(done, 3), round(lost, 3)) for done, lost in zip(good, bad, strict=True)],
            deploys=[] if report is None else [each for each in report.deploys if each.at >= end - tuning.WINDOW],
            jobs=jobs,
        ),
    )


def _samples_before(samples: Sequence[Sample], report: Report, start: float, now: float) -> list[Sample]:
    """What the journal counted from `start` to the first of the samples, as samples: one for each cell of the report.

    Of the cell in which the first sample begins it is what the samples do not have.
    """
    first = samples[0].at - samples[0].span if samples else now
    found = []
    for cell in report.cells:
        until = min(first, cell.start + cell.seconds)
        if cell.start + cell.seconds <= start or until <= cell.start:
            continue
        processed, failed = cell.tally.processed, cell.tally.failed
        for sample in samples if until == first else ():
            part = min(sample.at, cell.start + cell.seconds) - (sample.at - sample.span)
            share = max(0.0, part / sample.span)
            processed, failed = processed - round(sample.processed * share), failed - round(sample.failed * share)
        if processed > 0:
            span = until - cell.start
            found.append(Sample(at=until, span=span, processed=processed, failed=min(processed, max(0, failed))))
    return found


def _bars_of(sample: Sample, end: float) -> list[tuple[int, float]]:
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
