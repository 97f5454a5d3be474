"""The notifier of one file: wakes the processes that wait for a job.

A session that has stored a job writes a byte to a small file beside the database, and the kernel notifies the processes
that watch that file (inotify). They can't watch the database itself, because its event arrives before the commit is
visible, and the job would wait for the next event (measured). Without inotify the database is polled every 20 ms.
"""

import asyncio
import contextlib
import ctypes
import os
import sys
from collections.abc import Callable

_POLL_EVERY = 0.02

_IN_MODIFY = 0x2


class Notifier:
    """One session's notifier for a file: notifies other sessions, and calls its own listeners."""

    def __init__(self, directory: str, data_version: Callable[[], int], name: str = "bell") -> None:
        """`name` is the name of the watched file, which must be the same in all processes."""
        self._path = os.path.join(directory, name)
        self._data_version = data_version
        self._write_fd: int | None = None
        self._listeners: set[Callable[[], None]] = set()
        self._watch_fd: int | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._version = 0

    def notify(self) -> None:
        """Wake all listeners in every process. Call it after the commit."""
        if self._write_fd is None:
            # A lost notification is harmless: the listeners notice the job a little later.
            with contextlib.suppress(OSError):
                self._write_fd = os.open(self._path, os.O_CREAT | os.O_WRONLY | os.O_CLOEXEC, 0o660)
        if self._write_fd is not None:
            with contextlib.suppress(OSError):
                os.pwrite(self._write_fd, b"!", 0)
        if self._timer is not None:
            # Our own listeners poll, which doesn't detect changes by the same connection.
            self._call_listeners()

    def listen(self, listener: Callable[[], None]) -> None:
        """Call the listener at every notification, and occasionally without one."""
        self._listeners.add(listener)
        if len(self._listeners) == 1:
            self._start()

    def unlisten(self, listener: Callable[[], None]) -> None:
        self._listeners.discard(listener)
        if not self._listeners:
            self._stop()

    def close(self) -> None:
        """Close the watched files. Idempotent."""
        self._listeners.clear()
        self._stop()
        if self._watch_fd is not None:
            os.close(self._watch_fd)
        if self._write_fd is not None:
            os.close(self._write_fd)
        self._watch_fd = self._write_fd = None

    def _start(self) -> None:
        if self._watch_fd is None:
            with contextlib.suppress(OSError):
                os.close(os.open(self._path, os.O_CREAT | os.O_WRONLY, 0o660))
            self._watch_fd = _watch(self._path)
        loop = asyncio.get_running_loop()
        if self._watch_fd is not None:
            loop.add_reader(self._watch_fd, self._on_written)
        else:
            self._version = self._data_version()
            self._timer = loop.call_later(_POLL_EVERY, self._poll)

    def _stop(self) -> None:
        # No call waits, and a busy worker needs no notification for each job.
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        elif self._watch_fd is not None:
            asyncio.get_running_loop().remove_reader(self._watch_fd)

    def _on_written(self) -> None:
        if self._watch_fd is not None:
            with contextlib.suppress(BlockingIOError):
                os.read(self._watch_fd, 4096)
        self._call_listeners()

    def _poll(self) -> None:
        version = self._data_version()
        self._timer = asyncio.get_running_loop().call_later(_POLL_EVERY, self._poll)
        if version != self._version:
            self._version = version
            self._call_listeners()

    def _call_listeners(self) -> None:
        for listener in tuple(self._listeners):
            listener()


def _watch(path: str) -> int | None:
    """A file descriptor that becomes readable when the file is written to; None if the system has none."""
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
