"""The protocol of all pools, the results of batches whose process died, and the stacks that a process writes."""

import asyncio
import logging
import os
import time
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Protocol

from msgspec.structs import replace

from palermo.core.lifecycle import (
    INTERRUPTED,
    SUCCEEDED,
    BatchResult,
    Result,
    RunResult,
    results_of_each,
)
from palermo.core.message import Message
from palermo.worker.ipc.frames import Report
from palermo.worker.registered import Registered

log = logging.getLogger("palermo.worker")

#: Called with the result of a job.
OnResult = Callable[[RunResult], None]

#: Called with a slot and what its job reports while it runs: progress and log lines.
OnReport = Callable[[int, Report], None]


def ignore_report(slot: int, report: Report) -> None:
    """Ignore the report."""


class Pool(Protocol):
    """A pool of slots. A slot, numbered from 1, runs one job or one batch at a time."""

    on_report: OnReport

    @property
    def gone(self) -> asyncio.Event:
        """Set once the pool cannot run jobs any more."""

    @property
    def pids(self) -> tuple[int, ...]:
        """Its processes, besides the worker's own."""

    async def start(self) -> Registered:
        """Wait until the user's modules are imported. Raises WorkerFailed."""

    async def prepare(self, slot: int) -> None:
        """Start the slot's process, so that its first job need not wait. Not to be cancelled."""

    def run(self, slot: int, message: Message, done: OnResult) -> None:
        """Run one job, with its companions, to its end. Never calls `done` before this returns."""

    async def stack(self, slot: int) -> str:
        """The stack of the job in this slot, without stopping it; "" if there is no answer."""

    def kill_jobs(self) -> None:
        """Kill every job that runs. Each ends as Raised, and its slot gets a fresh process."""

    def cancel(self, slot: int) -> None:
        """Raise JobCancelled in the job of this slot, and end it by force after the timeout's grace.

        The job ends as Cancelled, whatever it raises. Does nothing to an idle slot.
        """

    def terminate(self) -> None:
        """Raise JobTerminated in every job that runs. Each ends as Interrupted, whatever else it raises."""

    async def hook(self, name: str, *more: Any) -> float:
        """Run the worker hooks of this name, with `more` behind the WorkerContext.

        Returns the greatest number of seconds that one of them returned, once all have ended; 0 if none did.
        """

    def drain(self) -> None:
        """The worker stops: end loops of `resume`, and start no process again that cannot be started."""

    def kill(self) -> None:
        """Kill everything at once. Each job that runs ends as Interrupted."""

    async def close(self) -> None:
        """End all processes, which are idle by now."""


def split_batch(message: Message, done: Sequence[bool], why: str) -> BatchResult:
    """The result of a batch whose process died: what is marked as done is, and the other jobs go back.

    A job that was delivered before runs alone, so the next death has one cause.
    """
    log.warning(
        "process died with a batch in it, those that are not marked as done run again alone"
        " id=%s job=%s jobs=%d done=%d fate=%r",
        message.id,
        message.job,
        len(done),
        sum(done),
        why,
    )
    return BatchResult(tuple(SUCCEEDED if one else INTERRUPTED for one in done))


async def result_of_rest(
    message: Message, done: Sequence[bool], ask: Callable[[Message], Awaitable[RunResult]]
) -> RunResult:
    """The result of a run: what is marked as done is, and `ask` tells the result of the other messages."""
    if not any(done):
        return await ask(message)
    all_of_it = (message, *message.companions)
    rest = [each for each, one in zip(all_of_it, done, strict=True) if not one]
    asked: Sequence[Result] = ()
    if rest:
        result = await ask(replace(rest[0], companions=tuple(rest[1:])))
        asked = results_of_each(result, len(rest))
    others = iter(asked)
    return BatchResult(tuple(SUCCEEDED if one else next(others) for one in done))


#: Seconds that a slot gets to answer, and between two checks whether it is still writing.
_ANSWER_TIMEOUT, _EVERY = 2.0, 0.05


async def written_stacks(descriptor: int) -> str:
    """The text that a process writes to this file, which is empty now, once it stops growing; "" if nothing comes.

    It is the nameless file that is open in the parent, the template and every slot.
    """
    deadline = time.monotonic() + _ANSWER_TIMEOUT
    size = 0
    while time.monotonic() < deadline:
        await asyncio.sleep(_EVERY)
        grown = os.fstat(descriptor).st_size
        if grown and grown == size:
            break
        size = grown
    return os.pread(descriptor, size, 0).decode(errors="replace").rstrip()
