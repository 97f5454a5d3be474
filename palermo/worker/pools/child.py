"""A child of the template as the parent sees it, the jobs that run in it, and the place that it has in the pool.

In a process pool each slot has a child of its own. In a thread or async pool all slots share one.
"""

import asyncio
import itertools
import logging
import time
from collections.abc import Callable, Coroutine, Iterator, Mapping
from contextlib import suppress
from typing import Any, Protocol

from palermo.core.lifecycle import SUCCEEDED, RunResult
from palermo.core.message import Message
from palermo.errors import JobCancelled, JobError, JobTerminated
from palermo.worker import signals
from palermo.worker.ipc.frames import Changed, Ended, FromSlot, Pong, Ready, Report, Reported, Stack, pack
from palermo.worker.ipc.pipes import SlotPipe
from palermo.worker.limits import Limits
from palermo.worker.pools.children import CannotFork, Children, SlotLost

log = logging.getLogger("palermo.worker")

#: The most frames that wait for the end of a turn of the loop: with more, the child would sit idle meanwhile.
_TOGETHER = 16


class Run:
    """One job in a slot, from the moment that the pool gets it to its result."""

    __slots__ = ("cancelled", "child", "done", "kill_error", "left", "lock", "message", "slot", "timer")

    def __init__(self, slot: int, message: Message, done: Callable[[RunResult], None]) -> None:
        self.slot = slot
        self.message = message
        #: Called with its result.
        self.done = done
        #: The child that it runs in, while it runs.
        self.child: Child | None = None
        #: The error that this job ends with, if its child is being killed because of it.
        self.kill_error: JobError | None = None
        #: Whether someone cancelled it.
        self.cancelled = False
        #: The timer of its timeout, or of the grace after a timeout or a cancellation.
        self.timer: asyncio.TimerHandle | None = None
        #: The timer that ends the job when its `lock_for` is over.
        self.lock: asyncio.TimerHandle | None = None
        #: Set when it has left its child, if `Child.without` waits for that.
        self.left: asyncio.Future[None] | None = None


class Owner(Protocol):
    """The pool that owns the children, as they call it."""

    def answered(self, child: "Child", run: Run, result: RunResult) -> None:
        """A run has this result, and has left the child."""

    def lost(self, child: "Child", run: Run, why: str) -> None:
        """The child has died under a run."""

    def ended(self, child: "Child") -> None:
        """A child that had become ready has ended."""

    def changed(self, child: "Child", changes: str) -> None:
        """Jobs have left these changes in the child's process."""

    def reported(self, slot: int, report: Report) -> None:
        """The job of this slot reports its progress or log lines."""


#: The signal that interrupts the job of a process of its own, by the error that it raises there. A timeout needs none:
#: such a process watches it by itself.
_SIGNALS: Mapping[type[JobError], int] = {JobCancelled: signals.CANCEL, JobTerminated: signals.TERMINATE}


class Child:
    """A child process, the jobs that run in it, and the answers that the parent waits for."""

    def __init__(self, number: int, place: "Place", owner: Owner) -> None:
        self.number = number
        self.place = place
        self.pid: int | None = None
        self.pipe: SlotPipe | None = None
        self.end_reason: asyncio.Future[str | None] | None = None
        #: The jobs that run in it now, by slot.
        self.runs: dict[int, Run] = {}
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
            lambda answer: self._heard(pipe, answer),
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
        """Send this frame: at once to the process of one slot, else with the others of this turn of the loop."""
        packed = pack(frame)
        if not self.place.shared:
            if self.pipe is not None:
                self.pipe.write(packed)
            return
        if not self._frames:
            asyncio.get_running_loop().call_soon(self._flush)
        self._frames.append(packed)
        if len(self._frames) >= _TOGETHER:
            self._flush()

    def _flush(self) -> None:
        frames, self._frames = self._frames, []
        if frames and self.pipe is not None:
            self.pipe.write(b"".join(frames))

    def enter(self, run: Run) -> None:
        """Note that this job runs in the child from now on."""
        self.jobs += 1
        self.runs[run.slot] = run
        run.child = self

    def leave(self, run: Run) -> None:
        """Note that this job does not run in the child any more, and stop its timers."""
        run.child = None
        del self.runs[run.slot]
        if run.timer is not None:
            run.timer.cancel()
        if run.lock is not None:
            run.lock.cancel()
        if run.left is not None and not run.left.done():
            run.left.set_result(None)

    def interrupt(self, run: Run, error: JobError) -> None:
        """Have this error raised in the job."""
        if self.place.shared:
            self.write(("tell", run.slot, type(error).__name__, str(error)))
        elif (signal := _SIGNALS.get(type(error))) is not None:
            self.place.children.signal(self, signal)
            if signal == signals.CANCEL:
                # The signal goes through the template: it may arrive late, and would interrupt the next job.
                self.place.retire(self, "a job was cancelled in it")

    async def ask(self, slot: int, frame: tuple[Any, ...]) -> RunResult:
        """Send a frame to a slot and wait for its result. Raises SlotLost."""
        answer = self.answer(slot)
        self.write(frame)
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

    async def without(self, runs: list[Run], within: float) -> None:
        """Wait until these jobs have left the child, for at most so many seconds."""
        loop = asyncio.get_running_loop()
        for run in runs:
            run.left = loop.create_future()
        await asyncio.wait([run.left for run in runs if run.left is not None], timeout=within)

    def _succeeded(self, pipe: SlotPipe, number: bytes) -> None:
        # The process of one slot does not say which slot has succeeded.
        if not self.place.shared:
            self._answered(pipe, self.number, SUCCEEDED)
        else:
            self._answered(pipe, int(number) if number.isdigit() else -1, SUCCEEDED)

    def _heard(self, pipe: SlotPipe, answer: FromSlot) -> None:
        match answer:
            case Ended(slot, result):
                self._answered(pipe, slot, result)
            case Reported(slot, report):
                if slot in self.runs:
                    self._owner.reported(slot, report)
            case Changed(changes):
                self._owner.changed(self, changes)
            case Ready() if self._ready is not None:
                ready, self._ready = self._ready, None
                ready.set_result(None)
            case Pong() if self._pongs:
                pong = self._pongs.pop(0)
                if not pong.done():
                    pong.set_result(None)
            case Stack(slot, text) if slot in self._stacks:
                stack = self._stacks.pop(slot)
                if not stack.done():
                    stack.set_result(text)
            case _:
                pipe.abort("sent an answer that nobody asked for")

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


