"""Storing a plain job by the thread that enqueues it, on a connection for that alone.

A hop to the session's own thread and back costs as much as a third of the whole transaction. Here is one statement,
which is a transaction by itself: no Python runs between its beginning and its end, so that a signal handler which
enqueues too finds nothing half done. What is not plain, or stands in the way, goes the ordinary way, which also says
what is wrong.
"""

import os
import random
import sqlite3
import threading
import time

from palermo.brokers.sqlite.bell import Bell
from palermo.brokers.sqlite.faults import is_busy
from palermo.brokers.sqlite.messages import COLUMNS, to_row
from palermo.brokers.sqlite.opening import configure, side_directory
from palermo.brokers.sqlite.store import Store
from palermo.core.message import Message

_INSERT = (
    f"insert into job (queue, priority, {COLUMNS}) select id, ?, ?, ?, ?, ?, ?, ?"
    " from queue where exchange = ? and name = ? and not hidden"
)

#: Seconds that a thread tries while other processes write, before it leaves a job to the session.
PATIENCE = 0.05

#: Not the program's own: whoever seeds that wants the same numbers again.
_chance = random.Random()


class Direct:
    """The quick way into the file for one session; any thread may use it."""

    def __init__(self, store: Store, exchange: str) -> None:
        self._store = store
        self._exchange = exchange
        self._bell = Bell(side_directory(store.path), store.data_version)
        self._pid = os.getpid()
        #: Held for one statement each time; by a signal handler too, which may come while its thread has it.
        self._lock = threading.RLock()
        self._connection: sqlite3.Connection | None = None
        self._closed = False

    def insert(self, message: Message, *, patience: float = PATIENCE) -> bool:
        """Store the message; whether that was done. Not if it is not plain, its queue is not there or the file is busy.

        Raises EncodeError for a header that cannot be kept.
        """
        if message.run_at is not None or message.tenant or not self._store.renewed or os.getpid() != self._pid:
            return False
        row = to_row(message)
        values = (message.priority, *row[:6], self._exchange, message.queue)
        deadline = time.monotonic() + patience
        while True:
            try:
                with self._lock:
                    if self._closed:
                        return False
                    if self._connection is None:
                        self._connection = self._connect()
                    if not self._connection.execute(_INSERT, values).rowcount:
                        return False
                    self._bell.ring()
                    return True
            except sqlite3.Error as error:
                if not is_busy(error) or time.monotonic() >= deadline:
                    return False
            except (UnicodeEncodeError, OverflowError):
                return False
            # Not SQLite's own waiting, which is not fair: see store.py.
            time.sleep(_chance.uniform(0.0002, 0.001))

    def close(self) -> None:
        """Wait for the threads that are at it, and let none in any more. May be called again."""
        if os.getpid() != self._pid:
            return  # a parent's, which may have been using it when we were forked
        with self._lock:
            self._closed = True
            if self._connection is not None:
                self._connection.close()
                self._connection = None
            self._bell.close()

    def _connect(self) -> sqlite3.Connection:
        connection = sqlite3.connect(self._store.path, timeout=0, isolation_level=None, check_same_thread=False)
        configure(connection, lasting=self._store.lasting)
        return connection
