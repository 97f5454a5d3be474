"""Interrupts a running job: for its time limit, for the worker's shutdown, or because someone cancelled it.

In a slot of a process pool (`Interrupts`) each raises an exception in the main thread, where the job runs: between two
bytecodes, or out of a blocking system call. A job in C code, or one that catches the exception, goes on: then the
parent kills its process (forked_pool.py). `SharedInterrupts` is for a slot that shares its process.
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
    """What the job of a slot was told to do."""

    #: Whether it was told to end because the worker stops.
    terminated = False
    #: Whether someone cancelled it.
    cancelled = False
    #: Whether one of its loops was ended because the worker stops: it is not done, whatever it returns.
    unfinished = False

    def end_loop(self) -> JobTerminated:
        """The error that ends a loop of the job, which goes back as after JobTerminated. Called by the job."""
        self.terminated = self.unfinished = True
        return terminated()


class Interrupts(_Asked):
    """Raises exceptions in a job of this process, only while it runs. A job without a timeout costs no system call."""

    def __init__(self) -> None:
        self._inside = False
        self._timeout: float | None = None
        #: The handler of SIGALRM from before the job began: it may be the user's.
        self._before: Any = signal.SIG_DFL

    def install(self) -> None:
        """Install handlers for the signals by which the parent asks for JobTerminated or JobCancelled."""
        signal.signal(TERMINATE, self._interrupt)
        signal.signal(CANCEL, self._interrupt)

    def enter(self, timeout: float | None) -> None:
        """The job begins; raise JobTimeout in it after `timeout` seconds, if there is a timeout."""
        self.terminated = self.cancelled = self.unfinished = False
        self._timeout = timeout
        if timeout is not None:
            self._before = signal.signal(signal.SIGALRM, self._interrupt)
        self._inside = True
        if timeout is not None:
            signal.setitimer(signal.ITIMER_REAL, timeout)

    def leave(self) -> None:
        """The job has ended."""
        self._inside = False
        if self._timeout is not None:
            self._timeout = None
            signal.setitimer(signal.ITIMER_REAL, 0)
            signal.signal(signal.SIGALRM, self._before or signal.SIG_DFL)

    def end_loop(self) -> JobTerminated:
        """See above. No signal interrupts the job after that."""
        self._inside = False
        return super().end_loop()

    async def within(self, coroutine: Coroutine[Any, Any, Any]) -> Any:
        """Await a job's coroutine. An exception that a signal raises ends the loop, which cancels the coroutine."""
        return await coroutine

    def _interrupt(self, number: int, frame: FrameType | None) -> None:
        if not self._inside:
            return
        # Only once: the job's own cleanup must not be interrupted again.
        self._inside = False
        self.terminated, self.cancelled = number == TERMINATE, number == CANCEL
        if self.terminated:
            raise terminated()
        if self.cancelled:
            raise cancelled()
        assert self._timeout is not None
        raise timed_out(self._timeout)


class SharedInterrupts(_Asked):
    """Raises errors in the job of one slot of several in a process, only while it runs. The parent says in which.

    In a plain function Python raises the error in the job's thread, between two bytecodes: a call that waits
    (time.sleep, a socket) must return first, and so must C code. A coroutine is cancelled where it awaits, because the
    locks, groups and timeouts of asyncio clean up after CancelledError; the job then ends with the error that it was
    cancelled for.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        #: Whether a job was given to the slot and has not ended.
        self._begun = False
        #: The thread that runs the job; 0 before it runs.
        self._thread = 0
        #: Whether an error was raised in that thread, and may not have arrived yet.
        self._raised = False
        #: The error that came before the job ran; and the error that its coroutine was cancelled for.
        self._early_error: JobError | None = None
        self._cancel_error: JobError | None = None
        #: The task that awaits the job, if it is a coroutine.
        self.task: asyncio.Task[Any] | None = None

    def begin(self) -> None:
        """A job is given to the slot: from now on `interrupt` reaches it."""
        with self._lock:
            self._begun, self.terminated, self.cancelled, self.unfinished = True, False, False, False
            self._early_error = self._cancel_error = None

    def enter(self, timeout: float | None) -> None:
        """The job begins, in this thread. The parent enforces the timeout."""
        with self._lock:
            self._thread = threading.get_ident()
            pending, self._early_error = self._early_error, None
        if pending is not None:
            raise pending

    def leave(self) -> None:
        """The job has ended: forget an error that has not arrived in it yet."""
        while True:
            try:
                with self._lock:
                    self._begun = False
                    if self._raised:
                        _raise_in(self._thread, None)
                    self._thread, self._raised = 0, False
                return
            except JobError:
                continue

    def interrupt(self, error: JobError) -> None:
        """Raise this error in the job. Called by another thread, or by the loop that the job waits in."""
        with self._lock:
            if not self._begun:
                return
            self.terminated = self.terminated or isinstance(error, JobTerminated)
            self.cancelled = self.cancelled or isinstance(error, JobCancelled)
            if self.task is not None:
                self._cancel_error = error
                with suppress(RuntimeError):  # its loop was closed at this moment
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


#: What the executor calls at the start and the end of each run, and what it reads after the run.
Interruptible = Interrupts | SharedInterrupts


def _raise_in(thread: int, kind: type[BaseException] | None) -> None:
    ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread), None if kind is None else ctypes.py_object(kind))


def _class_with_text(error: JobError) -> type[BaseException]:
    """An exception class with the error's text that takes no arguments: Python can raise only a class in a thread."""
    kind = type(error)

    def init(self: JobError) -> None:
        kind.__init__(self, *error.args)

    return type(
        kind.__name__, (kind,), {"__init__": init, "__module__": kind.__module__, "__qualname__": kind.__qualname__}
    )
