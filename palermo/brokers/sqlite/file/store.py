"""The file and its transactions.

A transaction is a plain function that runs from begin to commit without an await, so
no other task of this process can come between. While another process writes, we wait
here, on the loop. SQLite's own busy handler blocks the thread, and under load
it starves some processes for seconds (measured: 1.7 s); short random waits share evenly.
"""

import asyncio
import math
import os
import random
import sqlite3
import time
from collections.abc import Callable
from typing import TypeVar

from palermo.brokers.sqlite.file.errors import is_busy, translated
from palermo.errors import BrokerUnavailable, StoreInvalid

T = TypeVar("T")
Work = Callable[[sqlite3.Connection], T]

_READ, _WRITE = "begin", "begin immediate"

#: Seconds after which a store may be taken over from a machine that has not renewed its claim.
ABANDONED_AFTER = 30.0
#: Seconds after which a session that writes renews its machine's claim on the file.
RENEW_EVERY = 5.0

#: Our own generator: a program that seeds the global one wants the same numbers again.
_random = random.Random()


class Busy(Exception):
    """Raised while another process writes."""


class Store:
    """One connection with the file, for one loop of one process."""

    def __init__(
        self,
        connection: sqlite3.Connection,
        path: str,
        *,
        display_path: str,
        machine: str,
        timeout: float,
        closed: Callable[[], None] | None = None,
    ) -> None:
        """`closed` is called when the store is closed, for a file that ends with its last user."""
        self.path = path
        #: Whether committed data outlives a power cut.
        self.lasting = closed is None
        self._closed = closed
        #: The path as people see it.
        self.display_path = display_path
        self._connection = connection
        self._machine = machine
        self._timeout = timeout
        self._pid = os.getpid()
        self._inode: int | None = None
        self._renewed = -math.inf

    async def initialize(self, work: Work[T]) -> T:
        """Do as `write` does, for the very first transaction, when there may be no tables yet."""
        return await self._transact(_WRITE, work, publishing=False)

    async def read(self, work: Work[T]) -> T:
        """The result of `work`; all that it reads is of one instant."""
        return await self._transact(_READ, work, publishing=False)

    async def write(self, work: Work[T], *, publishing: bool = False) -> T:
        """The result of `work`, once all its changes are on the disk; if it raises, nothing was changed."""
        if self.renewed:
            return await self._transact(_WRITE, work, publishing=publishing)
        return await self._transact(_WRITE, self._renewing(work), publishing=publishing)

    def try_write(self, work: Work[T]) -> T:
        """Try `write` once, at once. Raises Busy if it would have to wait for another process."""
        try:
            return self._once(_WRITE, work if self.renewed else self._renewing(work))
        except sqlite3.Error as error:
            if is_busy(error):
                raise Busy from None
            raise translated(error, self.display_path) from error

    async def renew(self) -> None:
        """Renew this machine's claim on the file, unless it was renewed a moment ago."""
        if not self.renewed:
            await self.write(lambda db: None)

    @property
    def renewed(self) -> bool:
        """Whether the claim is so fresh that the next transaction need not renew it."""
        return time.monotonic() - self._renewed < RENEW_EVERY

    def data_version(self) -> int:
        """A number that changes when another connection has changed the file."""
        try:
            return int(self._connection.execute("pragma data_version").fetchone()[0])
        except sqlite3.Error:
            return -1  # The next transaction raises what is wrong.

    def close(self) -> None:
        """Close the connection, unless it is a parent process's."""
        if os.getpid() == self._pid:
            self._connection.close()
            if self._closed is not None:
                self._closed()

    async def _transact(self, begin: str, work: Work[T], *, publishing: bool) -> T:
        deadline = 0.0
        while True:
            try:
                return self._once(begin, work)
            except sqlite3.Error as error:
                now = time.monotonic()
                deadline = deadline or now + self._timeout
                if not is_busy(error) or now > deadline:
                    raise translated(error, self.display_path, publishing=publishing) from error
            except (UnicodeEncodeError, OverflowError) as error:
                raise translated(error, self.display_path) from error
            await asyncio.sleep(_random.uniform(0.0002, 0.001))

    def _once(self, begin: str, work: Work[T]) -> T:
        if os.getpid() != self._pid:
            # SQLite's locks do not survive a fork; using them in both processes damages the file.
            raise BrokerUnavailable(
                f"the session with {self.display_path} belongs to the parent process. Open another."
            )
        db = self._connection
        db.execute(begin)
        try:
            result = work(db)
            db.execute("commit")
            return result
        except BaseException:
            if db.in_transaction:
                db.execute("rollback")
            raise

    def _renewing(self, work: Work[T]) -> Work[T]:
        def renew_and_work(db: sqlite3.Connection) -> T:
            self._renew(db)
            return work(db)

        return renew_and_work

    def _renew(self, db: sqlite3.Connection) -> None:
        """Renew this machine's claim, to keep other machines out. Raises StoreInvalid if another uses the file.

        WAL needs shared memory, so a file in use on two machines would be damaged.
        """
        self._check_file()
        now = time.time()
        ((machine, seen),) = db.execute(
            "select (select value from meta where key = 'machine'), (select value from meta where key = 'seen')"
        ).fetchall()
        if machine not in (self._machine, "") and now - seen < ABANDONED_AFTER:
            raise StoreInvalid(
                f"{self.display_path} is in use on another machine (seen {max(0.0, now - seen):.0f} s ago)."
                " SQLite serves one machine; use RabbitMQ for several."
                " If that machine is gone, or this one was just restarted, try again in half a minute."
            )
        db.execute("update meta set value = ? where key = 'machine'", (self._machine,))
        db.execute("update meta set value = ? where key = 'seen'", (now,))
        self._renewed = time.monotonic()

    def _check_file(self) -> None:
        """Raise BrokerUnavailable if the file was removed or replaced: no process would read what we write to it."""
        try:
            inode = os.stat(self.path).st_ino
        except OSError:
            inode = -1
        if self._inode is None:
            self._inode = inode
        elif inode != self._inode:
            raise BrokerUnavailable(f"{self.display_path} was removed or replaced while in use. Open it again.")
