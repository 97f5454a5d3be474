"""A clock that a test moves."""

import time
from datetime import UTC, datetime

from palermo.core.times import Duration, Instant, in_seconds, unix_seconds


class MovableClock:
    """Palermo's clock in a test. It runs normally until the test moves or stops it.

    It determines when jobs are due, and the age of keys, results and events. It doesn't affect `time.time()` and
    `datetime.now()` in your own code.
    """

    def __init__(self) -> None:
        self._moved = 0.0
        self._stopped_at: float | None = None

    def now(self) -> float:
        """The time, in Unix seconds."""
        return (time.time() if self._stopped_at is None else self._stopped_at) + self._moved

    def reached(self) -> float:
        """Same as `now`, because all clocks of a test show the same time."""
        return self.now()

    @property
    def time(self) -> datetime:
        """The time, as a datetime in UTC."""
        return datetime.fromtimestamp(self.now(), UTC)

    def advance(self, by: Duration) -> None:
        """Move the clock forward by seconds or a timedelta. `work()` then runs the jobs that have become due."""
        seconds = in_seconds(by)
        if seconds < 0:
            raise ValueError(f"advance({by!r}) can't move the clock back. Use travel_to.")
        self._moved += seconds

    def travel_to(self, instant: Instant) -> None:
        """Set the clock to a datetime with a time zone, or to Unix seconds. It continues from there."""
        self._moved += unix_seconds(instant) - self.now()

    def freeze(self) -> None:
        """Stop the clock. It can still be moved."""
        if self._stopped_at is None:
            self._stopped_at = time.time()

    def unfreeze(self) -> None:
        """Restart the clock from the time that it shows."""
        if self._stopped_at is not None:
            self._moved -= time.time() - self._stopped_at
            self._stopped_at = None
