"""Group commit: the script that deletes finished jobs waits a little, so that one disk write serves several jobs.

Without this wait, the slots of a worker with short jobs alternate: while one slot's job is being deleted, another slot
finishes its job and needs a separate script. With the wait, the slots synchronize.
"""

import time
from collections.abc import Callable

#: Weight of the latest job, and of the latest script, in the moving average.
_WEIGHT = 0.2

#: The shortest timer of uvloop.
_TICK = 0.001


class GroupCommit:
    """The average durations of one worker's jobs and scripts, and its running jobs."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._job = self._script = 0.0
        self._sent_at = 0.0
        self._began_at: dict[int, float] = {}

    def job_began(self, slot: int) -> None:
        self._began_at[slot] = self._clock()

    def job_ended(self, slot: int) -> None:
        self._job = _mean(self._job, self._clock() - self._began_at.pop(slot))

    def script_sent(self) -> None:
        self._sent_at = self._clock()

    def script_answered(self) -> None:
        self._script = _mean(self._script, self._clock() - self._sent_at)

    def wait(self) -> float:
        """Seconds that the next script should wait for running jobs, at most the duration of a script.

        0 if jobs take longer than scripts, or if every running job already exceeds the average.
        """
        if not self._began_at or self._job >= self._script:
            return 0.0
        left = max(self._began_at.values()) + self._script - self._clock()
        return max(left, _TICK) if left > 0 else 0.0


def _mean(mean: float, latest: float) -> float:
    return mean + _WEIGHT * (latest - mean) if mean else latest