class Place:
    """A child's place in the pool: the current child takes jobs, retired ones finish theirs.

    The next child of one slot is forked when the last one has ended, since both have the slot's number.
    """

    def __init__(
        self,
        children: Children,
        limits: Limits,
        owner: Owner,
        spawn: Callable[[Coroutine[Any, Any, None]], None],
        *,
        slot: int | None,
    ) -> None:
        """`spawn` runs a coroutine in the background. `slot` is the one whose place it is; None for all slots."""
        self.children = children
        self.shared = slot is None
        #: The children that live; of the retired ones those in which jobs run.
        self.living: set[Child] = set()
        self._limits = limits
        self._owner = owner
        self._spawn = spawn
        self._numbers: Iterator[int] = itertools.count(1) if slot is None else itertools.repeat(slot)
        self._current: Child | None = None
        self._starting: asyncio.Task[None] | None = None

    @property
    def current(self) -> Child | None:
        """The child that takes jobs now; None if there is none ready."""
        child = self._current
        if child is None or not child.open:
            return None
        if self._limits.replaces_processes:
            self.check_limits(child)
        return child if child.open else None

    async def open(self) -> Child:
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
        await self._number_free()
        self._current = await self.launch()

    async def _number_free(self) -> None:
        """Wait until a new child may have the number of the last one."""
        if not self.shared and self._current is not None and self._current.end_reason is not None:
            await asyncio.wait([self._current.end_reason])

    async def launch(self) -> Child:
        """Start a fresh child. Raises CannotFork."""
        child = Child(next(self._numbers), self, self._owner)
        await self.children.launch(child, child.connect)
        self.living.add(child)
        return child

    async def for_one(self) -> Child:
        """A child in which no other job runs. Raises CannotFork."""
        if not self.shared:
            return await self.open()
        child = await self.launch()
        child.retired = True
        return child

    def check_limits(self, child: Child) -> None:
        """Retire the child if it has reached a limit; end it if it is retired and no job runs in it any more."""
        if not child.retired and self._limits.replaces_processes:
            why = self._limits.replace_reason(jobs=child.jobs, age=time.monotonic() - child.forked_at, pid=child.pid)
            if why:
                self.retire(child, why)
        if child.retired and not child.runs and child.pipe is not None:
            self.living.discard(child)
            self._spawn(self.children.end(child))

    def retire(self, child: Child, why: str, *, level: int = logging.INFO) -> None:
        """Give the child no more jobs, and have a fresh one ready for the next jobs."""
        if child.retired:
            return
        child.retired = True
        log.log(
            logging.DEBUG if self._limits.max_jobs and level == logging.INFO else level,
            "slot replaced slot=%s pid=%s jobs_left=%d reason=%r",
            self._name(child),
            child.pid,
            len(child.runs),
            why,
        )
        self._spawn(self._have_one_ready())

    def ended(self, child: Child) -> None:
        """A child has ended. If it was not retired, have another ready in its place."""
        self.living.discard(child)
        if child.retired or self.children.draining.is_set() or self.children.gone.is_set():
            return
        if not child.runs:
            log.warning("slot ended while idle slot=%s pid=%s", self._name(child), child.pid)
            # It may have closed the socket pair without ending.
            self._spawn(self.children.end(child))
        if child.jobs:  # one that ends before its first job would end again and again
            self._spawn(self._have_one_ready())

    def close(self) -> None:
        """Close the socket pairs of all children, which then exit."""
        for child in self.living:
            if child.pipe is not None:
                child.pipe.close()

    async def _have_one_ready(self) -> None:
        await self._number_free()
        if not self.children.draining.is_set():
            with suppress(CannotFork):
                await self.open()

    def _name(self, child: Child) -> str:
        return "all" if self.shared else str(child.number)
