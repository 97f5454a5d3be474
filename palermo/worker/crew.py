"""The parent's view of a child that slots share, and of the jobs that run in it."""

import asyncio
import time
from collections.abc import Callable, Mapping
from typing import Any, Protocol

from palermo.core.lifecycle import RunResult
from palermo.core.message import Message
from palermo.errors import JobError
from palermo.worker.children import SlotLost
from palermo.worker.keeping import SUCCEEDED
from palermo.worker.pipe import SlotPipe, pack, unpack_results
from palermo.worker.reporting import Report, unpack_report

#: How many frames wait for the end of a turn at most: the child has something to do meanwhile.
_TOGETHER = 16


class Run:
    """One job in a slot, from the moment the runner is given it to its result."""

    __slots__ = ("cancelled", "crew", "done", "left", "lock", "message", "sentence", "slot", "timer")

    def __init__(self, slot: int, message: Message, done: Callable[[RunResult], None] | None = None) -> None:
        self.slot = slot
        self.message = message
        #: Who is called with its result, where nobody waits for that in `Crew.ask`.
        self.done = done
        #: The child that it runs in, while it does.
        self.crew: Crew | None = None
        #: Why its child is being killed, if that is because of this job.
        self.sentence: JobError | None = None
        #: Whether someone cancelled it.
        self.cancelled = False
        #: The end of what it is allowed.
        self.timer: asyncio.TimerHandle | None = None
        #: What ends its claim.
        self.lock: asyncio.TimerHandle | None = None
        #: Set when it has left its child, for who waits for that.
        self.left: asyncio.Future[None] | None = None

    def tell(self, error: JobError) -> None:
        """Have this raised in the job, if it runs."""
        if self.crew is not None:
            self.crew.write(("tell", self.slot, type(error).__name__, str(error)))


class Employer(Protocol):
    """Who has the crews, and is told of what becomes of them."""

    def answered(self, crew: "Crew", run: Run, result: RunResult) -> None:
        """A run that nobody waits for has this result, and has left the crew."""

    def lost(self, crew: "Crew", run: Run, why: str) -> None:
        """The same, whose child has ended under it."""

    def ended(self, crew: "Crew") -> None:
        """The child has ended, which was there for jobs."""

    def reported(self, slot: int, report: Report) -> None:
        """The job of this slot reports."""


