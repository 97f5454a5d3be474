"""The marks of batches that run: which items their jobs have marked as done.

They lie in memory that a slot shares with its parent. So they are there however the slot's process ends, and a mark
costs no message.
"""

import mmap

from palermo.jobs.batch import MOST_BATCH


class BatchMarks:
    """The marks of all slots of a worker. Made before the template is forked."""

    def __init__(self, slots: int) -> None:
        self._memory = mmap.mmap(-1, slots * MOST_BATCH)

    def clear(self, slot: int, count: int) -> None:
        """Begin anew for the next `count` jobs of this slot, which are run together."""
        start = (slot - 1) * MOST_BATCH
        self._memory[start : start + count] = bytes(count)

    def mark(self, slot: int, position: int, done: bool) -> None:
        """Mark one of them as done, or take its mark away. Called in the slot."""
        self._memory[(slot - 1) * MOST_BATCH + position] = done

    def done(self, slot: int, count: int) -> list[bool]:
        """Whether each of them is marked as done."""
        start = (slot - 1) * MOST_BATCH
        return [mark == 1 for mark in self._memory[start : start + count]]
