"""The pool of a worker: slots whose jobs run in processes forked from the template.

In a process pool each slot has its own process; in a thread or async pool all slots share one (child.py). The only way
to end a job by force is to kill its process. Therefore the pool never repairs a process but replaces it. The old one is
*retired* (it takes no more jobs, and ends with its last job), and a new one takes the next jobs.

If a process dies with a single job, that job fails. If it dies with several jobs, any of them may be the cause, so each
runs again *alone*, in a new process within the same delivery. A second death then has exactly one cause. A batch is
requeued, and each of its jobs then runs alone. A job ends as Interrupted only if the worker is stopping, the job never
started, or its process was killed because of another job.
"""

import asyncio
import logging
import os
import time
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from contextlib import suppress
from functools import partial
from typing import Any

from msgspec.structs import replace

from palermo.contract import clock
from palermo.contract.tasks import spawn
from palermo.core.failure import Failure, from_exception
from palermo.core.lifecycle import (
    CANCELLED,
    INTERRUPTED,
    SUCCEEDED,
    BatchResult,
    Cancelled,
    Dropped,
    Interrupted,
    Raised,
    Result,
    Retrying,
    RunResult,
    results_of_each,
)
from palermo.core.message import Message
from palermo.errors import JobCancelled, JobCrashed, JobError, JobOutOfMemory, JobTimeout
from palermo.worker.ipc.frames import Report
from palermo.worker.ipc.shared_marks import SharedMarks
from palermo.worker.limits import MEMORY_EVERY, Limits, cancelled, terminated, timed_out
from palermo.worker.pools.child import Child, Place, Run
from palermo.worker.pools.children import CannotFork, Children, SlotLost
from palermo.worker.pools.pool import (
    OnReport,
    OnResult,
    ignore_report,
)
from palermo.worker.registered import Registered
from palermo.worker.signals import DUMP

log = logging.getLogger("palermo.worker")

#: Maximum number of simultaneous processes for single jobs in a shared pool. Each may be the one that uses all memory.
_ALONE = 4

#: Seconds within which a responsive child sends a stack.
_PROMPT = 1.0


