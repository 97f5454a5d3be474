"""The protocol of all pools."""

import asyncio
from collections.abc import Callable
from typing import Any, Protocol

from palermo.core.lifecycle import RunResult
from palermo.core.message import Message
from palermo.worker.ipc.frames import Report
from palermo.worker.registered import Registered

#: Called with the result of a job.
OnResult = Callable[[RunResult], None]

#: Called with a slot and the report of its running job: progress and log lines.
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
        """Its processes, without the worker's own."""

    async def start(self) -> Registered:
        """Wait until the user's modules are imported. Raises WorkerFailed."""

    async def prepare(self, slot: int) -> None:
        """Start the slot's process, so that its first job need not wait. Do not cancel this."""

    def run(self, slot: int, message: Message, done: OnResult) -> None:
        """Run one job, with its companions, to its end. Never calls `done` before this returns."""

    async def stack(self, slot: int) -> str:
        """The stack of the job in this slot, without stopping it; "" if it does not answer."""

    def kill_jobs(self) -> None:
        """Kill every running job. Each ends as Raised, and its slot gets a fresh process."""

    def cancel(self, slot: int) -> None:
        """Raise JobCancelled in the job of this slot, and end it by force after the timeout's grace.

        The job ends as Cancelled, whatever it raises. Does nothing to an idle slot.
        """

    def terminate(self) -> None:
        """Raise JobTerminated in every running job. Each ends as Interrupted, whatever else it raises."""

    async def hook(self, name: str, *more: Any) -> float:
        """Run the worker hooks with this name, with `more` after the WorkerContext.

        Returns the highest number of seconds that one of them returned, once all have ended; 0 if none did.
        """

    def drain(self) -> None:
        """Prepare for the worker's end: stop loops of `resume`, and don't retry failed starts of processes."""

    def kill(self) -> None:
        """Kill everything immediately. Each running job ends as Interrupted."""

    async def close(self) -> None:
        """End all processes, which are idle by now."""
