"""Group commit: when the script that deletes done jobs waits for more, so that one write to the disk serves all.

Without it the slots of a worker whose jobs are short take turns: while one slot's job is being deleted the other ends
its own, and waits for a script of its own. With it they fall into step.
"""

import time
from collections.abc import Callable

#: The weight of the latest job, and of the latest script, in the mean.
_WEIGHT = 0.2

#: The shortest time of a timer of uvloop.
_TICK = 0.001


class GroupCommit:
    """How long one worker's jobs and scripts take, and which jobs run now."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._job = self._script = 0.0
        self._sent_at = 0.0
        self._began_at: dict[int, float] = {}

    def job_began(self, slot: int) -> None:
        """A slot has got a job."""
        self._began_at[slot] = self._clock()

    def job_ended(self, slot: int) -> None:
        """A slot has no job any more."""
        self._job = _mean(self._job, self._clock() - self._began_at.pop(slot))

    def script_sent(self) -> None:
        """A script is under way."""
        self._sent_at = self._clock()

    def script_answered(self) -> None:
        """It has ended."""
        self._script = _mean(self._script, self._clock() - self._sent_at)

    def wait(self) -> float:
        """For how many seconds the next script is to wait for jobs that run: no longer than a script takes.

        0 if jobs take longer than scripts, or every job that runs has taken longer already.
        """
        if not self._began_at or self._job >= self._script:
            return 0.0
        left = max(self._began_at.values()) + self._script - self._clock()
        return max(left, _TICK) if left > 0 else 0.0


def _mean(mean: float, latest: float) -> float:
    return mean + _WEIGHT * (latest - mean) if mean else latest