class ForkedPool:
    """A pool of slots, each with its own child, or all sharing one."""

    def __init__(
        self, children: Children, *, slots: int, shared: bool, limits: Limits, stacks: int, marks: SharedMarks
    ) -> None:
        """`stacks` is the descriptor of the file for the children's stacks."""
        self.on_report: OnReport = ignore_report
        self.children = children
        self._limits = limits
        self._stacks = stacks
        self._marks = marks
        self._registered: Registered
        #: Whether jobs may have limits that are not in their messages.
        self._limits_jobs = False
        self._tasks: set[asyncio.Task[None]] = set()
        self._spawn = partial(spawn, self._tasks)
        one_for_all = Place(children, limits, self, self._spawn, slot=None)
        self._places = {
            slot: one_for_all if shared else Place(children, limits, self, self._spawn, slot=slot)
            for slot in range(1, slots + 1)
        }
        #: The jobs that the pool is processing, by slot.
        self._runs: dict[int, Run] = {}
        self._alone = asyncio.Semaphore(_ALONE if shared else slots)
        self._terminated = False

    async def start(self) -> Registered:
        self._registered = registered = await self.children.start()
        self._limits_jobs = bool(registered.timeouts or registered.reruns or self._limits.timeout)
        if self._limits.max_memory is not None:
            self._spawn(self._watch_memory())
        return registered

    async def prepare(self, slot: int) -> None:
        with suppress(CannotFork):
            await self._places[slot].ready_child()

    def run(self, slot: int, message: Message, done: OnResult) -> None:
        registered, place = self._registered, self._places[slot]
        if message.job in registered.batches:
            self._marks.clear(slot, len(message.companions) + 1)
        if self._limits_jobs:
            message = self._limits.limited(message, registered.timeouts, registered.reruns)
        run = self._runs[slot] = Run(slot, message, done)
        if self._limits.replaces_processes:
            place.retire_if_due()
        # Fast path: a ready child gets the job without a task. The gain measured for SlotTask._take includes it.
        if (child := place.current) is not None and not self._terminated:
            child.start(run)
        else:
            self._spawn(self._finish(run, self._run_when_ready(run)))

    async def stack(self, slot: int) -> str:
        run = self._runs.get(slot)
        if run is None or run.child is None:
            return ""
        child = run.child
        if child.place.shared and (answer := await child.stack(slot, _PROMPT)) is not None:
            return answer
        # The job may hold the GIL or block the loop, so let faulthandler write all threads' stacks from C.
        os.ftruncate(self._stacks, 0)
        self.children.signal(child, DUMP)
        return await _written_stacks(self._stacks)

    def kill_jobs(self) -> None:
        for run in self._runs.values():
            run.kill_error = run.kill_error or JobCrashed("the job's process was killed by the operator (USR1)")
        for child in self._busy():
            child.place.retire(child, "its jobs were killed by the operator")
            self._kill(child)

    def cancel(self, slot: int) -> None:
        run = self._runs.get(slot)
        if run is None:
            return
        run.cancelled = True
        if run.child is None:
            run.kill_error = JobCancelled("")
            return
        run.child.interrupt(run, cancelled())
        self._kill_later(run, self._limits.timeout_grace, JobCancelled(""))

    def terminate(self) -> None:
        self._terminated = True
        for run in self._runs.values():
            if run.child is not None:
                run.child.interrupt(run, terminated())

    @property
    def gone(self) -> asyncio.Event:
        return self.children.gone

    @property
    def pids(self) -> tuple[int, ...]:
        return self.children.pids

    async def hook(self, name: str, *more: Any) -> float:
        return await self.children.hook(name, *more)

    def drain(self) -> None:
        self.children.draining.set()
        self._marks.stop()

    def kill(self) -> None:
        self.children.kill()

    async def close(self) -> None:
        self.drain()  # a process that ends now must not be replaced, even if the worker didn't stop in the normal order
        for task in self._tasks:
            task.cancel()
        await self.children.close()
        os.close(self._stacks)

    # One job

    async def _finish(self, run: Run, work: Coroutine[Any, Any, RunResult | None]) -> None:
        """End the run with the result of `work`. If the result is None, the job is still running."""
        result: RunResult | None = INTERRUPTED
        try:
            result = await work
        except CannotFork:
            pass  # the job's process has ended, and no other can be started
        except Exception:  # a bug in Palermo; the job is requeued
            log.exception("bug: outcome of a job unknown, requeuing it id=%s", run.message.id)
        if result is not None:
            self._runs.pop(run.slot).done(result)

    async def _run_when_ready(self, run: Run) -> RunResult | None:
        """Start the job as soon as a child takes jobs. If it must not run any more, return its result instead.

        Raises CannotFork.
        """
        child = await self._places[run.slot].ready_child()
        if self._must_not_run(run):
            return await self._result_of_killed(run, "did not run it")
        child.start(run)
        return None

    async def _run_alone(self, run: Run, place: Place) -> RunResult | None:
        """Like `_run_when_ready`, in a new process."""
        async with self._alone:
            if not self._must_not_run(run):
                child = await place.child_for_one()
                # In the meantime, the job may have been asked to end, and the process may have died.
                if child.pipe is not None and not self._must_not_run(run):
                    child.start(run)
                    await asyncio.wait([child.end_reason])
                    return None
                place.end_if_idle(child)
        # Outside of the block, because deciding the result takes such a process too.
        return await self._result_of_killed(run, "did not run it again")

    def _is_possible(self, run: Run, result: RunResult) -> bool:
        """Whether the result is possible. Only a stopped or cancelled job may end as interrupted or cancelled."""
        stopping = self._terminated or self.children.draining.is_set()
        if isinstance(result, BatchResult):
            return not any(isinstance(each, Interrupted | Cancelled) for each in result.results)
        return not (
            (isinstance(result, Interrupted) and not stopping) or (isinstance(result, Cancelled) and not run.cancelled)
        )

    # Called by the children (see Owner in child.py)

    def answered(self, child: Child, run: Run, result: RunResult) -> None:
        if self._limits.replaces_processes:
            child.place.retire_if_due()
        if result is SUCCEEDED or self._is_possible(run, result):
            self._runs.pop(run.slot).done(result)
        else:
            self._spawn(self._finish(run, self._result_of_killed(run, "sent an invalid answer")))
        if child.retired:
            self._kill_if_others_are_done(child)

    def run_lost(self, child: Child, run: Run, why: str) -> None:
        if run.cancelled:  # it must not run again, even if another job ended the process
            run.kill_error = run.kill_error or JobCancelled("")
        self._spawn(self._finish(run, self._result_after_crash(child, run, why)))

    def timed_out(self, run: Run, timeout: float) -> None:
        if run.child is not None:
            run.child.interrupt(run, timed_out(timeout))
        grace = self._limits.timeout_grace
        text = f"the job's process was killed: it ran {grace:g} s longer than its timeout of {timeout:g} s"
        self._kill_later(run, grace, JobTimeout(text))

    def kill_job(self, run: Run, error: JobError) -> None:
        """Kill the job's child, so that it ends with this error."""
        run.kill_error = run.kill_error or error
        if (child := run.child) is not None:
            child.place.retire(child, f"job {run.message.id} did not end")
            self._kill_if_others_are_done(child)
            asyncio.get_running_loop().call_later(self._limits.timeout_grace, self._kill, child)

    def reported(self, slot: int, report: Report) -> None:
        if report.saved is not None:
            # If its process dies because of another job, it runs again here.
            run = self._runs[slot]
            run.message = replace(run.message, saved=report.saved)
        self.on_report(slot, report)

    # Ending jobs by force

    def _must_not_run(self, run: Run) -> bool:
        """Whether the job must not run any more."""
        return run.kill_error is not None or self._terminated

    def _kill_later(self, run: Run, seconds: float, error: JobError) -> None:
        """Kill the job after `seconds`, unless it has ended by then."""
        if run.timer is not None:
            run.timer.cancel()
        run.timer = asyncio.get_running_loop().call_later(seconds, self.kill_job, run, error)

    def _kill_if_others_are_done(self, child: Child) -> None:
        """Kill a child if all of its jobs must end. Other jobs get the grace period to finish first."""
        if all(run.kill_error is not None for run in child.runs.values()):
            self._kill(child)

    def _kill(self, child: Child) -> None:
        """Kill a child because of its running jobs that must end. The other jobs in it are requeued."""
        because_of = " ".join(run.message.id for run in child.runs.values() if run.kill_error is not None)
        if child.being_killed or not because_of:
            return
        child.being_killed = True
        for run in child.runs.values():
            if run.kill_error is None:
                log.warning(
                    "process of this job killed because of another job id=%s job=%s because_of=%s",
                    run.message.id,
                    run.message.job,
                    because_of,
                )
        self.children.kill_child(child)

    async def _watch_memory(self) -> None:
        """Watch the memory of the children.

        If a child with several jobs exceeds the limit, the job responsible isn't known. The child is retired, and its
        jobs get the grace period to finish. Each unfinished job then runs again alone, where its own memory can be
        measured.
        """
        while True:
            await asyncio.sleep(MEMORY_EVERY)
            for child in self._busy():
                why = self._limits.memory_excess(child.pid)
                if not why:
                    continue
                child.place.retire(child, why)
                now = time.monotonic()
                child.over_memory_since = child.over_memory_since or now
                if child.jobs_begun == 1 or not child.place.shared:
                    for run in child.runs.values():
                        if run.kill_error is None:
                            self.kill_job(run, JobOutOfMemory(f"the job's process was killed: {why}"))
                elif now - child.over_memory_since >= self._limits.timeout_grace or self._limits.memory_excess(
                    child.pid, times=2
                ):
                    log.warning("process killed pid=%s jobs=%d reason=%r", child.pid, len(child.runs), why)
                    child.killed_for_memory = True
                    self.children.kill_child(child)

    def _busy(self) -> list[Child]:
        """Return the children with running jobs."""
        return [child for place in set(self._places.values()) for child in place.living if child.runs]

    # The results of jobs that did not end by themselves

    async def _result_after_crash(self, child: Child, run: Run, error: str) -> RunResult | None:
        """Return the result of a job whose child has died; None if it runs again. Raises CannotFork."""
        why = await self.children.ensure_end(child, error)
        if child.being_killed and run.kill_error is None:
            return INTERRUPTED
        done = self._done(run)
        if run.kill_error is None and (run.message.companions or any(done)):
            return _split_batch(run.message, done, why)
        # If the template dies, all children die, and none can be forked to try jobs alone, so these jobs fail.
        known = child.lost_jobs == 1 and not child.killed_for_memory
        if known or run.kill_error is not None or self.children.gone.is_set():
            return await self._result_of_killed(run, why)
        log.warning(
            "process died while running %d jobs, this one runs again alone id=%s job=%s fate=%r",
            child.lost_jobs,
            run.message.id,
            run.message.job,
            why,
        )
        return await self._run_alone(run, child.place)

    async def _result_of_killed(self, run: Run, why: str) -> RunResult:
        """Return the result of a job that was killed: its `kill_error`, or by default the end of its process."""
        if self.children.killed or self._terminated:
            return INTERRUPTED
        error = run.kill_error or JobCrashed(f"the job's process {why}")
        if isinstance(error, JobCancelled):
            return CANCELLED
        failure = from_exception(error, failed_at=int(clock.now()))
        return await result_of_rest(
            run.message, self._done(run), lambda rest: self._ask_policy(run.slot, rest, failure)
        )

    def _done(self, run: Run) -> list[bool]:
        """Return whether each message of a batch is marked as done; [] if the job takes no batches."""
        if run.message.job not in self._registered.batches:
            return []
        return self._marks.done(run.slot, len(run.message.companions) + 1)

    async def _ask_policy(self, slot: int, message: Message, failure: Failure) -> RunResult:
        """Let a child decide the result of a failed job, and call its hooks. Tried only once.

        No other job runs in that child, so the hooks can't harm one.
        """
        try:
            async with self._alone:
                child = await self._places[slot].child_for_one()
                try:
                    result = await child.result_after_crash(slot, message, failure)
                    child.place.end_if_idle(child)
                    return result if isinstance(result, BatchResult | Dropped | Retrying) else Raised(failure)
                except SlotLost as error:
                    why = await self.children.ensure_end(child, str(error))
                    log.error("on_failure hooks crashed too id=%s job=%s error=%r", message.id, message.job, why)
        except CannotFork:
            log.warning("on_failure hooks not called, no slot to run them id=%s job=%s", message.id, message.job)
        # no process could apply the job's retry policy
        return Raised(failure)


def _split_batch(message: Message, done: Sequence[bool], why: str) -> BatchResult:
    """Return the result of a batch whose process died: marked items are done, and the other jobs are requeued.

    A redelivered job runs alone, so the next death has one cause.
    """
    log.warning(
        "process died during a batch, jobs not marked as done run again alone id=%s job=%s jobs=%d done=%d fate=%r",
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
    """Return the result of a run: marked messages are done, and `ask` returns the result of the others."""
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


#: Seconds for a slot to start writing its stack, and between checks whether it is still writing.
_ANSWER_TIMEOUT, _EVERY = 2.0, 0.05


async def _written_stacks(descriptor: int) -> str:
    """Return the text that a process writes to this empty file, once it stops growing; "" if nothing arrives.

    The file has no name, and is open in the parent, the template and every slot.
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
