"""What the processes of a worker are doing: the parent's own stacks, and the file that slots write theirs to."""

import asyncio
import os
import sys
import threading
import time
import traceback
from typing import Any

#: Seconds that a slot gets to begin to answer; then between looks at whether it is still writing.
_PATIENCE, _EVERY = 2.0, 0.05

#: How coroutines, generators and asynchronous generators call their frame, and what they wait for.
_FRAMES = ("cr_frame", "gi_frame", "ag_frame")
_NEXT = ("cr_await", "gi_yieldfrom", "ag_await")


class StackFile:
    """A nameless file, open in the parent, the template and every slot, that holds one answer at a time."""

    def __init__(self, descriptor: int) -> None:
        """`descriptor` is that of palermo.worker.process.nameless_file."""
        self.descriptor = descriptor

    def clear(self) -> None:
        """Forget the last answer."""
        os.ftruncate(self.descriptor, 0)

    async def answer(self) -> str:
        """What a slot writes from now on, once it has written nothing more for a moment; "" if nothing comes."""
        deadline = time.monotonic() + _PATIENCE
        size = 0
        while time.monotonic() < deadline:
            await asyncio.sleep(_EVERY)
            grown = os.fstat(self.descriptor).st_size
            if grown and grown == size:
                break
            size = grown
        return os.pread(self.descriptor, size, 0).decode(errors="replace").rstrip()

    def close(self) -> None:
        """Let go of it in this process."""
        os.close(self.descriptor)


def coroutine_stack(task: asyncio.Task[Any]) -> str:
    """Where a task waits: through all coroutines that await each other, which Task.get_stack does not follow."""
    frames = []
    waiting: Any = task.get_coro()
    while waiting is not None:
        frame = next((found for name in _FRAMES if (found := getattr(waiting, name, None)) is not None), None)
        if frame is not None:
            code = frame.f_code
            frames.append(traceback.FrameSummary(code.co_filename, frame.f_lineno, code.co_name))
        waiting = next((found for name in _NEXT if (found := getattr(waiting, name, None)) is not None), None)
    return f"Task {task.get_name()}:\n{''.join(traceback.StackSummary.from_list(frames).format())}".rstrip()


def thread_stacks() -> str:
    """The stacks of this process's threads."""
    names = {thread.ident: thread.name for thread in threading.enumerate()}
    return "".join(
        f"Thread {names.get(ident, ident)}:\n{''.join(traceback.format_stack(frame))}"
        for ident, frame in sys._current_frames().items()
    )


def own_stacks() -> str:
    """The stacks of this process: its threads, and where each asyncio task waits."""
    parts = [thread_stacks()]
    for task in sorted(asyncio.all_tasks() - {asyncio.current_task()}, key=lambda task: task.get_name()):
        frames = traceback.StackSummary.from_list(
            [
                traceback.FrameSummary(frame.f_code.co_filename, frame.f_lineno, frame.f_code.co_name)
                for frame in task.get_stack()
            ]
        )
        parts.append(f"Task {task.get_name()}:\n{''.join(frames.format())}")
    return "".join(parts).rstrip()
