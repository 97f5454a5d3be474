"""The parent's view of one slot of a process pool. A fresh process replaces one that died or reached a limit."""

import asyncio
import time
from collections.abc import Callable

from palermo.core.lifecycle import RunResult
from palermo.core.message import Message
from palermo.worker.ipc.pipes import SlotPipe
from palermo.worker.pools.children import SlotLost


class ProcessSlot:
    """One slot: its process, the job that runs in it, and the answer that the parent waits for."""

    __slots__ = (
        *("forked_at", "cancelling", "changes", "end_reason", "jobs", "kill_error", "message", "number", "pid", "pipe"),
        *("done", "replacing", "signalled", "timers"),
        "_waiter",
    )

    def __init__(self, number: int) -> None:
        self.number = number
        self.pipe: SlotPipe | None = None
        self.pid: int | None = None
        #: How its process ended, in words; None if the template died before it could report that.
        self.end_reason: asyncio.Future[str | None] | None = None
        #: The job that it runs now.
        self.message: Message | None = None
        #: Whether the job was told to end because someone cancelled it.
        self.cancelling = False
        #: Whether its process was sent a signal that may arrive only after the job has ended.
        self.signalled = False
        #: The changes that a job has left in its process, in words.
        self.changes = ""
        #: The error that the job ends with, if the worker is killing its process.
        self.kill_error: Exception | None = None
        #: The task that replaces its process, while it runs.
        self.replacing: asyncio.Future[None] | None = None
        #: How many jobs this process has run, and when it was forked, by the monotonic clock.
        self.jobs = 0
        self.forked_at = 0.0
        #: Called with the job's result while a job runs.
        self.done: Callable[[RunResult], None] | None = None
        #: The timers of the job's limits.
        self.timers: list[asyncio.TimerHandle] = []
        self._waiter: asyncio.Future[RunResult] | None = None

    @property
    def ready(self) -> bool:
        """Whether it has a process that waits for a job."""
        return self.pipe is not None and self.replacing is None and self.message is None and self._waiter is None

    def job_ended(self) -> None:
        """The job has ended, or its process has: forget the job, and cancel its timers."""
        self.message = self.done = None
        self.cancelling = False
        self.jobs += 1
        if self.timers:
            for timer in self.timers:
                timer.cancel()
            self.timers.clear()

    def renew(self) -> "asyncio.Future[RunResult]":
        """Reset the state for a new fork. The future completes once the process is ready, or raises SlotLost."""
        loop = asyncio.get_running_loop()
        self.end_reason, self.pid, self.kill_error = loop.create_future(), None, None
        self.jobs, self.forked_at = 0, time.monotonic()
        self.signalled, self.changes = False, ""
        self._waiter = waiter = loop.create_future()
        return waiter

    async def ask(self, frame: bytes) -> RunResult:
        """Send a frame and wait for the answer. Raises SlotLost."""
        pipe = self.pipe
        if pipe is None:
            raise SlotLost
        self._waiter = asyncio.get_running_loop().create_future()
        pipe.write(frame)
        return await self._waiter

    def answered(self, pipe: SlotPipe, result: RunResult) -> None:
        """Hand an answer of the slot to `ask`. Closes the socket pair if nobody asked."""
        waiter = self._waiter
        if waiter is None or waiter.done():
            pipe.abort("sent an answer that nobody asked for")
            return
        self._waiter = None
        waiter.set_result(result)

    def lost(self, why: str) -> bool:
        """The socket pair has closed. Returns whether somebody waited for an answer, who now gets SlotLost."""
        self.pipe = None
        waiter, self._waiter = self._waiter, None
        if waiter is None:
            return False
        if not waiter.done():
            waiter.set_exception(SlotLost(why))
        return True

    def ended(self, end_reason: str | None, linger: float) -> None:
        """The process has ended, or could not be forked."""
        if self.end_reason is not None and not self.end_reason.done():
            self.end_reason.set_result(end_reason)
        if self.pipe is not None:
            # A process that a job left behind may hold the socket pair open. The delay lets the last answer be read.
            asyncio.get_running_loop().call_later(linger, self.pipe.abort, "")
