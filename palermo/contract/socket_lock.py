"""The lock with which several threads write to one connection's socket, for brokers with a server."""

import os
import socket
import threading
from collections.abc import Callable
from typing import Any

#: Seconds that the connection's own thread waits for the socket lock. Others hold it for microseconds.
_PATIENCE = 1.0


class SocketLock:
    """The lock on a connection's socket: its own thread writes, or another thread with a single message to send.

    Otherwise a thread that enqueues would have to wake the connection's thread and wait until that has written. So
    it writes itself, if nothing else waits to be written. Only the connection's own thread reads.

    The thread that holds the lock numbers a message and sends it; nothing may come between the two. A thread that
    was interrupted in between (Ctrl-C raises anywhere, and a signal handler may enqueue) never releases the lock.
    Then it is unknown what was sent, and the connection is given up after a timeout. The next connection publishes
    pending messages again.
    """

    __slots__ = ("_lock", "_lost", "_socket", "give_back")

    def __init__(self) -> None:
        self._lock = threading.Lock()
        #: Releases the lock, after `take` or `borrow`.
        self.give_back: Callable[[], None] = self._lock.release
        self._lost = False
        #: The connection's socket, by a descriptor of our own: the transport's descriptor might belong to another file
        #: by the time that we write.
        self._socket: socket.socket | None = None

    def fill(self, transport: Any) -> None:
        """Let other threads write to the socket of this transport, if it takes plain bytes."""
        found = transport.get_extra_info("socket")
        if os.name != "posix" or found is None or transport.get_extra_info("sslcontext") is not None:
            return
        made = socket.socket(fileno=os.dup(found.fileno()))
        made.setblocking(False)
        self._socket = made

    def take(self) -> bool:
        """Take the lock, for the connection's own thread. If this returns False, the connection is lost."""
        if self._lost:
            return False
        if not self._lock.acquire(timeout=_PATIENCE):
            self._lost = True
            return False
        return True

    def borrow(self) -> bool:
        """Take the lock, for another thread. If this returns True, it may `write`, if nothing else waits to be
        written."""
        return self._socket is not None and self._lock.acquire(blocking=False)

    def write(self, data: bytes) -> int:
        """Write to the socket. Returns how many bytes it accepted; 0 on an error, which the connection's thread
        detects."""
        try:
            return 0 if self._socket is None else self._socket.send(data)
        except OSError:
            return 0

    def drop(self) -> None:
        """Let no other thread write from now on."""
        taken = self.take()
        if self._socket is not None:
            self._socket.close()
            self._socket = None
        if taken:
            self.give_back()
