"""Memory shared by a worker's slots and its parent, for the marks of running batches and the worker's stop flag.

Marks survive the end of a slot's process, and a loop of `palermo.resume` can see the flag in the middle of a job.
Neither takes a message.
"""

import mmap

from palermo.jobs.batch import MOST_BATCH


class SharedMarks:
    """The marks of all slots of a worker. Created before the template is forked."""

    def __init__(self, slots: int) -> None:
        #: One byte per mark, followed by one for the stop flag.
        self._memory = mmap.mmap(-1, slots * MOST_BATCH + 1)

    def clear(self, slot: int, count: int) -> None:
        """Clear the marks for the next `count` jobs, which run together in this slot."""
        start = (slot - 1) * MOST_BATCH
        self._memory[start : start + count] = bytes(count)

    def mark(self, slot: int, position: int, done: bool) -> None:
        """Mark the job at this position as done, or clear its mark. Called in the slot."""
        self._memory[(slot - 1) * MOST_BATCH + position] = done

    def done(self, slot: int, count: int) -> list[bool]:
        start = (slot - 1) * MOST_BATCH
        return [mark == 1 for mark in self._memory[start : start + count]]

    def stop(self) -> None:
        """Set the stop flag. Called in the parent."""
        self._memory[-1] = 1

    def stopping(self) -> bool:
        """Whether the stop flag is set. Called in the slots."""
        return self._memory[-1] == 1
