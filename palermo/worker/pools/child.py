"""The parent's view of a child process: the jobs that run in it, and its place in the pool.

In a process pool each slot has its own child. In a thread or async pool all slots share one.
"""

import asyncio
import itertools
import logging
import time
from collections.abc import Callable, Coroutine, Iterator, Mapping
from contextlib import suppress
from typing import Any, Protocol

from msgspec import Struct

from palermo.core.failure import Failure
from palermo.core.lifecycle import SUCCEEDED, RunResult
from palermo.core.message import Message
from palermo.errors import JobCancelled, JobError, JobTerminated
from palermo.worker import signals
from palermo.worker.ipc.frames import Changed, Ended, FromSlot, Ready, Report, Reported, Stack, fields_of, pack
from palermo.worker.ipc.pipes import SlotPipe
from palermo.worker.limits import Limits, rerun_timeout
from palermo.worker.pools.children import CannotFork, Children, Process, SlotLost

log = logging.getLogger("palermo.worker")

#: Maximum number of frames collected per loop iteration; the child would be idle with more.
_TOGETHER = 16


class Run(Struct, eq=False):
    """A job in a slot, from its start in the pool to its result."""

    slot: int
    message: Message
    done: Callable[[RunResult], None]
    #: The child in which it is running, if any.
    child: "Child | None" = None
    #: The error with which it ends, if its child is being killed because of it.
    kill_error: JobError | None = None
    cancelled: bool = False
    #: The timer of its timeout, or of the grace period after a timeout or cancellation.
    timer: asyncio.TimerHandle | None = None
    rerun_timer: asyncio.TimerHandle | None = None


class Owner(Protocol):
    """The methods of the pool that its children call."""

    def answered(self, child: "Child", run: Run, result: RunResult) -> None:
        """Called when a run has left the child with this result."""

    def run_lost(self, child: "Child", run: Run, why: str) -> None:
        """Called when the child died during a run, which has left it."""

    def timed_out(self, run: Run, timeout: float) -> None:
        """Called when a run has reached its timeout."""

    def kill_job(self, run: Run, error: JobError) -> None:
        """Kill the child of a run, which then ends with this error."""

    def reported(self, slot: int, report: Report) -> None:
        """Called when the job of this slot reports progress or log lines."""


#: The signal that raises each error in a job with its own process. A timeout needs none, because the process enforces
#: it itself.
_SIGNALS: Mapping[type[JobError], int] = {JobCancelled: signals.CANCEL, JobTerminated: signals.TERMINATE}


