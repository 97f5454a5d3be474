"""Memory that a worker's slots share with its parent: the marks of running batches, and whether the worker stops.

A mark therefore survives however the slot's process ends, a loop of `palermo.resume` sees the stop in the middle of
a job, and neither costs a message.
"""

import mmap

from palermo.jobs.batch import MOST_BATCH


class SharedMarks:
    """The marks of all slots of a worker. Created before the template is forked."""

    def __init__(self, slots: int) -> None:
        #: One byte for the stop, after those of the batches.
        self._memory = mmap.mmap(-1, slots * MOST_BATCH + 1)

    def clear(self, slot: int, count: int) -> None:
        """Clear the marks for the next `count` jobs of this slot, which run together."""
        start = (slot - 1) * MOST_BATCH
        self._memory[start : start + count] = bytes(count)

    def mark(self, slot: int, position: int, done: bool) -> None:
        """Mark one of them as done, or remove its mark. Called in the slot."""
        self._memory[(slot - 1) * MOST_BATCH + position] = done

    def done(self, slot: int, count: int) -> list[bool]:
        """Whether each of them is marked as done."""
        start = (slot - 1) * MOST_BATCH
        return [mark == 1 for mark in self._memory[start : start + count]]

    def stop(self) -> None:
        """Set that the worker stops. Called in the parent."""
        self._memory[-1] = 1

    def stopping(self) -> bool:
        """Whether the worker stops. Called in the slots."""
        return self._memory[-1] == 1
