"""The pool of a test's worker: one slot, whose jobs run in the thread that called `work`.

It replaces the processes and socket pairs that other pools have between the worker's loop and the executor. The
executor receives the same message fields as a slot. As in a thread pool, time limits raise an error in the job, but
jobs can't be killed.
"""

import asyncio
import contextvars
import os
import sys
import threading
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from palermo.core.lifecycle import INTERRUPTED, RunResult, results_of_each
from palermo.core.message import Message
from palermo.errors import JobCrashed, JobError
from palermo.jobs.job_registry import Registry
from palermo.testing.failures import JobFailure, failures_of
from palermo.worker.child.executor import Executor, OnError
from palermo.worker.child.interrupts import SharedInterrupts
from palermo.worker.child.reporting import Reporter
from palermo.worker.child.shared_slots import is_awaitable
from palermo.worker.ipc.frames import Report, fields_of, unpack_message
from palermo.worker.limits import Limits, cancelled, rerun_timeout, terminated, timed_out
from palermo.worker.pools.pool import OnReport, OnResult, ignore_report
from palermo.worker.registered import Registered

#: Creates the executor of the pool's slot.
MakeExecutor = Callable[[SharedInterrupts, OnError], Executor]


class LocalPool:
    """A pool with one slot in this process."""

    def __init__(
        self,
        make_executor: MakeExecutor,
        jobs: Registry,
        registered: Registered,
        *,
        hand_over: Callable[["LocalRun"], object],
        failed: Callable[[list[JobFailure]], None],
    ) -> None:
        """`hand_over` passes a run to the thread that performs it. `failed` is called there with the failures of each
        run.
        """
        self.on_report: OnReport = ignore_report
        self.pids: tuple[int, ...] = ()
        self.gone = asyncio.Event()
        self._interrupts = SharedInterrupts()
        self._executor = make_executor(self._interrupts, self._note_error)
        self._jobs = jobs
        self._registered = registered
        self._hand_over = hand_over
        self._failed = failed
        self._loop = asyncio.get_running_loop()
        self._run: LocalRun | None = None
        #: The exceptions of the current run, by job id.
        self._errors: dict[str, BaseException] = {}

    async def start(self) -> Registered:
        return self._registered

    async def prepare(self, slot: int) -> None:
        """Do nothing, because the slot needs no preparation."""

    def run(self, slot: int, message: Message, done: OnResult) -> None:
        limited = Limits().limited(message, self._registered.timeouts, self._registered.reruns)
        sent = unpack_message(fields_of(limited))
        run = LocalRun(self, slot, sent, done, awaitable=is_awaitable(self._jobs.find(sent.job)))
        self._run, self._errors = run, {}
        self._interrupts.begin()
        if limited.timeout is not None:
            error: JobError = timed_out(limited.timeout)
            run.timers.append(self._loop.call_later(limited.timeout, self._interrupts.interrupt, error))
        if limited.rerun_after is not None:
            error = rerun_timeout(limited.rerun_after)
            run.timers.append(self._loop.call_later(limited.rerun_after, self._interrupts.interrupt, error))
        self._hand_over(run)

    async def stack(self, slot: int) -> str:
        frame = sys._current_frames().get(self._run.thread if self._run is not None else 0)
        return "" if frame is None else "".join(traceback.format_stack(frame)).rstrip()

    def kill_jobs(self) -> None:
        self._interrupts.interrupt(JobCrashed("the job was ended by the operator (USR1)"))

    def cancel(self, slot: int) -> None:
        self._interrupts.interrupt(cancelled())

    def terminate(self) -> None:
        self._interrupts.interrupt(terminated())

    async def hook(self, name: str, *more: Any) -> float:
        """Do nothing, because a test has no worker processes whose hooks could run."""
        return 0.0

    def drain(self) -> None:
        """Do nothing, because no process is ever started."""

    def kill(self) -> None:
        """Requeue the running job. Its code continues, but its result is ignored."""
        if self._run is not None:
            self.end(self._run, INTERRUPTED)

    async def close(self) -> None:
        """Do nothing."""

    # Called in the thread that performs the run

    def execute(self, run: "LocalRun", reporter: Reporter) -> RunResult:
        """Run the job in this thread."""
        run.thread = threading.get_ident()
        return self._executor.run(run.message, reporter)

    async def execute_async(self, run: "LocalRun", reporter: Reporter) -> RunResult:
        """Run a coroutine job in this thread's event loop, as a separate task."""
        run.thread = threading.get_ident()
        return await asyncio.ensure_future(self._executor.run_async(run.message, reporter))

    def performed(self, run: "LocalRun", result: RunResult) -> None:
        """Record the failures of a run, and report its end to the worker's loop."""
        messages = (run.message, *run.message.companions)
        self._failed(failures_of(messages, results_of_each(result, len(messages)), self._errors))
        self._loop.call_soon_threadsafe(self.end, run, result)

    def report(self, run: "LocalRun", report: Report) -> None:
        """Pass the job's report to the worker's loop."""
        self._loop.call_soon_threadsafe(self.on_report, run.slot, report)

    def _note_error(self, error: BaseException, messages: Sequence[Message]) -> None:
        self._errors |= {message.id: error for message in messages}

    # In the worker's loop

    def end(self, run: "LocalRun", result: RunResult) -> None:
        """Pass the result of a run to the worker, unless the run has already ended."""
        if run is not self._run:
            return
        self._run = None
        for timer in run.timers:
            timer.cancel()
        run.done(result)


class LocalRun:
    """One run of a job or batch, for the thread that performs it."""

    def __init__(self, pool: LocalPool, slot: int, message: Message, done: OnResult, *, awaitable: bool) -> None:
        self.slot = slot
        self.message = message
        self.done = done
        #: Whether the job is a coroutine function.
        self.awaitable = awaitable
        self.timers: list[asyncio.TimerHandle] = []
        #: The thread that performs it, or 0.
        self.thread = 0
        self._pool = pool
        self._result: RunResult = INTERRUPTED
        #: Read by the reporter: the process, and where reports are sent.
        self.pid = os.getpid()

    def perform(self) -> None:
        """Run the job in this thread. If this thread has a running event loop, a coroutine job runs in another
        thread.
        """
        if self.awaitable and asyncio._get_running_loop() is not None:
            context = contextvars.copy_context()
            other = threading.Thread(target=context.run, args=(self._perform,), name="palermo-testing-job")
            other.start()
            other.join()
        else:
            self._perform()

    async def perform_async(self) -> None:
        """Run the job in this thread, a coroutine job in its event loop."""
        if not self.awaitable:
            self._perform()
            return
        with self._performing() as reporter:
            self._result = await self._pool.execute_async(self, reporter)

    def _perform(self) -> None:
        with self._performing() as reporter:
            self._result = self._pool.execute(self, reporter)

    @contextmanager
    def _performing(self) -> Iterator[Reporter]:
        """Report the run's result to the pool at the end of the context."""
        reporter = Reporter(self, self.slot)
        try:
            yield reporter
        finally:
            reporter.end()
            self._pool.performed(self, self._result)

    def put(self, reporter: Reporter) -> None:
        """See palermo.worker.child.reporting.Sender."""
        self.deliver(reporter)

    def deliver(self, reporter: Reporter, *, last: bool = False) -> None:
        """See palermo.worker.child.reporting.Sender."""
        if (report := reporter.take(last=last)) is not None:
            self._pool.report(self, report)
