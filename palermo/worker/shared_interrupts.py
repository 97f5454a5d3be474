"""What breaks into one job of several in a process: told by the parent, raised in the job alone.

In a plain function it is raised as Python raises in threads, between two bytecodes: a call
that waits (time.sleep, a socket) must return first, and C code too. A coroutine is cancelled
where it awaits, because CancelledError is what the locks, groups and timeouts of asyncio
clean up after; what comes out of the job is then the error it was cancelled for.
"""

import asyncio
import ctypes
import threading
from collections.abc import Coroutine
from contextlib import suppress
from typing import Any

from palermo.errors import JobCancelled, JobError, JobTerminated


class SharedInterrupts:
    """Raises in the job of one slot, and only while it runs."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        #: Whether a job was given to the slot and has not ended.
        self._begun = False
        #: The thread that runs it, once it does.
        self._thread = 0
        #: Whether something was raised in that thread, and may still be on its way.
        self._raised = False
        #: What it was told before it ran; or what its coroutine was cancelled for.
        self._pending: JobError | None = None
        self._verdict: JobError | None = None
        #: The task that awaits the job, if it is a coroutine.
        self.task: asyncio.Task[Any] | None = None
        #: The task in which the slot runs coroutines, if that is known before.
        self.awaiter: asyncio.Task[Any] | None = None
        #: Whether the job was told to end because its worker must.
        self.terminated = False
        #: Whether someone cancelled it.
        self.cancelled = False

    def begin(self) -> None:
        """A job is given to the slot; from now on it can be told things."""
        with self._lock:
            self._begun, self.terminated, self.cancelled = True, False, False
            self._pending = self._verdict = None
            self.awaiter = None

    def enter(self, timeout: float | None) -> None:
        """The job begins, in this thread. The parent watches the clock."""
        with self._lock:
            self._thread = threading.get_ident()
            pending, self._pending = self._pending, None
        if pending is not None:
            raise pending

    def leave(self) -> None:
        """The job has ended; what was meant for it and has not been raised yet is forgotten."""
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

    def tell(self, error: JobError) -> None:
        """Raise this in the job; called by another thread, or by the loop that the job waits in."""
        with self._lock:
            if not self._begun:
                return
            self.terminated = self.terminated or isinstance(error, JobTerminated)
            self.cancelled = self.cancelled or isinstance(error, JobCancelled)
            if self.task is not None:
                self._verdict = error
                with suppress(RuntimeError):  # its loop was closed this instant
                    self.task.get_loop().call_soon_threadsafe(self.task.cancel)
            elif self._thread:
                self._raised = True
                _raise_in(self._thread, _saying(error))
            else:
                self._pending = error

    async def within(self, coroutine: Coroutine[Any, Any, Any]) -> Any:
        """Await a job's coroutine."""
        with self._lock:
            self.task = self.awaiter or asyncio.current_task()
        try:
            return await coroutine
        except asyncio.CancelledError as cancelled:
            verdict, self._verdict = self._verdict, None
            if verdict is None:
                raise
            raise verdict from cancelled
        finally:
            with self._lock:
                self.task = None


def _raise_in(thread: int, kind: type[BaseException] | None) -> None:
    ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread), None if kind is None else ctypes.py_object(kind))


def _saying(error: JobError) -> type[BaseException]:
    """A class that says what the error says when it is made without arguments: a thread can only be sent a class."""
    kind = type(error)

    def init(self: JobError) -> None:
        kind.__init__(self, *error.args)

    return type(
        kind.__name__, (kind,), {"__init__": init, "__module__": kind.__module__, "__qualname__": kind.__qualname__}
    )
