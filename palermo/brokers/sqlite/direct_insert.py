"""The fast path of enqueuing: the calling thread stores a plain job itself, on a connection for that alone.

A hop to the session's own thread and back costs as much as a third of the whole transaction. Here one statement
is the whole transaction: no Python runs between its beginning and its end, so a signal handler that
enqueues too finds nothing half done. A job that is not plain, or meets an obstacle, goes the ordinary way, which
also reports what is wrong.
"""

import os
import random
import sqlite3
import threading
import time

from palermo.brokers.sqlite.file.notifier import Notifier
from palermo.brokers.sqlite.file.opening import configure, side_directory
from palermo.brokers.sqlite.file.store import Store, is_busy
from palermo.brokers.sqlite.tables.jobs import COLUMNS, to_row
from palermo.core.message import Message

_INSERT = (
    f"insert into job (queue, priority, {COLUMNS}) select id, ?, ?, ?, ?, ?, ?, ?"
    " from queue where exchange = ? and name = ? and not hidden"
)

#: Seconds that a thread tries while other processes write, before it leaves a job to the session.
_BUSY_TIMEOUT = 0.05

#: Our own generator: a program that seeds the global one wants the same numbers again.
_random = random.Random()


class DirectInsert:
    """The fast path into the file, for one session. The session's own thread has another: see grouped_inserts.py."""

    def __init__(self, store: Store, exchange: str) -> None:
        self._store = store
        self._exchange = exchange
        self._notifier = Notifier(side_directory(store.path), store.data_version)
        self._pid = os.getpid()
        self._own_thread = threading.get_ident()
        #: Held for one statement at a time. Reentrant: a signal handler may take it while its thread holds it.
        self._lock = threading.RLock()
        self._connection: sqlite3.Connection | None = None
        self._closed = False

    def insert(self, message: Message) -> bool:
        """Store the message; returns whether that was done.

        It is not done if the message is not plain, its queue does not exist, the file is busy, or by the session's own
        thread.
        Raises EncodeError for a header that cannot be kept.
        """
        is_plain = message.run_at is None and not message.tenant
        may = os.getpid() == self._pid and threading.get_ident() != self._own_thread
        if not is_plain or not may or not self._store.renewed:
            return False
        row = to_row(message)
        values = (row[8], *row[:6], self._exchange, message.queue)
        deadline = time.monotonic() + _BUSY_TIMEOUT
        while True:
            try:
                with self._lock:
                    if self._closed:
                        return False
                    if self._connection is None:
                        self._connection = self._connect()
                    if not self._connection.execute(_INSERT, values).rowcount:
                        return False
                    if not self._store.is_in_place():
                        return False
                    self._notifier.notify()
                    return True
            except sqlite3.Error as error:
                if not is_busy(error) or time.monotonic() >= deadline:
                    return False
            except (UnicodeEncodeError, OverflowError):
                return False
            # We wait ourselves, because SQLite's own waiting is not fair: see store.py.
            time.sleep(_random.uniform(0.0002, 0.001))

    def close(self) -> None:
        """Wait for threads that are storing a job, and let no other begin. May be called again."""
        if os.getpid() != self._pid:
            return  # The connection is the parent's, which may have been using it at the fork.
        with self._lock:
            self._closed = True
            if self._connection is not None:
                self._connection.close()
                self._connection = None
            self._notifier.close()

    def _connect(self) -> sqlite3.Connection:
        connection = sqlite3.connect(self._store.path, timeout=0, isolation_level=None, check_same_thread=False)
        try:
            configure(connection, lasting=self._store.lasting)
        except BaseException:
            connection.close()
            raise
        return connection
