"""The parent's view of the child processes that slots share, and of the jobs that run in them."""

import asyncio
import itertools
import logging
import time
from collections.abc import Callable, Coroutine, Mapping
from contextlib import suppress
from typing import Any, Protocol

from palermo.core.lifecycle import SUCCEEDED, RunResult
from palermo.core.message import Message
from palermo.errors import JobError
from palermo.worker.ipc.frames import Report, pack, unpack_changes, unpack_report, unpack_results
from palermo.worker.ipc.pipes import SlotPipe
from palermo.worker.limits import Limits
from palermo.worker.pools.children import CannotFork, Children, SlotLost

log = logging.getLogger("palermo.worker")

#: The most frames that wait for the end of a turn of the loop: with more, the child would sit idle meanwhile.
_TOGETHER = 16


class SlotRun:
    """One job in a slot, from the moment that the pool gets it to its result."""

    __slots__ = ("cancelled", "child", "done", "kill_error", "left", "lock", "message", "slot", "timer")

    def __init__(self, slot: int, message: Message, done: Callable[[RunResult], None]) -> None:
        self.slot = slot
        self.message = message
        #: Called with its result.
        self.done = done
        #: The child that it runs in, while it runs.
        self.child: SharedChild | None = None
        #: The error that this job ends with, if its child is being killed because of it.
        self.kill_error: JobError | None = None
        #: Whether someone cancelled it.
        self.cancelled = False
        #: The timer of its timeout, or of the grace after a timeout or a cancellation.
        self.timer: asyncio.TimerHandle | None = None
        #: The timer that ends the job when its `lock_for` is over.
        self.lock: asyncio.TimerHandle | None = None
        #: Set when it has left its child, if `SharedChild.without` waits for that.
        self.left: asyncio.Future[None] | None = None

    def interrupt(self, error: JobError) -> None:
        """Have the child raise this error in the job, if it runs."""
        if self.child is not None:
            self.child.write(("tell", self.slot, type(error).__name__, str(error)))


class ChildOwner(Protocol):
    """The pool that owns the shared children, as they call it."""

    def answered(self, child: "SharedChild", run: SlotRun, result: RunResult) -> None:
        """A run has this result, and has left the child."""

    def lost(self, child: "SharedChild", run: SlotRun, why: str) -> None:
        """The child has died under a run."""

    def ended(self, child: "SharedChild") -> None:
        """A child that had become ready has ended."""

    def changed(self, child: "SharedChild", changes: str) -> None:
        """Jobs have left these changes in the child's process."""

    def reported(self, slot: int, report: Report) -> None:
        """The job of this slot reports its progress or log lines."""


