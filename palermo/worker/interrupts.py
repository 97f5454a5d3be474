"""What may break into a job that runs: its own time limit, the end of its worker's patience, and a person.

All raise in the job's main thread, between two of its bytecodes or out of a system call
that waits. A job in C code, or one that catches what is raised, goes on: then the parent
kills its process (runner.py).
"""

import signal
from collections.abc import Coroutine
from types import FrameType
from typing import Any, Protocol

from palermo.errors import JobCancelled, JobTerminated, JobTimeout
from palermo.worker.signals import CANCEL, TERMINATE


class Interruptible(Protocol):
    """What the executor tells of each run, and asks after it."""

    #: Whether the job was told to end because its worker must.
    terminated: bool
    #: Whether someone cancelled it.
    cancelled: bool

    def enter(self, timeout: float | None) -> None:
        """The job begins; it may run for so many seconds."""

    def leave(self) -> None:
        """The job has ended."""

    async def within(self, coroutine: Coroutine[Any, Any, Any]) -> Any:
        """Await a job's coroutine."""


class Interrupts:
    """Raises in a job, and only while one runs. A job without a timeout costs no system call."""

    def __init__(self) -> None:
        self._inside = False
        self._timeout: float | None = None
        #: What SIGALRM did before the job began: it may be the user's.
        self._before: Any = signal.SIG_DFL
        #: Whether the job was told to end because its worker must.
        self.terminated = False
        #: Whether someone cancelled it.
        self.cancelled = False

    def install(self) -> None:
        """Listen to the parent, which asks for JobTerminated or JobCancelled by signal."""
        signal.signal(TERMINATE, self._terminate)
        signal.signal(CANCEL, self._cancel)

    def enter(self, timeout: float | None) -> None:
        """The job begins; raise JobTimeout in it after so many seconds."""
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
        """Await a job's coroutine; what a signal raises ends the loop, which cancels it."""
        return await coroutine

    def _ring(self, number: int, frame: FrameType | None) -> None:
        if self._inside:
            # Once: what the job does about it is not to be interrupted again.
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
