"""The clock of this process: the only source of time for jobs.

All code that gives a job an instant, or compares one with the present, uses it. Code that watches processes and
connections uses the machine's clock instead: `time.monotonic()`, and `time.time()` for locks that another process
reads. _HOMES in tests/test_architecture.py lists the allowed modules.

The process has a single clock, because jobs are enqueued, scheduled and run by several threads and sessions that must
agree. palermo.testing replaces it by `use` to move it by hand.
"""

import sys
import time
from collections.abc import Callable
from typing import Protocol

#: CLOCK_REALTIME_COARSE, for which Python has no name. time.localtime(), strftime() and programs that call time(2) read
#: it. It advances only with the kernel's ticks, and so lags behind time.time() by up to 10 ms.
_COARSE = 5

#: Seconds between two checks once an instant has passed, until the slowest clock has reached it too.
_STEP = 0.002


class Clock(Protocol):
    """A clock, in Unix seconds."""

    def now(self) -> float:
        """The current time."""

    def reached(self) -> float:
        """The time that all clocks of this machine have reached."""


class SystemClock:
    """The machine's clock."""

    now = staticmethod(time.time)

    def reached(self) -> float:
        return time.clock_gettime(_COARSE) if sys.platform == "linux" else time.time()


_clock: Clock = SystemClock()


def now() -> float:
    """The Unix time."""
    return _clock.now()


def wall_clock() -> float:
    """The Unix time that all clocks of this machine have reached. A job that is due now sees no earlier time."""
    return _clock.reached()


def seconds_until(instant: float, reached: Callable[[], float] = wall_clock) -> float:
    """Seconds to sleep before checking again whether the clock `reached` has reached this instant.

    wall_clock advances in steps of several milliseconds, so sleeping for the whole difference would be too long.
    """
    left = instant - reached()
    return max(0.0, min(left, _STEP), left - (now() - wall_clock()))


def use(clock: Clock) -> Clock:
    """Make this the clock of the process; returns the previous one."""
    global _clock
    before, _clock = _clock, clock
    return before
