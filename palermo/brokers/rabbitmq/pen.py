"""Who may write to a connection's socket now: its own thread, or one that has a single message to send.

A thread that enqueues would have to wake the connection's thread and wait until that has written. So it writes
itself, as long as nothing else waits to be written; reading stays with the connection's own thread.

Who holds the pen numbers a message and sends it, which must not be torn apart. A thread that was stopped in the
middle (Ctrl-C raises anywhere, and a signal handler may enqueue) never gives the pen back: nobody knows then what was
sent, and the connection is given up after some patience. What was on its way is published again by the next one.
"""

import os
import socket
import threading
from typing import Any

#: Seconds that the connection's own thread waits for the pen. Others hold it for microseconds.
_PATIENCE = 1.0


class Pen:
    """That of one connection."""

    __slots__ = ("_lock", "_lost", "_socket")

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._lost = False
        #: A descriptor of our own of the connection's socket: that of the transport might be another file's by the
        #: time that we write.
        self._socket: socket.socket | None = None

    def fill(self, transport: Any) -> None:
        """Let other threads write to the socket of this transport, if it is one to write plain bytes to."""
        found = transport.get_extra_info("socket")
        if os.name != "posix" or found is None or transport.get_extra_info("sslcontext") is not None:
            return
        made = socket.socket(fileno=os.dup(found.fileno()))
        made.setblocking(False)
        self._socket = made

    def take(self) -> bool:
        """For the connection's own thread: whether it may write. If not, the connection is lost."""
        if self._lost:
            return False
        if not self._lock.acquire(timeout=_PATIENCE):
            self._lost = True
            return False
        return True

    def borrow(self) -> bool:
        """For other threads: whether they may write now, by `write`, if nothing else waits to be written."""
        return self._socket is not None and self._lock.acquire(blocking=False)

    def give_back(self) -> None:
        """After `take` or `borrow`."""
        self._lock.release()

    def write(self, data: bytes) -> int:
        """How many of the bytes the socket took; what is wrong with it, its own thread finds out."""
        try:
            return 0 if self._socket is None else self._socket.send(data)
        except OSError:
            return 0

    def drop(self) -> None:
        """Nobody else writes from now on."""
        taken = self.take()
        if self._socket is not None:
            self._socket.close()
            self._socket = None
        if taken:
            self.give_back()
