"""The lock with which several threads write to one connection's socket."""

import os
import socket
import threading
from collections.abc import Callable
from typing import Any

#: Seconds that the connection's own thread waits for the lock, which others hold for microseconds.
_PATIENCE = 1.0


class SocketLock:
    """The lock on a connection's socket: its own thread writes, or another thread with a single message to send.

    Writing directly saves an enqueuing thread from waking the connection's thread and waiting for it. It is possible
    only if nothing else waits to be written. Only the connection's own thread reads.

    The thread that holds the lock numbers a message and sends it, with nothing in between. A thread that is interrupted
    there (Ctrl-C raises anywhere, and a signal handler may enqueue) never releases the lock. Since it is unknown what
    was sent, the connection ends after a timeout, and the next one publishes pending messages again.
    """

    __slots__ = ("_lock", "_lost", "_socket", "release")

    def __init__(self) -> None:
        self._lock = threading.Lock()
        #: Releases the lock, after `take` or `borrow`.
        self.release: Callable[[], None] = self._lock.release
        self._lost = False
        #: The connection's socket by its own descriptor, since the transport's may have been closed and reused by now.
        self._socket: socket.socket | None = None

    def fill(self, transport: Any) -> None:
        """Let other threads write to this transport's socket, unless it uses TLS."""
        found = transport.get_extra_info("socket")
        if os.name != "posix" or found is None or transport.get_extra_info("sslcontext") is not None:
            return
        made = socket.socket(fileno=os.dup(found.fileno()))
        made.setblocking(False)
        self._socket = made

    def take(self) -> bool:
        """Take the lock, for the connection's own thread. False if the connection is unusable."""
        if self._lost:
            return False
        if not self._lock.acquire(timeout=_PATIENCE):
            self._lost = True
            return False
        return True

    def borrow(self) -> bool:
        """Take the lock, for another thread, which may then `write`. False if that isn't possible now."""
        return self._socket is not None and self._lock.acquire(blocking=False)

    def write(self, data: bytes) -> int:
        """Write to the socket; returns the number of bytes written, 0 on an error.

        The connection's thread sees the error too.
        """
        try:
            return 0 if self._socket is None else self._socket.send(data)
        except OSError:
            return 0

    def drop(self) -> None:
        """Stop other threads from writing."""
        taken = self.take()
        if self._socket is not None:
            self._socket.close()
            self._socket = None
        if taken:
            self.release()
