"""Comparisons of two sides in one run: a ratio per round, and their median.

The sides take turns, so that other work of the machine affects both. Only ratios travel from one machine to another.
"""

import argparse
import gc
import os
import platform
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version

from benchmarks.ground import Ground, add_url, ground

#: The highest ratio divided by the lowest, above which the median means nothing.
_SPREAD = 1.5


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """One side in one round."""

    #: Jobs per second.
    rate: float
    #: Microseconds of CPU per job in this side's own processes, without the broker.
    cpu: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One comparison, which the command line selects by name."""

    title: str
    #: One round with this number of jobs per side; the first sample divided by the second is the ratio.
    play: Callable[[Ground, int], tuple[Sample, Sample]]
    #: Jobs per side and round, unless `-n` is given.
    jobs: int
    names: tuple[str, str] = ("palermo", "bare")


def compare(description: str, rows: Mapping[str, Row], *, usual: Sequence[str]) -> None:
    """Read the command line, then run each selected row on a broker of its own."""
    parser = argparse.ArgumentParser(
        description=description,
        epilog="\n".join(f"{name:>12}  {row.title}" for name, row in rows.items()),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("rows", nargs="*", metavar="ROW", help=f"the rows to run; default: {' '.join(usual)}")
    add_url(parser)
    parser.add_argument("--rounds", type=int, default=5, help="rounds of both sides; default: %(default)s")
    parser.add_argument("-n", type=int, metavar="JOBS", help="jobs per side and round; default: as the row needs")
    given = parser.parse_args()
    if unknown := set(given.rows) - rows.keys():
        parser.error(f"unknown row {', '.join(sorted(unknown))}; the rows are {', '.join(rows)}.")
    for name in given.rows or usual:
        with ground(given.url) as place:
            contest(name, rows[name], place, rounds=given.rounds, jobs=given.n or rows[name].jobs)


def contest(name: str, row: Row, place: Ground, *, rounds: int, jobs: int) -> None:
    """Measure one row and print it."""
    us, them = row.names
    print(f"{name}: {row.title}")
    print(f"{versions(place.version)}; {machine()}; {rounds} rounds{f' of {jobs:,} jobs per side' if jobs else ''}\n")
    print(f"{'round':>6} {us:>12}/s {them:>12}/s {'ratio':>6} {us:>12} µs CPU {them:>12} µs CPU")
    place.connect()
    played = list[tuple[Sample, Sample]]()
    for number in range(1, rounds + 1):
        gc.collect()
        played.append(row.play(place, jobs))
        _print(str(number), *played[-1])
    ratios = sorted(one.rate / other.rate for one, other in played)
    ours, theirs = zip(*played, strict=True)
    ratio = statistics.median(ratios)
    _print("median", _median(ours), _median(theirs), ratio)
    print(f"\nratio {ratio:.2f} (median; {ratios[0]:.2f} to {ratios[-1]:.2f})")
    if ratios[-1] > _SPREAD * ratios[0]:
        print("The rounds differ too much for the median to be reliable: use a quieter machine or more rounds.")
    print(flush=True)


def versions(broker: str) -> str:
    """The versions that take part in a run on this version of RabbitMQ."""
    try:
        loop = f"uvloop {version('uvloop')}"
    except PackageNotFoundError:
        loop = "no uvloop"
    return f"RabbitMQ {broker}, pika {version('pika')}, Python {platform.python_version()}, {loop}"


def machine() -> str:
    """The cores of this machine, and its load."""
    return f"{os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}"


def _median(samples: Sequence[Sample]) -> Sample:
    return Sample(
        rate=statistics.median(sample.rate for sample in samples),
        cpu=statistics.median(sample.cpu for sample in samples),
    )


def _print(name: str, ours: Sample, theirs: Sample, ratio: float | None = None) -> None:
    ratio = ours.rate / theirs.rate if ratio is None else ratio
    rates = f"{ours.rate:>14,.0f} {theirs.rate:>14,.0f}"
    print(f"{name:>6} {rates} {ratio:>6.2f} {ours.cpu:>19,.0f} {theirs.cpu:>19,.0f}", flush=True)
