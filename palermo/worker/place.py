"""The parent's view of one slot: a place, in which a fresh process follows on a dead or worn one."""

import asyncio
import time
from collections.abc import Callable

from palermo.core.lifecycle import RunResult
from palermo.core.message import Message
from palermo.worker.children import SlotLost
from palermo.worker.pipe import SlotPipe


class Place:
    """What is known of a slot's process, and who waits for it."""

    __slots__ = (
        *("born", "cancelling", "fate", "jobs", "message", "number", "pid", "pipe"),
        *("done", "replacing", "sentence", "signalled", "timers"),
        "_waiter",
    )

    def __init__(self, number: int) -> None:
        self.number = number
        self.pipe: SlotPipe | None = None
        self.pid: int | None = None
        #: How its process ended, in words; None when the template that could have told is gone.
        self.fate: asyncio.Future[str | None] | None = None
        #: The job that it runs now.
        self.message: Message | None = None
        #: Whether that was told to end because someone cancelled it.
        self.cancelling = False
        #: Whether its process was sent a signal that may reach it only once the job has ended.
        self.signalled = False
        #: Why its process is being killed, if the worker does that.
        self.sentence: Exception | None = None
        #: What gives it a fresh process, while that is going on.
        self.replacing: asyncio.Future[None] | None = None
        #: How many jobs this process has run, and since when it is there, by the monotonic clock.
        self.jobs = 0
        self.born = 0.0
        #: Who is called with the result of the job, where nobody waits for it in `ask`.
        self.done: Callable[[RunResult], None] | None = None
        #: The end of what the job is allowed.
        self.timers: list[asyncio.TimerHandle] = []
        self._waiter: asyncio.Future[RunResult] | None = None

    @property
    def ready(self) -> bool:
        """Whether it has a process which waits for a job."""
        return self.pipe is not None and self.replacing is None and self.message is None and self._waiter is None

    def over(self) -> None:
        """The job has ended, or its process."""
        self.message = self.done = None
        self.cancelling = False
        self.jobs += 1
        if self.timers:
            for timer in self.timers:
                timer.cancel()
            self.timers.clear()

    def renew(self) -> "asyncio.Future[RunResult]":
        """A process is about to be forked; what to wait for until it is ready."""
        loop = asyncio.get_running_loop()
        self.fate, self.pid, self.sentence = loop.create_future(), None, None
        self.jobs, self.born = 0, time.monotonic()
        self.signalled = False
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
        """The slot has answered, or babbles."""
        waiter = self._waiter
        if waiter is None or waiter.done():
            pipe.abort("sent an answer that nobody asked for")
            return
        self._waiter = None
        waiter.set_result(result)

    def lost(self, why: str) -> bool:
        """The pair has ended; whether somebody waited for an answer."""
        self.pipe = None
        waiter, self._waiter = self._waiter, None
        if waiter is None:
            return False
        if not waiter.done():
            waiter.set_exception(SlotLost(why))
        return True

    def ended(self, fate: str | None, linger: float) -> None:
        """The process has ended, or there is none."""
        if self.fate is not None and not self.fate.done():
            self.fate.set_result(fate)
        if self.pipe is not None:
            # Something that a job left behind may hold the pair open; what the slot wrote last is read before.
            asyncio.get_running_loop().call_later(linger, self.pipe.abort, "")
