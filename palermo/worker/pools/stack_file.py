"""The file that the processes of a pool write their stacks to."""

import asyncio
import os
import time

#: Seconds that a slot gets to answer, and between two checks whether it is still writing.
_ANSWER_TIMEOUT, _EVERY = 2.0, 0.05


class StackFile:
    """A nameless file that holds one answer at a time. It is open in the parent, the template and every slot."""

    def __init__(self, descriptor: int) -> None:
        """`descriptor` is that of palermo.worker.process.nameless_file."""
        self.descriptor = descriptor

    def clear(self) -> None:
        """Empty the file."""
        os.ftruncate(self.descriptor, 0)

    async def answer(self) -> str:
        """The text that a slot writes from now on, once it stops growing; "" if nothing comes."""
        deadline = time.monotonic() + _ANSWER_TIMEOUT
        size = 0
        while time.monotonic() < deadline:
            await asyncio.sleep(_EVERY)
            grown = os.fstat(self.descriptor).st_size
            if grown and grown == size:
                break
            size = grown
        return os.pread(self.descriptor, size, 0).decode(errors="replace").rstrip()

    def close(self) -> None:
        """Close the file in this process."""
        os.close(self.descriptor)
