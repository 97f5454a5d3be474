"""The protocol of all pools."""

import asyncio
from collections.abc import Callable
from typing import Any, Protocol

from palermo.core.lifecycle import RunResult
from palermo.core.message import Message
from palermo.worker.ipc.frames import Report
from palermo.worker.registered import Registered

OnResult = Callable[[RunResult], None]

#: Called with a slot and a report of its running job: progress and log lines.
OnReport = Callable[[int, Report], None]


def ignore_report(slot: int, report: Report) -> None:
    """Ignore the report."""


class Pool(Protocol):
    """A pool of slots, numbered from 1. Each runs one job or batch at a time."""

    on_report: OnReport

    @property
    def gone(self) -> asyncio.Event:
        """Set once the pool can't run jobs any more."""

    @property
    def pids(self) -> tuple[int, ...]:
        """The pids of its processes, without the worker's own."""

    async def start(self) -> Registered:
        """Wait until the user's modules are imported. Raises WorkerFailed."""

    async def prepare(self, slot: int) -> None:
        """Start the slot's process, so that its first job doesn't have to wait. Must not be cancelled."""

    def run(self, slot: int, message: Message, done: OnResult) -> None:
        """Run one job with its companions. Never calls `done` before this returns."""

    async def stack(self, slot: int) -> str:
        """Return the stack of this slot's job without stopping it; "" if it doesn't answer."""

    def kill_jobs(self) -> None:
        """Kill every running job. Each ends as Raised, and its slot gets a new process."""

    def cancel(self, slot: int) -> None:
        """Raise JobCancelled in the job of this slot, and kill it after the timeout's grace period.

        The job ends as Cancelled, whatever it raises. Does nothing if the slot is idle.
        """

    def terminate(self) -> None:
        """Raise JobTerminated in every running job. Each ends as Interrupted, whatever it raises."""

    async def hook(self, name: str, *more: Any) -> float:
        """Run the worker hooks with this name, passing `more` after the WorkerContext.

        Returns the highest number of seconds that one returned, or 0, once all have ended.
        """

    def drain(self) -> None:
        """Prepare for the worker's end: stop loops of `resume`, and don't retry failed starts of processes."""

    def kill(self) -> None:
        """Kill everything immediately. Each running job ends as Interrupted."""

    async def close(self) -> None:
        """End all processes, which are idle by now."""