class SharedChild:
    """A shared child process, the jobs that run in it, and the answers that the parent waits for."""

    def __init__(self, number: int, owner: ChildOwner) -> None:
        self.number = number
        self.pid: int | None = None
        self.pipe: SlotPipe | None = None
        self.end_reason: asyncio.Future[str | None] | None = None
        #: The jobs that run in it now, by slot.
        self.runs: dict[int, SlotRun] = {}
        #: How many jobs ran in it when it ended.
        self.lost_jobs = 0
        #: Whether it takes no more jobs, and ends when those in it have ended.
        self.retired = False
        #: Whether it is being killed because of those of its jobs that have a `kill_error`.
        self.being_killed = False
        #: Whether it was killed because one of its jobs, nobody knows which, took too much memory.
        self.killed_for_memory = False
        #: Since when it has been above its memory limit, by the monotonic clock.
        self.over_memory_since: float | None = None
        #: How many jobs it has begun, and when it was forked, by the monotonic clock.
        self.jobs = 0
        self.forked_at = 0.0
        self._owner = owner
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
        """Reset the state for the fork. The future completes once the process is ready, or raises SlotLost."""
        loop = asyncio.get_running_loop()
        self.end_reason, self.pid, self.forked_at = loop.create_future(), None, time.monotonic()
        self._ready = loop.create_future()
        return self._ready

    def connect(self) -> SlotPipe:
        """The parent's end of the socket pair, for a process that is being forked."""
        pipe = SlotPipe(
            lambda number: self._succeeded(pipe, number),
            lambda reply: self._replied(pipe, reply),
            lambda why: self._lost(pipe, why),
        )
        return pipe

    def ended(self, end_reason: str | None, linger: float) -> None:
        """The process has ended, or could not be forked."""
        if self.end_reason is not None and not self.end_reason.done():
            self.end_reason.set_result(end_reason)
        if self.pipe is not None:
            # A process that a job left behind may hold the socket pair open. The delay lets the last answers be read.
            asyncio.get_running_loop().call_later(linger, self.pipe.abort, "")

    def write(self, frame: tuple[Any, ...]) -> None:
        """Send this frame, together with the others of this turn of the loop."""
        self.write_packed(pack(frame))

    def write_packed(self, frame: bytes) -> None:
        """Send a frame that is packed already, together with the others of this turn of the loop."""
        if not self._frames:
            asyncio.get_running_loop().call_soon(self._flush)
        self._frames.append(frame)
        if len(self._frames) >= _TOGETHER:
            self._flush()

    def _flush(self) -> None:
        frames, self._frames = self._frames, []
        if frames and self.pipe is not None:
            self.pipe.write(b"".join(frames))

    def enter(self, run: SlotRun) -> None:
        """Note that this job runs in the child from now on."""
        self.jobs += 1
        self.runs[run.slot] = run
        run.child = self

    def leave(self, run: SlotRun) -> None:
        """Note that this job does not run in the child any more, and stop its timers."""
        run.child = None
        del self.runs[run.slot]
        if run.timer is not None:
            run.timer.cancel()
        if run.lock is not None:
            run.lock.cancel()
        if run.left is not None and not run.left.done():
            run.left.set_result(None)

    async def ask(self, slot: int, frame: bytes) -> RunResult:
        """Send a frame to a slot and wait for its result. Raises SlotLost."""
        answer = self.answer(slot)
        self.write_packed(frame)
        return await answer

    def answer(self, slot: int) -> "asyncio.Future[RunResult]":
        """The next result of this slot, which the owner is not told of. Raises SlotLost, at once or later."""
        if self.pipe is None:
            raise SlotLost
        waiter: asyncio.Future[RunResult] = asyncio.get_running_loop().create_future()
        self._waiters[slot] = waiter
        return waiter

    async def ask_stack(self, slot: int) -> str:
        """The stack of the job in a slot; "" if no job runs there."""
        waiter: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        self._stacks[slot] = waiter
        self.write(("stack", slot))
        return await waiter

    async def ping(self, within: float) -> bool:
        """Whether the child answers within so many seconds."""
        waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._pongs.append(waiter)
        self.write(("ping",))
        done, _ = await asyncio.wait([waiter], timeout=within)
        return bool(done) and self.pipe is not None

    async def without(self, runs: list[SlotRun], within: float) -> None:
        """Wait until these jobs have left the child, for at most so many seconds."""
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
                    self._owner.reported(slot, report)
            case {"slot": int(slot)} if (result := unpack_results(reply)) is not None:
                self._answered(pipe, slot, result)
            case _ if changes := unpack_changes(reply):
                self._owner.changed(self, changes)
            case _:
                pipe.abort("sent an answer that means nothing")

    def _answered(self, pipe: SlotPipe, slot: int, result: RunResult) -> None:
        run, waiter = self.runs.get(slot), self._waiters.pop(slot, None)
        if waiter is not None:
            if not waiter.done():
                waiter.set_result(result)
        elif run is not None:
            self.leave(run)
            self._owner.answered(self, run, result)
        else:
            pipe.abort("sent an answer that nobody asked for")

    def _lost(self, pipe: SlotPipe, why: str) -> None:
        if self.pipe is not pipe:  # the parent ended this child itself
            return
        self.pipe = None
        self.lost_jobs = len(self.runs)
        if self._ready is None:
            self._owner.ended(self)
        ready, self._ready = self._ready, None
        waiters, self._waiters = self._waiters, {}
        for waiter in (ready, *waiters.values()):
            if waiter is not None and not waiter.done():
                waiter.set_exception(SlotLost(why))
        for run in [run for run in self.runs.values() if run.slot not in waiters]:
            self.leave(run)
            self._owner.lost(self, run, why)
        for pong in self._pongs:
            if not pong.done():
                pong.set_result(None)
        for stack in self._stacks.values():
            if not stack.done():
                stack.set_result("")


