"""The stacks of a worker and of its running jobs, for its log and for the command `stack`."""

import asyncio
import logging
import sys
import threading
import traceback
from collections.abc import AsyncIterator, Sequence

from palermo.contract.worker_info import RunningJob
from palermo.worker.parent.slot_task import SlotTask
from palermo.worker.pools.pool import Pool

log = logging.getLogger("palermo.worker")


class StackDumps:
    """Collects the stacks of one worker, and writes them to its log."""

    def __init__(self, pool: Pool, slots: Sequence[SlotTask], *, pid: int) -> None:
        self._pool = pool
        self._slots = slots
        self._pid = pid
        self._asking = asyncio.Lock()

    async def each(self) -> AsyncIterator[tuple[RunningJob | None, str]]:
        """The stacks of every running job, then of this process; one after the other, because they share a file."""
        async with self._asking:
            for slot in self._slots:
                jobs, began = slot.jobs, slot.started_at
                if not jobs:
                    continue
                text = await self._pool.stack(slot.number)
                if slot.busy and slot.started_at == began:
                    yield jobs[0], text or "it gave no answer within 2 s"
            yield None, own_stacks()

    async def log(self) -> None:
        """Log them."""
        async for job, text in self.each():
            if job is None:
                log.info("stacks of the worker pid=%d", self._pid, extra={"stacks": text})
            else:
                log.info("stacks of a job id=%s job=%s slot=%d", job.id, job.job, job.slot, extra={"stacks": text})


def thread_stacks() -> str:
    """The stacks of all threads of this process."""
    names = {thread.ident: thread.name for thread in threading.enumerate()}
    return "".join(
        f"Thread {names.get(ident, ident)}:\n{''.join(traceback.format_stack(frame))}"
        for ident, frame in sys._current_frames().items()
    )


def own_stacks() -> str:
    """The stacks of this process: of its threads and of its asyncio tasks."""
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