class Child(Process):
    """A child process, the jobs that run in it, and the answers that the parent is waiting for."""

    def __init__(self, number: int, place: "Place", owner: Owner, *, retired: bool) -> None:
        """A child that is `retired` from the start is for a single job."""
        super().__init__(number)
        self.place = place
        #: The jobs running in it, by slot.
        self.runs: dict[int, Run] = {}
        #: Number of jobs that were running in it when it ended.
        self.lost_jobs = 0
        #: Whether it takes no more jobs, and ends with its last one.
        self.retired = retired
        #: Whether it is being killed because of jobs with a `kill_error`.
        self.being_killed = False
        #: Whether it was killed because one of its jobs, it isn't known which, used too much memory.
        self.killed_for_memory = False
        #: When it exceeded its memory limit, by the monotonic clock, or None.
        self.over_memory_since: float | None = None
        #: Number of jobs it has started, and when it was forked, by the monotonic clock.
        self.jobs_begun = 0
        self.forked_at = time.monotonic()
        self._owner = owner
        #: The requested results of crashed jobs, by slot.
        self._results: dict[int, asyncio.Future[RunResult]] = {}
        #: The requested stacks, by slot; None if the child ends before it answers.
        self._stacks: dict[int, asyncio.Future[str | None]] = {}
        self._frames: list[bytes] = []

    def connect(self) -> SlotPipe:
        """Return the parent's end of the socket pair, for a process that is being forked."""
        self.pipe = SlotPipe(0 if self.place.shared else self.number, self._ended, self._on_answer, self._disconnected)
        return self.pipe

    def write(self, frame: tuple[Any, ...]) -> None:
        """Send a frame: immediately if the process has one slot, otherwise together with others of this loop
        iteration.
        """
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

    def start(self, run: Run) -> None:
        """Run this job in the child, and start the timers of its limits."""
        self.jobs_begun += 1
        self.runs[run.slot] = run
        run.child = self
        message, loop = run.message, asyncio.get_running_loop()
        self.write(("run", fields_of(message), run.slot))
        if message.timeout is not None:
            run.timer = loop.call_later(message.timeout, self._owner.timed_out, run, message.timeout)
        if message.rerun_after is not None:
            run.rerun_timer = loop.call_later(
                message.rerun_after, self._owner.kill_job, run, rerun_timeout(message.rerun_after)
            )

    def remove(self, run: Run) -> None:
        """Remove this job from the child and stop its timers. A retired child ends with its last job."""
        run.child = None
        del self.runs[run.slot]
        if run.timer is not None:
            run.timer.cancel()
        if run.rerun_timer is not None:
            run.rerun_timer.cancel()
        if self.retired:
            self.place.end_if_idle(self)

    def interrupt(self, run: Run, error: JobError) -> None:
        if self.place.shared:
            self.write(("tell", run.slot, type(error).__name__, str(error)))
        elif (signal := _SIGNALS.get(type(error))) is not None:
            self.place.children.signal(self, signal)
            if signal == signals.CANCEL:
                # The signal is sent through the template, so it may arrive late and interrupt the next job.
                self.place.retire(self, "a job was cancelled in it")

    def result_after_crash(self, slot: int, message: Message, failure: Failure) -> asyncio.Future[RunResult]:
        """Let the child decide the result of a job that ended with this failure. The call or the future raises SlotLost
        if the child is gone.
        """
        if self.pipe is None:
            raise SlotLost
        result = self._results[slot] = asyncio.get_running_loop().create_future()
        self.write(("crashed", fields_of(message), failure, slot))
        return result

    async def stack(self, slot: int, within: float) -> str | None:
        """Return the stack of a slot's job, "" if the slot is idle, or None if the child doesn't answer in time."""
        # Don't repeat a request without an answer, because the second answer would look invalid.
        if slot not in self._stacks:
            self._stacks[slot] = asyncio.get_running_loop().create_future()
            self.write(("stack", slot))
        done, _ = await asyncio.wait([self._stacks[slot]], timeout=within)
        return done.pop().result() if done else None

    def _on_answer(self, answer: FromSlot) -> None:
        match answer:
            case Ended(slot, result):
                self._ended(slot, result)
            case Reported(slot, report):
                if slot in self.runs:
                    self._owner.reported(slot, report)
            case Changed(changes):
                self.place.child_changed(self, changes)
            case Ready() if not self.ready.done():
                self.ready.set_result(None)
                self.place.child_ready(self)
            case Stack(slot, text) if slot in self._stacks:
                self._stacks.pop(slot).set_result(text)
            case _:
                self._refuse_answer()

    def _ended(self, slot: int, result: RunResult = SUCCEEDED) -> None:
        run, waiter = self.runs.get(slot), self._results.pop(slot, None)
        if waiter is not None:
            if not waiter.done():
                waiter.set_result(result)
        elif run is not None:
            self.remove(run)
            self._owner.answered(self, run, result)
        else:
            self._refuse_answer()

    def _refuse_answer(self) -> None:
        if self.pipe is not None:
            self.pipe.abort("sent an unexpected answer")

    def _disconnected(self, why: str) -> None:
        if self.pipe is None:  # the parent itself ended this child
            return
        self.pipe = None
        self.lost_jobs = len(self.runs)
        if self.ready.done():
            self.place.child_lost(self)
        waiters: list[asyncio.Future[Any]] = [self.ready, *self._results.values()]
        for waiter in waiters:
            if not waiter.done():
                waiter.set_exception(SlotLost(why))
        for run in [*self.runs.values()]:
            self.remove(run)
            self._owner.run_lost(self, run, why)
        for stack in self._stacks.values():
            stack.set_result(None)


