"""The file and its transactions.

A transaction is a plain function that runs from begin to commit without an await, so
nothing of this process can come between. Other processes may be writing: then we wait
our turn here, on the loop. SQLite's own busy handler blocks the thread, and under load
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

from palermo.brokers.sqlite.faults import is_busy, translated
from palermo.errors import BrokerUnavailable, StoreInvalid

T = TypeVar("T")
Work = Callable[[sqlite3.Connection], T]

_READ, _WRITE = "begin", "begin immediate"

#: Another machine's store may be taken over when it has not been seen for this long.
ABANDONED_AFTER = 30.0
#: How often a session that writes renews its claim on the file.
RENEW_EVERY = 5.0

#: Not the program's own: whoever seeds that wants the same numbers again.
_chance = random.Random()


class Busy(Exception):
    """Another process writes now."""


class Store:
    """One connection with the file, for one loop of one process."""

    def __init__(
        self,
        connection: sqlite3.Connection,
        path: str,
        *,
        shown: str,
        machine: str,
        timeout: float,
        lasting: bool = True,
    ) -> None:
        self.path = path
        #: Whether what is committed outlives a power cut.
        self.lasting = lasting
        #: The path for people.
        self.shown = shown
        self._connection = connection
        self._machine = machine
        self._timeout = timeout
        self._pid = os.getpid()
        self._inode: int | None = None
        self._renewed = -math.inf

    async def found(self, work: Work[T]) -> T:
        """Like write, for the very first transaction, when there may be no tables yet."""
        return await self._transact(_WRITE, work, publishing=False)

    async def read(self, work: Work[T]) -> T:
        """What `work` finds; all it reads is of one instant."""
        return await self._transact(_READ, work, publishing=False)

    async def write(self, work: Work[T], *, publishing: bool = False) -> T:
        """What `work` returns, once all it did is on the disk; when it raises, nothing was done."""
        if self.renewed:
            return await self._transact(_WRITE, work, publishing=publishing)
        return await self._transact(_WRITE, self._renewing(work), publishing=publishing)

    def attempt(self, work: Work[T]) -> T:
        """`write`, tried once and at once. Raises Busy where it would have to wait for another process."""
        try:
            return self._once(_WRITE, work if self.renewed else self._renewing(work))
        except sqlite3.Error as error:
            if is_busy(error):
                raise Busy from None
            raise translated(error, self.shown) from error

    async def renew(self) -> None:
        """Say that this machine still uses the file, unless that was said a moment ago."""
        if not self.renewed:
            await self.write(lambda db: None)

    @property
    def renewed(self) -> bool:
        """Whether that was said so lately that the next transaction need not say it."""
        return time.monotonic() - self._renewed < RENEW_EVERY

    def data_version(self) -> int:
        """A number that is another one once a different connection has changed the file."""
        try:
            return int(self._connection.execute("pragma data_version").fetchone()[0])
        except sqlite3.Error:
            return -1  # the next transaction will say what is wrong

    def close(self) -> None:
        """Close the connection, unless it is a parent process's."""
        if os.getpid() == self._pid:
            self._connection.close()

    async def _transact(self, begin: str, work: Work[T], *, publishing: bool) -> T:
        deadline = 0.0
        while True:
            try:
                return self._once(begin, work)
            except sqlite3.Error as error:
                now = time.monotonic()
                deadline = deadline or now + self._timeout
                if not is_busy(error) or now > deadline:
                    raise translated(error, self.shown, publishing=publishing) from error
            except (UnicodeEncodeError, OverflowError) as error:
                raise translated(error, self.shown) from error
            await asyncio.sleep(_chance.uniform(0.0002, 0.001))

    def _once(self, begin: str, work: Work[T]) -> T:
        if os.getpid() != self._pid:
            # SQLite's locks do not survive a fork; using them in both processes damages the file.
            raise BrokerUnavailable(f"the session with {self.shown} belongs to the parent process. Open another.")
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
        """Keep other machines out.

        WAL needs shared memory, so a file in use on two machines would be damaged.
        """
        self._check_file()
        now = time.time()
        ((machine, seen),) = db.execute(
            "select (select value from meta where key = 'machine'), (select value from meta where key = 'seen')"
        ).fetchall()
        if machine not in (self._machine, "") and now - seen < ABANDONED_AFTER:
            raise StoreInvalid(
                f"{self.shown} is in use on another machine (seen {max(0.0, now - seen):.0f} s ago)."
                " SQLite serves one machine; use RabbitMQ for several."
                " If that machine is gone, or this one was just restarted, try again in half a minute."
            )
        db.execute("update meta set value = ? where key = 'machine'", (self._machine,))
        db.execute("update meta set value = ? where key = 'seen'", (now,))
        self._renewed = time.monotonic()

    def _check_file(self) -> None:
        """Notice that the file was removed or replaced: what is written to it from then on nobody would ever read."""
        try:
            inode = os.stat(self.path).st_ino
        except OSError:
            inode = -1
        if self._inode is None:
            self._inode = inode
        elif inode != self._inode:
            raise BrokerUnavailable(f"{self.shown} was removed or replaced while in use. Open it again.")
