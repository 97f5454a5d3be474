"""Charts as numbers for static/charts.js, and sparklines as SVG paths."""

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

#: The size of a sparkline in SVG units.
_SPARK_WIDTH, _SPARK_HEIGHT = 96, 20

#: The percentiles that are drawn as lines.
LINES = {"p50": 0.5, "p95": 0.95, "p99": 0.99}

#: The durations, in seconds, at which a plot may have a grid line.
_TICKS = (1e-6, 1e-5, 1e-4, 0.001, 0.01, 0.1, 1.0, 10.0, 60.0, 600.0, 3_600.0, 36_000.0, 864_000.0, 8_640_000.0)

#: Minimum height of a bar in a sparkline, so that a single failure among millions is visible.
_LEAST = 1.5

#: Seconds covered by one bar of the overview, and the number of its bars.
BAR = 5.0
BARS = int(tuning.WINDOW / BAR)


#: The unit of a plot's values. The script formats each.
Unit = Literal["jobs", "jobs/s", "seconds", "bytes", "percent"]


class Plot(Struct, frozen=True, kw_only=True):
    """The values of a chart, for the script that draws it and for the table shown without scripts."""

    unit: Unit
    #: The start of the first part in Unix seconds, and the length of a part.
    start: float
    step: float
    #: The displayed names of the stacked bars, lowest first, and of the lines, by style.
    bars: dict[str, str]
    lines: dict[str, str]
    #: The values of each part, in the order of the bars and lines.
    rows: Sequence[Sequence[float | None]]
    #: The values at a logarithmic axis; empty for a linear axis from zero.
    ticks: tuple[float, ...] = ()
    deploys: Sequence[Deploy] = ()
    #: The URLs of the jobs behind a bar, and of the statistics of a part, to which the script adds the time, or "".
    jobs: str = ""
    detail: str = ""

    @property
    def begun(self) -> bool:
        """Whether the last part isn't over yet, so that its numbers still grow."""
        return self.start + self.step * len(self.rows) > clock.now()

    @property
    def names(self) -> tuple[str, ...]:
        return (*self.bars.values(), *self.lines.values())

    @property
    def table(self) -> list[tuple[str | None, Sequence[float | None]]]:
        """Return the parts that aren't empty, newest first: the start of each, and its numbers."""
        starts = (iso_instant(self.start + nth * self.step) for nth in range(len(self.rows)))
        return [(start, row) for start, row in zip(starts, self.rows, strict=True) if any(row)][::-1]

    @property
    def json(self) -> str:
        """The plot in the format of the script."""
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
    """Plot succeeded and failed runs as bars, including retried ones, and enqueued jobs as a line."""
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
    """Plot the percentiles of these durations for each cell on a logarithmic axis; None if nothing was measured."""
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
    """Return a round duration without zero units: `15 min`."""
    return took(seconds).replace(".0 ", " ").removesuffix(" 0 s").removesuffix(" 0 min").removesuffix(" 0 h")


def waiting_plot(waiting: WaitingJobs, deploys: Sequence[Deploy] = ()) -> Plot:
    """Plot the maximum number of waiting jobs in each part."""
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
    """Plot a worker's memory or CPU usage in each part of the period that begins at `start`, in Unix seconds."""
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
    """Return the URL of the jobs that ended in a cell, from the URL of all jobs."""
    # A filter includes its end, but the end of a cell is part of the next one.
    since, until = iso_instant(cell.start), iso_instant(cell.start + cell.seconds - 0.001)
    return f"{jobs}{'&' if '?' in jobs else '?'}since={since}&until={until}"


def sparkline(history: Sequence[int]) -> str:
    """Return an SVG path with a bar for each part of the history."""
    return spark([(number, 0) for number in history]).done


class Spark(Struct, frozen=True):
    """A sparkline: the paths of its bars, and its numbers as text."""

    done: str
    failed: str
    text: str
    #: The path of the last part, with both outcomes together, if it isn't over yet.
    begun: str = ""


def spark(counts: Sequence[tuple[int, int]], *, begun: bool = False) -> Spark:
    """Return a sparkline of succeeded and failed runs in each part.

    `begun` means that the last part isn't over yet.
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
    """Return a sparkline of a worker's CPU usage, in percent of one processor."""
    known = [value for value in percents if value is not None]
    text = f"CPU in the last ten minutes, at most {round(max(known, default=0.0)):,}%"
    return Spark(sparkline([round((value or 0.0) * 10) for value in percents]), "", text)


class Throughput(Struct, frozen=True, kw_only=True):
    """The overview's chart, and the numbers around it."""

    processed_count: int
    failed_count: int
    #: Number of seconds, of the ten minutes, for which there is data.
    seen: float
    plot: Plot


def throughput(samples: Sequence[Sample], now: float, *, report: Report | None = None, jobs: str = "") -> Throughput:
    """Return the chart of the ten minutes before `now` (Unix seconds), with failed jobs on top of succeeded ones.

    `report` is the journal's report of the last hour, used for the time before the first sample. `jobs` is the URL of
    the jobs behind a bar.
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
    """Return the journal's counts from `start` until the first sample, as one sample per cell of the report.

    In the cell that contains the start of the first sample, only runs that the samples don't count are counted.
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
    """Yield the bars that a sample covers, numbered from the left, with the fraction of the sample in each."""
    start = sample.at - sample.span
    first, last = (int((at - end) // BAR) + BARS for at in (start, sample.at))
    found = []
    for bar in range(first, last + 1):
        left = end + (bar - BARS) * BAR
        overlap = min(sample.at, left + BAR) - max(start, left)
        if 0 <= bar < BARS and overlap > 0:
            found.append((bar, overlap / sample.span))
    return found
