"""Interrupts a running job because of its timeout, a cancellation or the worker's shutdown.

In a slot of a process pool, `Interrupts` raises an exception in the main thread, which runs the job, between two
bytecodes or out of a blocking system call. If the job is in C code or catches the exception, it continues until the
parent kills its process (forked_pool.py). `SharedInterrupts` is for slots that share a process.
"""

import asyncio
import ctypes
import signal
import threading
from collections.abc import Coroutine
from contextlib import suppress
from types import FrameType
from typing import Any

from palermo.errors import JobCancelled, JobError, JobTerminated
from palermo.worker.limits import cancelled, terminated, timed_out
from palermo.worker.signals import CANCEL, TERMINATE


class _Asked:
    """The pending requests to a slot's job."""

    #: Whether it must end because the worker is stopping.
    terminated = False
    cancelled = False
    #: Whether one of its loops was ended by the worker's shutdown. If so, it isn't done, whatever it returns.
    unfinished = False

    def end_loop(self) -> JobTerminated:
        """Return the error that ends a loop. The job is then requeued, as after JobTerminated. Called by the job."""
        self.terminated = self.unfinished = True
        return terminated()


class Interrupts(_Asked):
    """Raises exceptions in the job of this process. A job without a timeout costs no system call."""

    def __init__(self) -> None:
        self._inside = False
        self._timeout: float | None = None
        #: The previous handler of SIGALRM, possibly the user's.
        self._before: Any = signal.SIG_DFL

    def install(self) -> None:
        """Install the signal handlers that raise JobTerminated or JobCancelled."""
        signal.signal(TERMINATE, self._interrupt)
        signal.signal(CANCEL, self._interrupt)

    def enter(self, timeout: float | None) -> None:
        """Mark the start of the job, which gets JobTimeout after `timeout` seconds."""
        self.terminated = self.cancelled = self.unfinished = False
        self._timeout = timeout
        if timeout is not None:
            self._before = signal.signal(signal.SIGALRM, self._interrupt)
        self._inside = True
        if timeout is not None:
            signal.setitimer(signal.ITIMER_REAL, timeout)

    def leave(self) -> None:
        """Mark the end of the job."""
        self._inside = False
        if self._timeout is not None:
            self._timeout = None
            signal.setitimer(signal.ITIMER_REAL, 0)
            signal.signal(signal.SIGALRM, self._before or signal.SIG_DFL)

    def end_loop(self) -> JobTerminated:
        """See the base class. Afterwards no signal interrupts the job."""
        self._inside = False
        return super().end_loop()

    async def within(self, coroutine: Coroutine[Any, Any, Any]) -> Any:
        """Await a job's coroutine. If a signal handler raises, the loop ends, which cancels the coroutine."""
        return await coroutine

    def _interrupt(self, number: int, frame: FrameType | None) -> None:
        if not self._inside:
            return
        # Only once, so that the job's own cleanup isn't interrupted.
        self._inside = False
        self.terminated, self.cancelled = number == TERMINATE, number == CANCEL
        if self.terminated:
            raise terminated()
        if self.cancelled:
            raise cancelled()
        assert self._timeout is not None
        raise timed_out(self._timeout)


class SharedInterrupts(_Asked):
    """Raises errors in the job of one slot in a shared process, chosen by the parent.

    In a plain function, Python raises the error in the job's thread between two bytecodes, after any blocking call
    (time.sleep, a socket) or C code has returned. A coroutine is instead cancelled where it awaits, because asyncio's
    locks, groups and timeouts clean up after CancelledError. It then ends with the error that caused the cancellation.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        #: Whether the slot has an unfinished job.
        self._begun = False
        #: Whether the job has been interrupted.
        self._interrupted = False
        #: The thread that runs the job; 0 before that.
        self._thread = 0
        #: Whether an error was raised in that thread and has possibly not arrived yet.
        self._raised = False
        #: The error raised before the job ran, and the error for which its coroutine was cancelled.
        self._early_error: JobError | None = None
        self._cancel_error: JobError | None = None
        #: The task that awaits the job's coroutine.
        self.task: asyncio.Task[Any] | None = None

    def begin(self) -> None:
        """Mark that the slot has a job, which `interrupt` can reach from now on."""
        with self._lock:
            self._begun, self._interrupted = True, False
            self.terminated, self.cancelled, self.unfinished = False, False, False
            self._early_error = self._cancel_error = None

    def enter(self, timeout: float | None) -> None:
        """Mark the start of the job in this thread. The parent enforces the timeout."""
        with self._lock:
            self._thread = threading.get_ident()
            pending, self._early_error = self._early_error, None
        if pending is not None:
            raise pending

    def leave(self) -> None:
        """Mark the end of the job, and drop an error that hasn't arrived yet."""
        while True:
            try:
                with self._lock:
                    self._begun = False
                    raised, self._thread, self._raised = self._raised, 0, False
                if raised:
                    # A pending error is raised at the first jump. Clearing it with NULL would leave the interpreter's
                    # flag set: each check of the flag then costs a call, and Python 3.11 hangs under coverage.
                    for _ in range(10):
                        pass
                return
            except JobError:
                continue

    def interrupt(self, error: JobError) -> None:
        """Raise this error in the job. Called by another thread, or by the job's event loop."""
        with self._lock:
            if not self._begun or self._interrupted:
                return
            self._interrupted = True  # only once, so that the job's own cleanup isn't interrupted
            self.terminated = self.terminated or isinstance(error, JobTerminated)
            self.cancelled = self.cancelled or isinstance(error, JobCancelled)
            if self.task is not None:
                self._cancel_error = error
                with suppress(RuntimeError):  # its loop was closed just now
                    self.task.get_loop().call_soon_threadsafe(self.task.cancel)
            elif self._thread:
                self._raised = True
                _raise_in(self._thread, _class_with_text(error))
            else:
                self._early_error = error

    async def within(self, coroutine: Coroutine[Any, Any, Any]) -> Any:
        """Await a job's coroutine."""
        with self._lock:
            self.task = asyncio.current_task()
        try:
            return await coroutine
        except asyncio.CancelledError as cancelled:
            cancel_error, self._cancel_error = self._cancel_error, None
            if cancel_error is None:
                raise
            raise cancel_error from cancelled
        finally:
            with self._lock:
                self.task = None


#: Used by the executor at the start and end of each run.
Interruptible = Interrupts | SharedInterrupts


def _raise_in(thread: int, kind: type[BaseException]) -> None:
    ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread), ctypes.py_object(kind))


def _class_with_text(error: JobError) -> type[BaseException]:
    """Return an exception class that always has this text, because only a class can be raised in another thread."""
    kind = type(error)

    def init(self: JobError) -> None:
        kind.__init__(self, *error.args)

    return type(
        kind.__name__, (kind,), {"__init__": init, "__module__": kind.__module__, "__qualname__": kind.__qualname__}
    )
