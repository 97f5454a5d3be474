"""Two sides measured in turn, so that what else the machine does hits both; a ratio per round, and their median.

Only the ratios travel from one machine to another. The rates are those of this machine at this hour.
"""

import gc
import os
import platform
import statistics
from collections.abc import Callable
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version

#: How many times the lowest ratio the highest may be, for the median to mean something.
_SPREAD = 1.5


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """One side in one round."""

    #: Jobs a second.
    rate: float
    #: Microseconds of CPU per job in this side's own processes, the broker's not counted.
    cpu: float


def contest(
    title: str,
    play: Callable[[int], tuple[Sample, Sample]],
    *,
    rounds: int,
    goal: float,
    broker: str,
    load: str,
    names: tuple[str, str] = ("palermo", "bare"),
) -> float:
    """Measure and print; returns the median ratio.

    `play` is one round, given its number from 1: Palermo's sample, then the bare client's, or whatever the two
    `names` are. `load` says what one side does in one round.
    """
    print(title)
    print(f"{versions(broker)}; {machine()}; {rounds} rounds of {load}\n")
    us, them = names
    heads = (f"{us}/s", f"{them}/s", "ratio", f"{us} us CPU", f"{them} us CPU")
    print(f"{'round':>6} {heads[0]:>10} {heads[1]:>10} {heads[2]:>6} {heads[3]:>15} {heads[4]:>12}")
    ours: list[Sample] = []
    theirs: list[Sample] = []
    for number in range(1, rounds + 1):
        gc.collect()
        mine, other = play(number)
        ours.append(mine)
        theirs.append(other)
        _row(str(number), mine, other, mine.rate / other.rate)
    ratios = sorted(mine.rate / other.rate for mine, other in zip(ours, theirs, strict=True))
    ratio = statistics.median(ratios)
    _row("median", _median(ours), _median(theirs), ratio)
    verdict = "reached" if ratio >= goal else "not reached"
    if ratios[-1] > _SPREAD * ratios[0]:
        verdict += " by the median, but the rounds differ too much to rely on it: use a quieter machine or more rounds"
    print(f"\nratio {ratio:.2f} (median; {ratios[0]:.2f} to {ratios[-1]:.2f}), goal {goal:.2f}: {verdict}")
    return ratio


def versions(broker: str) -> str:
    """What takes part."""
    try:
        loop = f"uvloop {version('uvloop')}"
    except PackageNotFoundError:
        loop = "no uvloop"
    return f"RabbitMQ {broker}, pika {version('pika')}, Python {platform.python_version()}, {loop}"


def machine() -> str:
    """What it runs on, and how much of that others use."""
    return f"{os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}"


def _median(samples: list[Sample]) -> Sample:
    return Sample(
        rate=statistics.median(sample.rate for sample in samples),
        cpu=statistics.median(sample.cpu for sample in samples),
    )


def _row(name: str, ours: Sample, theirs: Sample, ratio: float) -> None:
    print(
        f"{name:>6} {ours.rate:>10,.0f} {theirs.rate:>10,.0f} {ratio:>6.2f} {ours.cpu:>15,.0f} {theirs.cpu:>12,.0f}",
        flush=True,
    )
