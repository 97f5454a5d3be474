"""The process pool: each slot is a process that the template forked.

ProcessPool talks to the template over one socket pair (children.py) and to each slot over another. A job
whose process dies under it, in any way, ends as Raised. It ends as Interrupted only if the worker stops and killed the
process itself, or never started the job.
"""

import asyncio
import logging
import time
from collections.abc import Callable, Coroutine, Mapping
from contextlib import suppress
from typing import Any

from palermo.contract import clock
from palermo.core.failure import Failure, from_exception
from palermo.core.lifecycle import CANCELLED, INTERRUPTED, SUCCEEDED, Cancelled, Interrupted, Raised, RunResult
from palermo.core.message import Message
from palermo.errors import JobCancelled, JobCrashed, JobOutOfMemory, JobTimeout
from palermo.worker.ipc.batch_marks import BatchMarks
from palermo.worker.ipc.frames import fields_of, pack, unpack_changes, unpack_report, unpack_results
from palermo.worker.ipc.pipes import SlotPipe
from palermo.worker.limits import MEMORY_EVERY, Limits, lock_expired
from palermo.worker.pools.children import LINGER, CannotFork, Children, SlotLost
from palermo.worker.pools.pool import (
    OnReport,
    OnResult,
    StackFile,
    crash_result,
    ignore_report,
    pack_crashed,
    result_of_rest,
    split_batch,
)
from palermo.worker.registered import Registered
from palermo.worker.signals import CANCEL, DUMP, TERMINATE

log = logging.getLogger("palermo.worker")


