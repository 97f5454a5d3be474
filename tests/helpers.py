"""Helpers for every test: waiting for something to become true, and bounds on time."""

import os
import re
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TypeVar

import palermo

T = TypeVar("T")

#: Seconds after which what a test waits for is taken to hang. More than any test's program gives the broker (60): one
#: publish that RabbitMQ never answers is made up for, and nothing is slower for it.
HANGS = 150.0

#: The folder of our own code; the one around it, and with it the tests, may be named palermo too.
PACKAGE = Path(palermo.__file__).parent


class Stopwatch:
    """Seconds since it was made, without those in which a process of this machine waited for a processor.

    A bound on them is strict on a machine at rest, and is never missed because the machine is busy with others, or
    because it is a virtual one whose host is busy. The kernel of Linux counts both; elsewhere every second counts.
    """

    def __init__(self) -> None:
        self._began = time.monotonic()
        self._stalled = _stalled()

    def seconds(self) -> float:
        return time.monotonic() - self._began - self.stalled()

    def is_over(self, within: float) -> bool:
        """Whether so many seconds have gone. A minute after as many by the clock, they have in any case."""
        gone = time.monotonic() - self._began
        return gone > within and (self.seconds() > within or gone > within + 60)

    def stalled(self) -> float:
        """The seconds since then that it leaves out."""
        return _stalled() - self._stalled


def _stalled() -> float:
    """The seconds since the machine was started in which some process was ready to run and did not."""
    try:
        pressure, total = Path("/proc/pressure/cpu").read_text(), Path("/proc/stat").read_text().split("\n", 1)[0]
    except OSError:
        return 0.0
    # What a host takes from its virtual machine is the eighth figure, of all processors together.
    stolen = int(total.split()[8]) / os.sysconf("SC_CLK_TCK")
    return int(pressure.split("total=", 1)[1].split()[0]) / 1_000_000 + stolen


def eventually(probe: Callable[[], T], *, within: float = HANGS, every: float = 0.02) -> T:
    """The first true value of `probe()`; fails with its last value when `within` seconds of a Stopwatch have gone.

    An AssertionError in the probe counts as false, and is what the test shows in the end. So does an error that says
    that less is there than the probe reads: a row too few, a name that is not listed, a file that is half written.
    """
    watch = Stopwatch()
    while True:
        failure: Exception | None = None
        value: T | None = None
        try:
            value = probe()
        except (AssertionError, LookupError, ValueError) as error:
            failure = error
        if failure is None and value:
            return value
        if watch.is_over(within):
            raise failure or AssertionError(f"still {value!r} after {within} s")
        time.sleep(every)


def whole_lines(path: Path) -> list[str]:
    """The lines of a file, none if there is no file; somebody may be writing one more."""
    text = path.read_text() if path.exists() else ""
    return text[: text.rfind("\n") + 1].splitlines()


def has_traceback(log: str) -> bool:
    """Whether a worker's log has a traceback of Palermo's own; those of failed jobs are indented."""
    return re.search(r"^Traceback", log, re.MULTILINE) is not None


def idle_share(pids: Iterable[int], *, over: float = 5.0) -> float:
    """The share of a core that these processes use once they are at rest: below one percent, or this fails.

    The first seconds after a start hold what is done once, so this looks again until they are over.
    """
    watched = list(pids)
    share = 1.0

    def at_rest() -> bool:
        nonlocal share
        used = -_cpu_seconds(watched)
        time.sleep(over)
        share = (used + _cpu_seconds(watched)) / over
        return share < 0.01

    eventually(at_rest, within=60)
    return share


def _cpu_seconds(pids: Iterable[int]) -> float:
    total = 0
    for pid in pids:
        with open(f"/proc/{pid}/stat") as stat:
            fields = stat.read().rpartition(")")[2].split()
        total += int(fields[11]) + int(fields[12])
    return total / os.sysconf("SC_CLK_TCK")
