"""The fast path for enqueuing: the calling thread stores a plain job itself, on a connection of its own.

Switching to the session's thread and back would cost a third of the transaction. The whole transaction is one
statement. No Python code runs inside it, so a signal handler that also enqueues finds no half-finished state. Jobs that
aren't plain, and errors, are left to the ordinary path.
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

#: Seconds that a thread retries while other processes write, before it leaves the job to the session.
_BUSY_TIMEOUT = 0.05

#: Our own generator, so that Palermo doesn't disturb a program that seeds the global one.
_random = random.Random()


class DirectInsert:
    """The fast path into the file, for one session. The session's own thread uses grouped_inserts.py instead."""

    def __init__(self, store: Store, exchange: str) -> None:
        self._store = store
        self._exchange = exchange
        self._notifier = Notifier(side_directory(store.path), store.data_version)
        self._pid = os.getpid()
        self._own_thread = threading.get_ident()
        #: Held for one statement at a time. Reentrant, because a signal handler may acquire it in the thread that holds
        #: it.
        self._lock = threading.RLock()
        self._connection: sqlite3.Connection | None = None
        self._closed = False

    def insert(self, message: Message) -> bool:
        """Store the message. Returns whether it was stored.

        It is not stored if the message isn't plain, if its queue doesn't exist, if the file is busy, or if the caller
        is the session's own thread. Raises EncodeError for a header that can't be stored.
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
            # SQLite's own busy handler is unfair: see store.py.
            time.sleep(_random.uniform(0.0002, 0.001))

    def close(self) -> None:
        """Wait for threads that are storing a job, and let no others start. Idempotent."""
        if os.getpid() != self._pid:
            return  # the parent's connection, perhaps in use at the fork
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
