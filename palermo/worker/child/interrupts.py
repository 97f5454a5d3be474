"""Interrupts a running job: for its time limit, for the worker's shutdown, or because someone cancelled it.

Each raises an exception in the main thread, where the job runs: between two bytecodes, or out of a blocking system
call. A job in C code, or one that catches the exception, goes on: then the parent kills its process (process_pool.py).
"""

import signal
from collections.abc import Coroutine
from types import FrameType
from typing import Any, Protocol

from palermo.errors import JobCancelled, JobTerminated, JobTimeout
from palermo.worker.signals import CANCEL, TERMINATE


class Interruptible(Protocol):
    """What the executor calls at the start and the end of each run, and what it reads after the run."""

    #: Whether the job was told to end because the worker stops.
    terminated: bool
    #: Whether someone cancelled it.
    cancelled: bool

    def enter(self, timeout: float | None) -> None:
        """The job begins; it may run for `timeout` seconds, or without a limit if that is None."""

    def leave(self) -> None:
        """The job has ended."""

    async def within(self, coroutine: Coroutine[Any, Any, Any]) -> Any:
        """Await a job's coroutine."""


class Interrupts:
    """Raises exceptions in a job of this process, only while it runs. A job without a timeout costs no system call."""

    def __init__(self) -> None:
        self._inside = False
        self._timeout: float | None = None
        #: The handler of SIGALRM from before the job began: it may be the user's.
        self._before: Any = signal.SIG_DFL
        #: Whether the job was told to end because the worker stops.
        self.terminated = False
        #: Whether someone cancelled it.
        self.cancelled = False

    def install(self) -> None:
        """Install handlers for the signals by which the parent asks for JobTerminated or JobCancelled."""
        signal.signal(TERMINATE, self._terminate)
        signal.signal(CANCEL, self._cancel)

    def enter(self, timeout: float | None) -> None:
        """The job begins; raise JobTimeout in it after `timeout` seconds, if there is a timeout."""
        self.terminated = self.cancelled = False
        self._timeout = timeout
        if timeout is not None:
            self._before = signal.signal(signal.SIGALRM, self._ring)
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

    async def within(self, coroutine: Coroutine[Any, Any, Any]) -> Any:
        """Await a job's coroutine. An exception that a signal raises ends the loop, which cancels the coroutine."""
        return await coroutine

    def _ring(self, number: int, frame: FrameType | None) -> None:
        if self._inside:
            # Only once: the job's own cleanup must not be interrupted again.
            self._inside = False
            raise JobTimeout(f"the job ran longer than its timeout of {self._timeout:g} s")

    def _terminate(self, number: int, frame: FrameType | None) -> None:
        if self._inside:
            self._inside = False
            self.terminated = True
            raise JobTerminated(
                "the worker ends, and this job is given back to run again elsewhere; clean up and leave"
            )

    def _cancel(self, number: int, frame: FrameType | None) -> None:
        if self._inside:
            self._inside = False
            self.cancelled = True
            raise JobCancelled("the job was cancelled; clean up and leave")
