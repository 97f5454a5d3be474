"""The stacks of everything that a worker does, for its log and for those who ask from afar."""

import asyncio
import logging
from collections.abc import AsyncIterator, Sequence

from palermo.crew import RunningJob
from palermo.worker.lane import Lane
from palermo.worker.pool import Runner
from palermo.worker.stacks import own_stacks

log = logging.getLogger("palermo.worker")


class Dumps:
    """Asks for stacks, and writes them to the log."""

    def __init__(self, runner: Runner, lanes: Sequence[Lane], *, pid: int) -> None:
        self._runner = runner
        self._lanes = lanes
        self._pid = pid
        self._asking = asyncio.Lock()

    async def each(self) -> AsyncIterator[tuple[RunningJob | None, str]]:
        """What this process and every running job are doing; one after the other, since they share a file."""
        async with self._asking:
            yield None, own_stacks()
            for lane in self._lanes:
                job = lane.running
                if job is None:
                    continue
                text = await self._runner.stack(lane.number)
                if lane.running == job:
                    yield job, text or "it gave no answer within 2 s"

    async def log(self) -> None:
        async for job, text in self.each():
            if job is None:
                log.info("stacks of the worker pid=%d", self._pid, extra={"stacks": text})
            else:
                log.info("stacks of a job id=%s job=%s slot=%d", job.id, job.job, job.slot, extra={"stacks": text})