class SharedChildren:
    """Starts, retires and replaces the children of one pool: the current one takes jobs, retired ones finish theirs."""

    def __init__(
        self,
        children: Children,
        limits: Limits,
        owner: ChildOwner,
        spawn: Callable[[Coroutine[Any, Any, None]], None],
    ) -> None:
        """`spawn` runs a coroutine in the background."""
        #: The children that live; of the retired ones those in which jobs run.
        self.living: set[SharedChild] = set()
        self._children = children
        self._limits = limits
        self._owner = owner
        self._spawn = spawn
        self._numbers = itertools.count(1)
        self._current: SharedChild | None = None
        self._starting: asyncio.Task[None] | None = None

    @property
    def current(self) -> SharedChild | None:
        """The child that takes jobs now; None if there is none ready."""
        child = self._current
        if child is None or not child.open:
            return None
        if self._limits.replaces_processes:
            self.check_limits(child)
        return child if child.open else None

    async def open(self) -> SharedChild:
        """The child that takes jobs now; started if there is none. Raises CannotFork."""
        while (child := self.current) is None:
            if self._starting is None or self._starting.done():
                self._starting = asyncio.ensure_future(self._start_current())
                # Retrieve the error: those that wait may have been cancelled by the time it fails.
                self._starting.add_done_callback(lambda task: task.cancelled() or task.exception())
            starting = self._starting
            await asyncio.wait({starting})
            starting.result()
        return child

    async def _start_current(self) -> None:
        self._current = await self.launch()

    async def launch(self) -> SharedChild:
        """Start a fresh child. Raises CannotFork."""
        child = SharedChild(next(self._numbers), self._owner)
        await self._children.launch(child, child.connect)
        self.living.add(child)
        return child

    def check_limits(self, child: SharedChild) -> None:
        """Retire the child if it has reached a limit; end it if it is retired and no job runs in it any more."""
        if not child.retired and self._limits.replaces_processes:
            why = self._limits.replace_reason(jobs=child.jobs, age=time.monotonic() - child.forked_at, pid=child.pid)
            if why:
                self.retire(child, why)
        if child.retired and not child.runs and child.pipe is not None:
            self.living.discard(child)
            self._spawn(self._children.end(child))

    def retire(self, child: SharedChild, why: str, *, level: int = logging.INFO) -> None:
        """Give the child no more jobs, and start a fresh one for the next jobs."""
        if child.retired:
            return
        child.retired = True
        log.log(
            logging.DEBUG if self._limits.max_jobs and level == logging.INFO else level,
            "slots replaced pid=%s jobs_left=%d reason=%r",
            child.pid,
            len(child.runs),
            why,
        )
        if not self._children.draining.is_set():
            self._spawn(self._have_one_ready())

    def ended(self, child: SharedChild) -> None:
        """A child has ended. If it was not retired, start another in its place."""
        self.living.discard(child)
        if child.retired or self._children.draining.is_set() or self._children.gone.is_set():
            return
        if not child.runs:
            log.warning("slots ended while idle pid=%s", child.pid)
        self._spawn(self._have_one_ready())

    def close(self) -> None:
        """Close the socket pairs of all children, which then exit."""
        for child in self.living:
            if child.pipe is not None:
                child.pipe.close()

    async def _have_one_ready(self) -> None:
        with suppress(CannotFork):
            await self.open()