class Crew:
    """A shared child: its process, and who waits for which of its answers."""

    def __init__(self, number: int, employer: Employer) -> None:
        self.number = number
        self.pid: int | None = None
        self.pipe: SlotPipe | None = None
        self.fate: asyncio.Future[str | None] | None = None
        #: By slot, what runs in it now.
        self.runs: dict[int, Run] = {}
        #: How many ran in it when it ended.
        self.victims = 0
        #: Whether it takes no more jobs, and ends when those in it have.
        self.retired = False
        #: Whether it is being killed because of some of its jobs, those with a sentence, and not of the others.
        self.condemned = False
        #: Whether it was killed because one of its jobs, nobody knows which, took too much memory.
        self.suspected = False
        #: Since when it is above its limit of memory, by the monotonic clock.
        self.bloated_since: float | None = None
        #: How many jobs it has begun, and since when it is there.
        self.jobs = 0
        self.born = 0.0
        self._employer = employer
        self._waiters: dict[int, asyncio.Future[RunResult]] = {}
        self._stacks: dict[int, asyncio.Future[str]] = {}
        self._pongs: list[asyncio.Future[None]] = []
        self._ready: asyncio.Future[None] | None = None
        self._frames: list[bytes] = []

    @property
    def open(self) -> bool:
        """Whether it takes jobs."""
        return self.pipe is not None and not self.retired

    def renew(self) -> "asyncio.Future[None]":
        """It is about to be forked."""
        loop = asyncio.get_running_loop()
        self.fate, self.pid, self.born = loop.create_future(), None, time.monotonic()
        self._ready = loop.create_future()
        return self._ready

    def connect(self) -> SlotPipe:
        """The pair's end for a process that is being forked."""
        pipe = SlotPipe(
            lambda number: self._succeeded(pipe, number),
            lambda reply: self._replied(pipe, reply),
            lambda why: self._lost(pipe, why),
        )
        return pipe

    def ended(self, fate: str | None, linger: float) -> None:
        """The process has ended, or there is none."""
        if self.fate is not None and not self.fate.done():
            self.fate.set_result(fate)
        if self.pipe is not None:
            # Something that a job left behind may hold the pair open; what it wrote last is read before.
            asyncio.get_running_loop().call_later(linger, self.pipe.abort, "")

    def write(self, frame: tuple[Any, ...]) -> None:
        """Send this with all else that is sent in this turn of the loop."""
        self.write_packed(pack(frame))

    def write_packed(self, frame: bytes) -> None:
        """The same for a frame that is one already."""
        if not self._frames:
            asyncio.get_running_loop().call_soon(self._flush)
        self._frames.append(frame)
        if len(self._frames) >= _TOGETHER:
            self._flush()

    def _flush(self) -> None:
        frames, self._frames = self._frames, []
        if frames and self.pipe is not None:
            self.pipe.write(b"".join(frames))

    def enter(self, run: Run) -> None:
        """This runs in it from now on."""
        self.jobs += 1
        self.runs[run.slot] = run
        run.crew = self

    def leave(self, run: Run) -> None:
        """This does not any more."""
        run.crew = None
        del self.runs[run.slot]
        if run.timer is not None:
            run.timer.cancel()
        if run.lock is not None:
            run.lock.cancel()
        if run.left is not None and not run.left.done():
            run.left.set_result(None)

    async def ask(self, slot: int, frame: bytes) -> RunResult:
        """Send a frame to a slot and wait for its result. Raises SlotLost."""
        if self.pipe is None:
            raise SlotLost
        waiter: asyncio.Future[RunResult] = asyncio.get_running_loop().create_future()
        self._waiters[slot] = waiter
        self.write_packed(frame)
        return await waiter

    async def ask_stack(self, slot: int) -> str:
        """What the job in a slot is doing; "" if it runs none."""
        waiter: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        self._stacks[slot] = waiter
        self.write(("stack", slot))
        return await waiter

    async def ping(self, within: float) -> bool:
        """Whether it makes progress: it answers in this time."""
        waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._pongs.append(waiter)
        self.write(("ping",))
        done, _ = await asyncio.wait([waiter], timeout=within)
        return bool(done) and self.pipe is not None

    async def without(self, runs: list[Run], within: float) -> None:
        """Wait until these have ended, or this time."""
        loop = asyncio.get_running_loop()
        for run in runs:
            run.left = loop.create_future()
        await asyncio.wait([run.left for run in runs if run.left is not None], timeout=within)

    def _succeeded(self, pipe: SlotPipe, number: bytes) -> None:
        self._answered(pipe, int(number) if number.isdigit() else -1, SUCCEEDED)

    def _replied(self, pipe: SlotPipe, reply: Mapping[str, Any]) -> None:
        match reply:
            case {"ready": True} if self._ready is not None:
                ready, self._ready = self._ready, None
                ready.set_result(None)
            case {"pong": True} if self._pongs:
                pong = self._pongs.pop(0)
                if not pong.done():
                    pong.set_result(None)
            case {"slot": int(slot), "stack": str(text)} if slot in self._stacks:
                stack = self._stacks.pop(slot)
                if not stack.done():
                    stack.set_result(text)
            case {"slot": int(slot)} if (report := unpack_report(reply)) is not None:
                if slot in self.runs:
                    self._employer.reported(slot, report)
            case {"slot": int(slot)} if (result := unpack_results(reply)) is not None:
                self._answered(pipe, slot, result)
            case _:
                pipe.abort("sent an answer that means nothing")

    def _answered(self, pipe: SlotPipe, slot: int, result: RunResult) -> None:
        run, waiter = self.runs.get(slot), self._waiters.pop(slot, None)
        if waiter is not None:
            if not waiter.done():
                waiter.set_result(result)
        elif run is not None:
            self.leave(run)
            self._employer.answered(self, run, result)
        else:
            pipe.abort("sent an answer that nobody asked for")

    def _lost(self, pipe: SlotPipe, why: str) -> None:
        if self.pipe is not pipe:  # it was told to leave
            return
        self.pipe = None
        self.victims = len(self.runs)
        if self._ready is None:
            self._employer.ended(self)
        ready, self._ready = self._ready, None
        waiters, self._waiters = self._waiters, {}
        for waiter in (ready, *waiters.values()):
            if waiter is not None and not waiter.done():
                waiter.set_exception(SlotLost(why))
        for run in [run for run in self.runs.values() if run.slot not in waiters]:
            self.leave(run)
            self._employer.lost(self, run, why)
        for pong in self._pongs:
            if not pong.done():
                pong.set_result(None)
        for stack in self._stacks.values():
            if not stack.done():
                stack.set_result("")
