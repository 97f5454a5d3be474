"""The fast path for enqueuing: the calling thread sends a job and reads the answer on a dedicated connection.

On the ordinary path, a caller waits for two thread switches: to the session's thread and back.
docs/guides/performance.md has the cost. One connection serves all threads; while a thread uses it, the others take the
ordinary path, where commands overlap. After an error here the ordinary path sends the command again and reports the
cause; Redis recognizes the repeated command by its token (Attempts in broker.py).
"""

import contextlib
import threading
import time
from collections import deque
from collections.abc import Callable
from typing import Any

from redis.connection import AbstractConnection
from redis.exceptions import RedisError

#: Seconds to wait before opening a connection again after a failure.
_PAUSE = 1.0


class DirectCalls:
    """The fast path of one session. Thread-safe."""

    def __init__(self, open: Callable[[], AbstractConnection]) -> None:
        """`open` returns a new connection. It runs in its own thread, since a name lookup may hang."""
        self._open = open
        #: The connection while no thread uses it. A thread interrupted by Ctrl-C does not return it.
        self._idle: deque[AbstractConnection] = deque(maxlen=1)
        #: Held while a connection exists or is being opened.
        self._present = threading.Lock()
        self._opens_at = 0.0
        self._closed = False

    def call(self, *command: Any) -> bool | None:
        """Send a command. Returns whether Redis executed it, or None if it was not sent, which takes no time."""
        try:
            connection = self._idle.pop()
        except IndexError:
            self._begin_opening()
            return None
        done = False
        try:
            connection.send_command(*command, check_health=False)  # type: ignore[no-untyped-call]
            connection.read_response()
            done = True
        except (RedisError, OSError):
            return False
        finally:
            if done:
                self._return(connection)
            else:
                self._drop(connection)
        return True

    def close(self) -> None:
        """Close the connection, or let the thread that uses it close it. Idempotent."""
        self._closed = True
        with contextlib.suppress(IndexError):
            self._drop(self._idle.pop())

    def _begin_opening(self) -> None:
        if self._closed or time.monotonic() < self._opens_at or not self._present.acquire(blocking=False):
            return
        with contextlib.suppress(RuntimeError):  # no thread can be started, so the ordinary path is used
            threading.Thread(target=self._run, name="palermo-redis-opening", daemon=True).start()

    def _run(self) -> None:
        try:
            connection = self._open()
        except (RedisError, OSError):
            self._drop(None)
        else:
            self._return(connection)

    def _return(self, connection: AbstractConnection) -> None:
        self._idle.append(connection)
        if self._closed:  # perhaps since `close` checked
            self.close()

    def _drop(self, connection: AbstractConnection | None) -> None:
        if connection is not None:
            connection.disconnect()  # type: ignore[no-untyped-call]
        self._opens_at = time.monotonic() + _PAUSE
        self._present.release()