class Place:
    """A place in the pool: its current child takes jobs, and retired ones finish theirs.

    The next child of a slot is forked only when the previous one has ended, because both have the slot's number.
    """

    def __init__(
        self,
        children: Children,
        limits: Limits,
        owner: Owner,
        spawn: Callable[[Coroutine[Any, Any, None]], object],
        *,
        slot: int | None,
    ) -> None:
        """`spawn` runs a coroutine in the background. `slot` is the slot of this place; None for all slots."""
        self.children = children
        self.shared = slot is None
        #: The running children. Retired ones are included only while they have jobs.
        self.living: set[Child] = set()
        #: The child that takes jobs, if any is ready.
        self.current: Child | None = None
        self._limits = limits
        self._owner = owner
        self._spawn = spawn
        self._numbers: Iterator[int] = itertools.count(1) if slot is None else itertools.repeat(slot)
        #: The last child that took jobs, and the task that starts the next.
        self._latest: Child | None = None
        self._starting: asyncio.Task[None] | None = None

    async def ready_child(self) -> Child:
        """Return the child that takes jobs, starting one if necessary. Raises CannotFork."""
        while (child := self.current) is None:
            if self._starting is None or self._starting.done():
                self._starting = asyncio.ensure_future(self._start_current())
                # Retrieve the error, because all waiting callers may have been cancelled.
                self._starting.add_done_callback(lambda task: task.cancelled() or task.exception())
            starting = self._starting
            await asyncio.wait({starting})
            starting.result()
        return child

    async def child_for_one(self) -> Child:
        """Return a child for a single job. Call `end_if_idle` after that job. Raises CannotFork."""
        return await (self._launch(retired=True) if self.shared else self.ready_child())

    async def _start_current(self) -> None:
        await self._number_free()
        await self._launch(retired=False)

    async def _number_free(self) -> None:
        """Wait until a new child can have the number of the previous one."""
        if not self.shared and self._latest is not None:
            await asyncio.wait([self._latest.end_reason])

    async def _launch(self, *, retired: bool) -> Child:
        return await self.children.launch(lambda: Child(next(self._numbers), self, self._owner, retired=retired))

    def child_ready(self, child: Child) -> None:
        """Record that a child is ready for jobs, or for a single one if it is already retired."""
        self.living.add(child)
        if not child.retired:
            self.current = self._latest = child

    def retire_if_due(self) -> None:
        """Retire the current child if it has reached a limit."""
        if (child := self.current) is not None:
            age = time.monotonic() - child.forked_at
            if why := self._limits.replace_reason(jobs=child.jobs_begun, age=age, pid=child.pid):
                self.retire(child, why)

    def retire(self, child: Child, why: str, *, level: int = logging.INFO) -> None:
        """Stop giving jobs to the child, end it after its last job, and start a new one for the next jobs."""
        if child.retired:
            return
        child.retired, self.current = True, None
        log.log(
            logging.DEBUG if self._limits.max_jobs and level == logging.INFO else level,
            "slot replaced slot=%s pid=%s jobs_left=%d reason=%r",
            self._name(child),
            child.pid,
            len(child.runs),
            why,
        )
        self.end_if_idle(child)
        self._spawn(self._have_one_ready())

    def end_if_idle(self, child: Child) -> None:
        """End the child if it is retired and has no jobs."""
        if child.retired and not child.runs and child in self.living:
            self.living.discard(child)
            self._spawn(self.children.end(child))

    def child_changed(self, child: Child, changes: str) -> None:
        """Replace a child whose process was changed by jobs."""
        runs = [] if self.shared else [*child.runs.values()]
        who = "".join(f"job {run.message.job} {run.message.id}" for run in runs) or "a job"
        self.retire(child, f"{who} changed its process: {changes}", level=logging.WARNING)

    def child_lost(self, child: Child) -> None:
        """Handle a ready child that has closed its socket pair. Unless it was retired, it is replaced."""
        self.living.discard(child)
        if child is self.current:
            self.current = None
        if child.retired or self.children.draining.is_set() or self.children.gone.is_set():
            return
        if not child.runs:
            log.warning("slot ended while idle slot=%s pid=%s", self._name(child), child.pid)
            # It may have closed the socket pair without ending.
            self._spawn(self.children.end(child))
        if child.jobs_begun:  # a child that ends before its first job would end repeatedly
            self._spawn(self._have_one_ready())

    async def _have_one_ready(self) -> None:
        await self._number_free()
        if not self.children.draining.is_set():
            with suppress(CannotFork):
                await self.ready_child()

    def _name(self, child: Child) -> str:
        return "all" if self.shared else str(child.number)
