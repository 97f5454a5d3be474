"""Waking those who wait for a job.

Whoever has put a job into the file writes a byte to a file beside it, the bell, and the
kernel tells those who watch it (inotify). Watching the database itself does not do: its
event comes before the commit can be seen, and the job would wait for the next one
(measured). Where there is no inotify we ask the file every 20 ms whether it has changed.
"""

import asyncio
import contextlib
import ctypes
import os
import sys
from collections.abc import Callable

_POLL_EVERY = 0.02

_IN_MODIFY = 0x2


class Bell:
    """The bell of one file, for one session: it may ring and listen."""

    def __init__(self, directory: str, data_version: Callable[[], int], name: str = "bell") -> None:
        """`name` is that of the file, for what only some want to be woken for."""
        self._path = os.path.join(directory, name)
        self._data_version = data_version
        self._hammer: int | None = None
        self._listeners: set[Callable[[], None]] = set()
        self._ear: int | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._version = 0

    def ring(self) -> None:
        """Wake all who listen, in every process; to be called after the commit."""
        if self._hammer is None:
            # Without the bell the others notice a little later, so its loss is no error.
            with contextlib.suppress(OSError):
                self._hammer = os.open(self._path, os.O_CREAT | os.O_WRONLY | os.O_CLOEXEC, 0o666)
        if self._hammer is not None:
            with contextlib.suppress(OSError):
                os.pwrite(self._hammer, b"!", 0)
        if self._timer is not None:
            # The file does not look changed to the connection that changed it.
            self._tell()

    def listen(self, listener: Callable[[], None]) -> None:
        """Call the listener whenever the bell rings, and now and then without reason."""
        self._listeners.add(listener)
        if len(self._listeners) == 1:
            self._begin()

    def ignore(self, listener: Callable[[], None]) -> None:
        """Do so no longer."""
        self._listeners.discard(listener)
        if not self._listeners:
            self._end()

    def close(self) -> None:
        """May be called again."""
        self._listeners.clear()
        self._end()
        if self._ear is not None:
            os.close(self._ear)
        if self._hammer is not None:
            os.close(self._hammer)
        self._ear = self._hammer = None

    def _begin(self) -> None:
        if self._ear is None:
            with contextlib.suppress(OSError):
                os.close(os.open(self._path, os.O_CREAT | os.O_WRONLY, 0o666))
            self._ear = _watch(self._path)
        loop = asyncio.get_running_loop()
        if self._ear is not None:
            loop.add_reader(self._ear, self._hear)
        else:
            self._version = self._data_version()
            self._timer = loop.call_later(_POLL_EVERY, self._poll)

    def _end(self) -> None:
        # Nobody waits, and a busy worker need not hear of every job that others put in.
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        elif self._ear is not None:
            asyncio.get_running_loop().remove_reader(self._ear)

    def _hear(self) -> None:
        if self._ear is not None:
            with contextlib.suppress(BlockingIOError):
                os.read(self._ear, 4096)
        self._tell()

    def _poll(self) -> None:
        version = self._data_version()
        self._timer = asyncio.get_running_loop().call_later(_POLL_EVERY, self._poll)
        if version != self._version:
            self._version = version
            self._tell()

    def _tell(self) -> None:
        for listener in tuple(self._listeners):
            listener()


def _watch(path: str) -> int | None:
    """A file descriptor that becomes readable when the file is written to; None where the kernel gives none."""
    if not sys.platform.startswith("linux"):
        return None
    libc = ctypes.CDLL(None, use_errno=True)
    try:
        watch: int = libc.inotify_init1(os.O_CLOEXEC | os.O_NONBLOCK)
    except AttributeError:
        return None
    if watch < 0:
        return None
    if libc.inotify_add_watch(watch, os.fsencode(path), _IN_MODIFY) < 0:
        os.close(watch)
        return None
    return watch
