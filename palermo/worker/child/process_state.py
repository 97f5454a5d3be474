"""Notices the changes that a job has left in its process.

A job may end well and yet spoil its process for the next one: by a lowered limit, another working directory, a signal
handler, a closed descriptor. The worker replaces such a process. Only state that can be read in about a microsecond
is checked; docs/guides/pools.md lists what is not.
"""

# signal.getsignal() makes an enum of each answer, which takes 25 times as long.
import _signal  # type: ignore[import-not-found]
import logging
import os
import resource
import signal
from collections.abc import Iterator
from typing import Any

from palermo.worker.process import flush
from palermo.worker.signals import CANCEL, SURVIVED, TERMINATE

log = logging.getLogger("palermo.worker")

#: The limits that a job may lower for itself. A process without root's rights can never raise them again.
_LIMITS = ("NOFILE", "AS", "CPU")
_NUMBERS = tuple(getattr(resource, f"RLIMIT_{name}") for name in _LIMITS)

#: The signals whose handlers a job must not change, or the next job dies of one or cannot be told to end.
_RESERVED = tuple(int(number) for number in (*SURVIVED, signal.SIGCHLD, signal.SIGPIPE, TERMINATE, CANCEL))

_STREAMS = {1: "standard output", 2: "standard error"}

_getrlimit, _setitimer, _REAL = resource.getrlimit, signal.setitimer, signal.ITIMER_REAL


class PipeLost(Exception):
    """A job has closed the pipe to the parent, or put another file in its place: the slot must not write to it."""


class ProcessState:
    """The checked state of this process, as it was when this object was made."""

    def __init__(self, pipe: int, *, shared: bool = False) -> None:
        """`pipe` is the descriptor of the pipe to the parent; in a `shared` process jobs run in several threads."""
        self._pipe = pipe
        self._shared = shared
        self._umask = os.umask(0o077)
        os.umask(self._umask)
        self._before = self._read()
        self._pid = os.getpid()

    def end_if_forked(self, slot: int) -> None:
        """End this process if a job in this slot forked it: it has left the job, and its parent runs the job too."""
        if os.getpid() != self._pid:
            log.error("a process that a job forked left the job, and is ended: have it call os._exit slot=%d", slot)
            flush()
            os._exit(1)

    def changes(self) -> str:
        """The changes since then, in words; "" for none. Raises PipeLost."""
        now = self._read()
        if now == self._before:
            return ""
        if now[0] != self._before[0]:
            raise PipeLost(f"a job closed or replaced descriptor {self._pipe}, which leads to the worker")
        return "; ".join(self._describe(now))

    def _read(self) -> tuple[Any, ...]:
        return (
            _file(self._pipe),
            # This resets the umask to what it was: no call only reads it.
            os.umask(self._umask),
            _working_directory(),
            [_getrlimit(number) for number in _NUMBERS],
            {number: _signal.getsignal(number) for number in _RESERVED},
            _file(1),
            _file(2),
            # The signal mask, and whether an alarm is set: it would end the next job, and reading it also stops it.
            *(() if self._shared else (signal.pthread_sigmask(signal.SIG_BLOCK, ()), _setitimer(_REAL, 0)[0] > 0)),
        )

    def _describe(self, now: tuple[Any, ...]) -> Iterator[str]:
        before = self._before
        if now[1] != before[1]:
            yield f"umask is {now[1]:#05o}, was {before[1]:#05o}"
        if now[2] != before[2]:
            yield f"working directory is {now[2] or 'gone'}, was {before[2] or 'gone'}"
        for name, limit, old in zip(_LIMITS, now[3], before[3], strict=True):
            if limit != old:
                yield f"limit {name} is {limit}, was {old}"
        for (number, new), (_, old) in zip(now[4].items(), before[4].items(), strict=True):
            if new != old:
                yield f"the handler of {_name(number)} is another"
        for number, new, old in ((1, now[5], before[5]), (2, now[6], before[6])):
            if new != old:
                yield f"{_STREAMS[number]} is {'closed' if new is None else 'another file'}"
        if not self._shared:
            for number in sorted(now[7] ^ before[7]):
                yield f"{_name(number)} is {'blocked' if number in now[7] else 'not blocked any more'}"
            if now[8]:
                yield "an alarm is set"


def _file(descriptor: int) -> tuple[int, int] | None:
    """The device and the inode of an open descriptor; None if it is closed."""
    try:
        found = os.fstat(descriptor)
    except OSError:
        return None
    return found.st_dev, found.st_ino


def _working_directory() -> str:
    """The path of the working directory; "" if it was deleted."""
    try:
        return os.getcwd()
    except OSError:
        return ""


def _name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
