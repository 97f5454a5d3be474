"""Detects process state that a job has changed.

A job may succeed and still break the next one, for example by lowering a limit, changing the working directory or a
signal handler, or closing a descriptor. The worker replaces such a process. Only state that can be read in about a
microsecond is checked; docs/guides/pools.md lists the rest.
"""

# signal.getsignal() converts each answer to an enum, which takes 25 times as long.
import _signal  # type: ignore[import-not-found]
import logging
import os
import resource
import signal
from typing import Any

from palermo.worker.process import flush
from palermo.worker.signals import CANCEL, SURVIVED, TERMINATE

log = logging.getLogger("palermo.worker")

#: Limits that a job may lower. Without root privileges a process can't raise them again.
_LIMITS = ("NOFILE", "AS", "CPU")
_NUMBERS = tuple(getattr(resource, f"RLIMIT_{name}") for name in _LIMITS)

#: Signals whose handlers a job must not change; otherwise they kill the next job or can't end it.
_RESERVED = tuple(int(number) for number in (*SURVIVED, signal.SIGCHLD, signal.SIGPIPE, TERMINATE, CANCEL))
_SIGNAL_NAMES = {int(one): one.name for one in signal.Signals}

#: Names of the checked values, in order.
_NAMES = (
    "connection to the worker",
    "umask",
    "working directory",
    *(f"limit {name}" for name in _LIMITS),
    *(f"handler of {_SIGNAL_NAMES.get(number, f'signal {number}')}" for number in _RESERVED),
    "standard output",
    "standard error",
    "signal mask",
    "alarm",
)

_getrlimit, _setitimer, _REAL = resource.getrlimit, signal.setitimer, signal.ITIMER_REAL


class PipeLost(Exception):
    """A job has closed or replaced the pipe to the parent, so nothing must be written to it."""


class ProcessState:
    """The process state at the time of creation."""

    def __init__(self, pipe: int, *, shared: bool = False) -> None:
        """`pipe` is the descriptor of the pipe to the parent. In a `shared` process, jobs run in several threads."""
        self._pipe = pipe
        self._shared = shared
        self._umask = os.umask(0o077)
        os.umask(self._umask)
        self._read()  # stops an alarm inherited from the parent
        self._before = self._read()
        self._pid = os.getpid()

    def end_if_forked(self, slot: int) -> None:
        """Exit if this process was forked by the job, whose parent process continues the job."""
        if os.getpid() != self._pid:
            log.error("process forked by a job returned from the job, ending it: call os._exit in it slot=%d", slot)
            flush()
            os._exit(1)

    def changes(self) -> str:
        """Describe the changes since then, or return "". Raises PipeLost."""
        now = self._read()
        if now == self._before:
            return ""
        if now[0] != self._before[0]:
            raise PipeLost(f"a job closed or replaced file descriptor {self._pipe}, its connection to the worker")
        # Without the last two names in a shared process.
        found = zip(_NAMES, now, self._before, strict=False)
        return "; ".join(
            f"{name} is {_text(name, new)}, was {_text(name, old)}" for name, new, old in found if new != old
        )

    def _read(self) -> tuple[Any, ...]:
        return (
            _file(self._pipe),
            # The umask can only be read by setting it, so set it to its previous value.
            os.umask(self._umask),
            _working_directory(),
            *map(_getrlimit, _NUMBERS),
            *map(_signal.getsignal, _RESERVED),
            _file(1),
            _file(2),
            # A pending alarm would end the next job. Reading it also stops it.
            *(() if self._shared else (signal.pthread_sigmask(signal.SIG_BLOCK, ()), _setitimer(_REAL, 0)[0] > 0)),
        )


def _text(name: str, value: object) -> str:
    return f"{value:#05o}" if name == "umask" else str(value)


def _file(descriptor: int) -> tuple[int, int] | str:
    """Return the device and inode of an open descriptor."""
    try:
        found = os.fstat(descriptor)
    except OSError:
        return "closed"
    return found.st_dev, found.st_ino


def _working_directory() -> str:
    try:
        return os.getcwd()
    except OSError:
        return "gone"
