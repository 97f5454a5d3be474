"""The fast path of enqueuing: the calling thread sends a job and reads the answer, on a connection for that alone.

Only the session's thread reads from the session's connection, so a caller there waits until that thread has been woken
and has woken it in turn. What that costs is in docs/guides/performance.md.

One connection serves all threads. While a thread uses it the others go the ordinary way, where commands overlap. What
goes wrong here goes the ordinary way too, which tells what it was: the command is sent again there, and Redis knows it
by its token (Attempts in broker.py).
"""

import contextlib
import threading
import time
from collections import deque
from collections.abc import Callable
from typing import Any

from redis.connection import AbstractConnection
from redis.exceptions import RedisError

#: Seconds until a connection is opened after one that failed.
_PAUSE = 1.0


class DirectCalls:
    """The fast path of one session; any thread may use it."""

    def __init__(self, open: Callable[[], AbstractConnection]) -> None:
        """`open` returns a new connection; it is called in a thread of its own, since a name lookup may hang."""
        self._open = open
        #: The connection while no thread uses it. A thread that Ctrl-C stops with it does not give it back.
        self._idle: deque[AbstractConnection] = deque(maxlen=1)
        #: Held while there is a connection, or one is being opened.
        self._present = threading.Lock()
        self._opens_at = 0.0
        self._closed = False

    def call(self, *command: Any) -> bool | None:
        """Send a command, and return whether Redis has run it; None if it was not sent, so that no time was spent."""
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
                self._give_back(connection)
            else:
                self._drop(connection)
        return True

    def close(self) -> None:
        """Close the connection, or have the thread that uses it close it. May be called again."""
        self._closed = True
        with contextlib.suppress(IndexError):
            self._drop(self._idle.pop())

    def _begin_opening(self) -> None:
        if self._closed or time.monotonic() < self._opens_at or not self._present.acquire(blocking=False):
            return
        with contextlib.suppress(RuntimeError):  # no more threads: the ordinary way remains
            threading.Thread(target=self._run, name="palermo-redis-opening", daemon=True).start()

    def _run(self) -> None:
        try:
            connection = self._open()
        except (RedisError, OSError):
            self._drop(None)
        else:
            self._give_back(connection)

    def _give_back(self, connection: AbstractConnection) -> None:
        self._idle.append(connection)
        if self._closed:  # perhaps just after `close` looked
            self.close()

    def _drop(self, connection: AbstractConnection | None) -> None:
        if connection is not None:
            connection.disconnect()  # type: ignore[no-untyped-call]
        self._opens_at = time.monotonic() + _PAUSE
        self._present.release()