class ProcessSlot:
    """The parent's view of one slot: its process, the job that runs in it, and the answer that the parent waits for.

    A fresh process replaces one that died or reached a limit.
    """

    __slots__ = (
        *("forked_at", "cancelling", "changes", "end_reason", "jobs", "kill_error", "message", "number", "pid", "pipe"),
        *("done", "marked", "replacing", "signalled", "timers", "waiter"),
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
        #: Whether marks of a batch may be left. A job that just succeeds leaves none.
        self.marked = False
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
        #: Completes with the next answer that is not the result of a job, such as that the process is ready.
        self.waiter: asyncio.Future[RunResult] | None = None

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
        self.waiter = waiter = loop.create_future()
        return waiter

    async def ask(self, frame: bytes) -> RunResult:
        """Send a frame and wait for the answer. Raises SlotLost."""
        pipe = self.pipe
        if pipe is None:
            raise SlotLost
        self.waiter = asyncio.get_running_loop().create_future()
        pipe.write(frame)
        return await self.waiter

    def answered(self, pipe: SlotPipe, result: RunResult) -> None:
        """Hand an answer of the slot to `ask`. Closes the socket pair if nobody asked."""
        waiter = self.waiter
        if waiter is None or waiter.done():
            pipe.abort("sent an answer that nobody asked for")
            return
        self.waiter = None
        waiter.set_result(result)

    def lost(self, why: str) -> bool:
        """The socket pair has closed. Returns whether somebody waited for an answer, who now gets SlotLost."""
        self.pipe = None
        waiter, self.waiter = self.waiter, None
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


class ProcessPool:
    """A pool of slots, each a process that the template forked."""

    def __init__(self, children: Children, *, slots: int, limits: Limits, stacks: StackFile, marks: BatchMarks) -> None:
        self.on_report: OnReport = ignore_report
        self.children = children
        self._limits = limits
        #: Whether any job has a limit besides those of its message.
        self._limiting = limits.timeout is not None
        self._stacks = stacks
        self._marks = marks
        self._slots = {number: ProcessSlot(number) for number in range(1, slots + 1)}
        self._timeouts: Mapping[str, float] = {}
        self._locks: Mapping[str, float] = {}
        self._terminated = False
        #: The tasks of jobs that wait for a process, or whose process has ended under them.
        self._tasks: set[asyncio.Task[RunResult | None]] = set()
        self._watch: asyncio.TimerHandle | None = None

    async def start(self) -> Registered:
        registered = await self.children.open()
        self._timeouts, self._locks = registered.timeouts, registered.locks
        self._limiting = self._limiting or bool(self._timeouts or self._locks)
        if self._limits.max_memory is not None:
            self._watch_memory()
        return registered

    async def prepare(self, slot: int) -> None:
        with suppress(CannotFork):
            await self._ready(self._slots[slot])

    def run(self, slot: int, message: Message, done: OnResult) -> None:
        process = self._slots[slot]
        if process.marked or message.companions:
            self._marks.clear(slot, len(message.companions) + 1)
            process.marked = False
        if self._limits.max_lifetime is not None and process.pipe is not None:
            self._replace_if_worn(process)
        # Fast path: a process that is ready gets its job without a task. Its gain is in that of SlotTask._take.
        waits = process.pipe is not None and process.message is None
        if waits and process.replacing is None and process.waiter is None:
            self._start_job(process, message, done)
        else:
            self._finish(self._run_when_ready(process, message, done), done)

    async def stack(self, slot: int) -> str:
        process = self._slots[slot]
        if process.message is None or process.pid is None:
            return ""
        self._stacks.clear()
        self.children.signal(process, DUMP)
        return await self._stacks.answer()

    def kill_jobs(self) -> None:
        for process in self._slots.values():
            if process.message is not None:
                error = JobCrashed("the job's process was killed by the operator (USR1)")
                self._kill_job(process, process.message, error)

    def cancel(self, slot: int) -> None:
        process = self._slots[slot]
        message = process.message
        if message is None:
            return
        process.cancelling = True
        process.signalled = True
        self.children.signal(process, CANCEL)
        loop, error = asyncio.get_running_loop(), JobCancelled("")
        loop.call_later(self._limits.timeout_grace, self._kill_job, process, message, error)

    def terminate(self) -> None:
        self._terminated = True
        for process in self._slots.values():
            if process.message is not None:
                self.children.signal(process, TERMINATE)

    @property
    def gone(self) -> asyncio.Event:
        return self.children.gone

    @property
    def pids(self) -> tuple[int, ...]:
        return self.children.pids

    async def hook(self, name: str, *more: Any) -> float:
        return await self.children.template.hook(name, *more)

    def drain(self) -> None:
        self.children.draining.set()

    def kill(self) -> None:
        self.children.kill()

    async def close(self) -> None:
        self.drain()  # the worker may not have stopped in order; no process that ends now is to be replaced
        if self._watch is not None:
            self._watch.cancel()
        for process in self._slots.values():
            if process.replacing is not None:
                process.replacing.cancel()
            if process.pipe is not None:
                process.pipe.close()
        await self.children.close()
        self._stacks.close()

    # One job.

    async def _run_when_ready(self, process: ProcessSlot, message: Message, done: OnResult) -> RunResult | None:
        """Start the job as soon as the slot has a process. Returns a result if it does not run."""
        try:
            await self._ready(process)
        except CannotFork:
            # The job never began, so it did nothing wrong.
            return INTERRUPTED
        if process.pipe is None:
            return await self._result_after_crash(process, message, "")
        self._start_job(process, message, done)
        return None

    def _start_job(self, process: ProcessSlot, message: Message, done: OnResult) -> None:
        """Give the slot's process this job, and start the timers of its limits."""
        if self._limiting:
            message = self._limits.limited(message, self._timeouts, self._locks)
        process.message, process.done = message, done
        timeout, lock_for = message.timeout, message.lock_for
        if lock_for is not None:
            end = asyncio.get_running_loop().call_later(
                lock_for, self._kill_job, process, message, lock_expired(lock_for)
            )
            process.timers.append(end)
        if timeout is not None:
            grace = self._limits.timeout_grace
            text = f"the job's process was killed: it ran {grace:g} s longer than its timeout of {timeout:g} s"
            end = asyncio.get_running_loop().call_later(
                timeout + grace, self._kill_job, process, message, JobTimeout(text)
            )
            process.timers.append(end)
        assert process.pipe is not None
        process.pipe.write(pack(("run", fields_of(message))))

    def _answered(self, process: ProcessSlot, pipe: SlotPipe, result: RunResult) -> None:
        done = process.done
        if done is None or process.pipe is not pipe:
            process.answered(pipe, result)
            return
        process.job_ended()
        process.marked = process.marked or result is not SUCCEEDED
        worn = process.signalled or process.changes or process.kill_error is not None
        if worn or self._limits.replaces_processes:
            self._replace_if_worn(process)
        done(result)

    async def _result_after_crash(self, process: ProcessSlot, message: Message, error: str) -> RunResult:
        """The result of a job whose process was lost under it."""
        why = await self.children.describe_end(process, error)
        kill_error, process.kill_error = process.kill_error, None
        if self.children.killed or self._terminated:
            return INTERRUPTED
        if isinstance(kill_error, JobCancelled):
            return CANCELLED
        done = self._marks.done(process.number, len(message.companions) + 1)
        if kill_error is None and (message.companions or any(done)):
            return split_batch(message, done, why)
        failure = from_exception(kill_error or JobCrashed(f"the job's process {why}"), failed_at=int(clock.now()))
        return await result_of_rest(message, done, lambda rest: self._ask_policy(process, rest, failure))

    def _kill_job(self, process: ProcessSlot, message: Message, error: Exception) -> None:
        """Kill the process of a job that runs; the job then ends with this error."""
        if process.message is not message or process.kill_error is not None:
            return
        if process.pid is None:
            # The process lives, but the template's report of its pid has not arrived yet.
            asyncio.get_running_loop().call_later(LINGER, self._kill_job, process, message, error)
            return
        process.kill_error = error
        self.children.kill_process(process)

    def _watch_memory(self) -> None:
        self._watch = asyncio.get_running_loop().call_later(MEMORY_EVERY, self._watch_memory)
        for process in self._slots.values():
            if process.message is not None and (why := self._limits.memory_excess(process.pid)):
                self._kill_job(process, process.message, JobOutOfMemory(f"the job's process was killed: {why}"))

    async def _ask_policy(self, process: ProcessSlot, message: Message, failure: Failure) -> RunResult:
        """Have a fresh process decide the result of a job that crashed, and call its hooks. Tried only once."""
        try:
            await self._start_slot(process)
            return crash_result(await process.ask(pack_crashed(message, failure)), failure)
        except SlotLost as error:
            why = await self.children.describe_end(process, str(error))
            log.error("on_failure hooks crashed too id=%s job=%s error=%r", message.id, message.job, why)
        except CannotFork:
            log.warning("on_failure hooks not called, no slot to run them id=%s job=%s", message.id, message.job)
        # No process could apply the job's retry policy.
        return Raised(failure)

    def _finish(self, work: Coroutine[Any, Any, RunResult | None], done: OnResult) -> None:
        """Find out the result of a job in the background. It still runs if `work` returns None."""

        def ended(task: "asyncio.Task[RunResult | None]") -> None:
            self._tasks.discard(task)
            if task.cancelled():
                return
            if (error := task.exception()) is not None:
                log.error("cannot tell how a job ended, giving it back: a bug", exc_info=error)
            if (result := INTERRUPTED if error is not None else task.result()) is not None:
                done(result)

        task = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(ended)

    # Starting and replacing processes.

    def _replace_if_worn(self, process: ProcessSlot) -> None:
        """Begin to give the slot a fresh process, if that is due; its next job waits for it."""
        # It answered before it was killed. It is still going to be killed, and must not get another job.
        why = "it was condemned" if process.kill_error is not None else ""
        # The signal goes through the template: it may arrive late, and would interrupt the next job.
        why = why or ("a job was cancelled in it" if process.signalled else "")
        why = why or process.changes
        why = why or self._limits.replace_reason(
            jobs=process.jobs, age=time.monotonic() - process.forked_at, pid=process.pid
        )
        if why and process.replacing is None:
            level = logging.DEBUG if self._limits.max_jobs else logging.INFO
            level = logging.WARNING if process.changes else level
            log.log(level, "slot replaced slot=%d pid=%s reason=%r", process.number, process.pid, why)
            process.replacing = asyncio.ensure_future(self._replace(process))

    async def _replace(self, process: ProcessSlot) -> None:
        await self.children.end(process)
        with suppress(CannotFork):
            if not self.children.draining.is_set():
                await self._start_slot(process)
        process.replacing = None  # not before: its first answer would be taken for the answer to a job

    async def _ready(self, process: ProcessSlot) -> None:
        """Wait until the slot has a process; start one if it has none. Raises CannotFork."""
        if process.replacing is not None:
            await process.replacing
        if process.pipe is None:
            await self._start_slot(process)

    async def _start_slot(self, process: ProcessSlot) -> None:
        """Start the slot's process, and wait until it is ready. Raises CannotFork."""

        def connect() -> SlotPipe:
            pipe = SlotPipe(
                lambda _: self._answered(process, pipe, SUCCEEDED),
                lambda reply: self._on_reply(process, pipe, reply),
                lambda why: self._on_end(process, pipe, why),
            )
            return pipe

        await self.children.launch(process, connect)

    def _on_reply(self, process: ProcessSlot, pipe: SlotPipe, reply: Mapping[str, Any]) -> None:
        if reply == {"ready": True}:
            process.answered(pipe, SUCCEEDED)
            return
        changes = unpack_changes(reply)
        if changes and process.message is not None:
            process.changes = f"job {process.message.job} {process.message.id} changed its process: {changes}"
            return
        report = unpack_report(reply)
        if report is not None:
            if process.pipe is pipe and process.message is not None:
                self.on_report(process.number, report)
            return
        result = unpack_results(reply)
        match result:
            case None:
                pipe.abort("sent an answer that means nothing")
            case Interrupted() if not self._terminated:
                pipe.abort("sent an answer that means nothing")
            case Cancelled() if not process.cancelling:
                pipe.abort("sent an answer that means nothing")
            case _:
                self._answered(process, pipe, result)

    def _on_end(self, process: ProcessSlot, pipe: SlotPipe, why: str) -> None:
        if process.pipe is not pipe:
            return
        message, done = process.message, process.done
        if process.lost(why):
            return
        if done is not None and message is not None:
            process.job_ended()
            process.marked = True
            self._finish(self._result_after_crash(process, message, why), done)
            return
        if not (self.children.draining.is_set() or self.children.gone.is_set()):
            log.warning("slot ended while idle slot=%d pid=%s", process.number, process.pid)
