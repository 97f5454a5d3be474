"""The file, its transactions, and the translation of SQLite's errors: no sqlite3 exception crosses this adapter.

A transaction is a plain function that runs from begin to commit without an await, so no other task of this process can
interfere. While another process writes, the session sleeps on the loop, for short random times, which is fair. SQLite's
own busy handler would block the thread, and starves some processes for seconds under load (measured: 1.7 s).
"""

import asyncio
import errno
import logging
import math
import os
import random
import sqlite3
import time
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from palermo.brokers.sqlite.file.lock_holder import lock_holder
from palermo.contract.trouble import Trouble
from palermo.errors import BrokerError, BrokerUnavailable, PublishRefused, StoreInvalid

log = logging.getLogger("palermo.sqlite")

_BUSY = frozenset({sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED})

#: The problem and the remedy, by SQLite's primary result code.
_TEXTS: dict[int, str] = {
    sqlite3.SQLITE_NOTADB: "is not a SQLite database. Name another file, or move this one away.",
    sqlite3.SQLITE_CORRUPT: "is damaged. Restore it from a backup, or save its data with `sqlite3 FILE .recover`.",
    sqlite3.SQLITE_READONLY: "cannot be written. Check the permissions of the file, of its folder and of the disk.",
    sqlite3.SQLITE_CANTOPEN: "cannot be opened. Check that its folder exists and that this user can read and write it.",
    sqlite3.SQLITE_PERM: "cannot be opened: no permission. Check the permissions of the file and its folder.",
    sqlite3.SQLITE_AUTH: "cannot be used: access refused.",
    sqlite3.SQLITE_FULL: "cannot be written: the disk is full. Free disk space, then try again.",
    sqlite3.SQLITE_IOERR: "cannot be read or written: the disk reports an error. Check its space, quota and health.",
    sqlite3.SQLITE_PROTOCOL: "cannot be locked. SQLite needs a local disk; network folders do not lock reliably.",
    sqlite3.SQLITE_NOLFS: "is too large for this file system. Move it to another one.",
    sqlite3.SQLITE_SCHEMA: "was changed by another program while in use.",
    sqlite3.SQLITE_MISMATCH: "holds data of an unexpected type. Was it changed by hand?",
    sqlite3.SQLITE_CONSTRAINT: "refused a change that violates its constraints. Was it changed by hand?",
}


def is_busy(error: sqlite3.Error) -> bool:
    """Whether another process was writing, so that a retry helps."""
    return _code(error) in _BUSY


def translated(error: Exception, path: str, *, publishing: bool = False) -> BrokerError:
    """Palermo's error for one raised by sqlite3, or caused by a statement's values."""
    if not isinstance(error, sqlite3.Error):
        return PublishRefused(f"{path} cannot hold this message: {error}.")
    code = _code(error)
    if code in _BUSY:
        return BrokerUnavailable(f"{path} was locked by another program for too long. Try again.")
    if getattr(error, "sqlite_errorcode", 0) == sqlite3.SQLITE_CONSTRAINT_FOREIGNKEY:
        return BrokerUnavailable(
            f"{path} no longer lists this worker, because another process considered it dead. Open it again."
        )
    if publishing and code in (sqlite3.SQLITE_FULL, sqlite3.SQLITE_TOOBIG):
        text = "the disk is full" if code == sqlite3.SQLITE_FULL else "the message is too big"
        return PublishRefused(f"{path} did not store the message: {text}. Nothing stored earlier is lost.")
    if code in _TEXTS:
        return StoreInvalid(f"{path} {_TEXTS[code]} (SQLite: {error})")
    if isinstance(error, sqlite3.ProgrammingError):
        return BrokerUnavailable(f"the session with {path} is closed. (SQLite: {error})")
    if isinstance(error, sqlite3.DataError | sqlite3.NotSupportedError):
        return StoreInvalid(f"{path} cannot be used. (SQLite: {error})")
    if code == sqlite3.SQLITE_ERROR:
        return StoreInvalid(f"{path} does not have Palermo's tables. Was it changed by hand? (SQLite: {error})")
    return BrokerUnavailable(f"{path} does not answer. (SQLite: {error})")


def _trouble(error: Exception, path: str) -> Trouble | None:
    """The problem that an SQLite error indicates: a full disk."""
    if isinstance(error, sqlite3.Error) and _code(error) == sqlite3.SQLITE_FULL:
        return Trouble(f"{path} cannot be written: the disk is full", "Free disk space; until then nothing is stored.")
    return None


def unusable(path: str, error: OSError) -> StoreInvalid:
    """The error for a file or directory of the store that the system won't open."""
    name = Path(error.filename).name if isinstance(error.filename, str) else path
    match error.errno:
        case errno.EACCES | errno.EPERM:
            hint = "This user has no permission to write there. Check the permissions of the folder."
        case errno.EROFS:
            hint = "The disk is mounted read-only."
        case errno.ENOSPC | errno.EDQUOT:
            hint = "The disk is full. Free disk space."
        case _:
            hint = "Check the folder and the disk."
    return StoreInvalid(f"{path} cannot be used: {name}: {error.strerror}. {hint}")


def _has_bad_text(error: BaseException) -> bool:
    """Whether a text column contains invalid UTF-8, from another program or a damaged file."""
    return isinstance(error, sqlite3.OperationalError) and "decode to UTF-8" in str(error)


def _decoded(text: bytes) -> str:
    return text.decode(errors="backslashreplace")


def _code(error: sqlite3.Error) -> int:
    """The primary result code, which is the lowest byte of an extended one; 0 for errors of sqlite3 itself."""
    return int(getattr(error, "sqlite_errorcode", 0)) & 0xFF


#: Seconds after which a waiting transaction logs the blocking process: less than half of `publish_timeout`, after which
#: a client reconnects.
_LONG = 2.0

T = TypeVar("T")
Work = Callable[[sqlite3.Connection], T]

_READ, _WRITE = "begin", "begin immediate"

#: Seconds that a worker's transaction waits for another process, because a disk may hang, or an operator may run
#: VACUUM. Giving up would lose the session and its jobs.
_WORKERS_TIMEOUT = 30.0

#: Seconds without a renewed claim after which another machine may take over a store.
ABANDONED_AFTER = 30.0
#: Seconds after which a writing session renews its machine's claim on the file.
RENEW_EVERY = 5.0

#: Our own generator, so that Palermo doesn't disturb a program that seeds the global one.
_random = random.Random()


class Busy(Exception):
    """Raised while another process writes."""


class Store:
    """One connection to the file, for one event loop of one process."""

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
        """`closed` is called when the store is closed. It is given only for a file that is deleted with its last
        session.
        """
        self.path = path
        #: Whether committed data must survive a power failure.
        self.lasting = closed is None
        self._closed = closed
        #: The path to display.
        self.display_path = display_path
        self._connection = connection
        self._machine = machine
        self._timeout = timeout
        self._pid = os.getpid()
        self._inode: int | None = None
        self._renewed = -math.inf
        #: Why the last attempt to write failed.
        self.trouble: Trouble | None = None

    async def initialize(self, work: Work[T]) -> T:
        """Like `write`, for the first transaction, when the tables may not exist."""
        return await self._transact(_WRITE, work, publishing=False)

    async def read(self, work: Work[T]) -> T:
        """The result of `work`, which reads a consistent snapshot."""
        return await self._transact(_READ, work, publishing=False)

    async def write(self, work: Work[T], *, publishing: bool = False) -> T:
        """The result of `work`, once its changes are on disk. If it raises, nothing was changed."""
        if self.renewed:
            return await self._transact(_WRITE, work, publishing=publishing)
        return await self._transact(_WRITE, self._renewing(work), publishing=publishing)

    def try_write(self, work: Work[T]) -> T:
        """Try `write` once. Raises Busy if another process is writing."""
        return self._try(_WRITE, work if self.renewed else self._renewing(work))

    def try_read(self, work: Work[T]) -> T:
        """Try `read` once. Raises Busy if another process is writing."""
        return self._try(_READ, work)

    def _try(self, begin: str, work: Work[T]) -> T:
        try:
            return self._once(begin, work)
        except sqlite3.Error as error:
            if is_busy(error):
                raise Busy from None
            self.trouble = _trouble(error, self.display_path)
            raise translated(error, self.display_path) from error

    def be_patient(self) -> None:
        """From now on, wait for other processes as long as a worker does."""
        self._timeout = max(self._timeout, _WORKERS_TIMEOUT)

    async def renew(self) -> None:
        """Renew this machine's claim on the file, unless that was done recently."""
        if not self.renewed:
            await self.write(lambda db: None)

    async def find_trouble(self) -> Trouble | None:
        """The problem found by rewriting a row, such as a full disk. Raises BrokerUnavailable, StoreInvalid."""
        try:
            await self._transact(_WRITE, self._renew, publishing=False)
        except StoreInvalid:
            if self.trouble is None:
                raise
        return self.trouble

    @property
    def renewed(self) -> bool:
        """Whether the claim is recent enough for the next transaction."""
        return time.monotonic() - self._renewed < RENEW_EVERY

    def data_version(self) -> int:
        """A number that changes when another connection has changed the file."""
        try:
            return int(self._connection.execute("pragma data_version").fetchone()[0])
        except sqlite3.Error:
            return -1  # the next transaction raises the error

    def close(self) -> None:
        """Close the connection, unless it belongs to a parent process."""
        if os.getpid() == self._pid:
            self._connection.close()
            if self._closed is not None:
                self._closed()

    async def _transact(self, begin: str, work: Work[T], *, publishing: bool) -> T:
        began, logged = 0.0, False
        while True:
            try:
                return self._once(begin, work)
            except sqlite3.Error as error:
                now = time.monotonic()
                began = began or now
                if not is_busy(error) or now > began + self._timeout:
                    self.trouble = _trouble(error, self.display_path) or self.trouble
                    raise translated(error, self.display_path, publishing=publishing) from error
                if now > began + _LONG and not logged:
                    logged = True
                    log.warning("for %g s %s has been locked by %s", _LONG, self.display_path, lock_holder(self.path))
            except (UnicodeEncodeError, OverflowError) as error:
                raise translated(error, self.display_path) from error
            await asyncio.sleep(_random.uniform(0.0002, 0.001))

    def _once(self, begin: str, work: Work[T]) -> T:
        if os.getpid() != self._pid:
            # SQLite's locks don't survive a fork, and using them in both processes damages the file.
            raise BrokerUnavailable(
                f"the session with {self.display_path} belongs to the parent process. Open another."
            )
        db = self._connection
        db.execute(begin)
        try:
            result = work(db)
            db.execute("commit")
        except BaseException as error:
            if db.in_transaction:
                db.execute("rollback")
            if _has_bad_text(error) and db.text_factory is str:
                db.text_factory = _decoded  # slower, so only for a file with such text
                return self._once(begin, work)
            raise
        if begin == _WRITE:
            self.trouble = None
        if begin == _WRITE and not self.is_in_place():
            raise BrokerUnavailable(f"{self.display_path} was removed or replaced while in use. Open it again.")
        return result

    def _renewing(self, work: Work[T]) -> Work[T]:
        def renew_and_work(db: sqlite3.Connection) -> T:
            self._renew(db)
            return work(db)

        return renew_and_work

    def _renew(self, db: sqlite3.Connection) -> None:
        """Renew this machine's claim to the file. Raises StoreInvalid if another machine uses the file.

        The claim keeps other machines out. WAL needs shared memory, so two machines would damage the file.
        """
        now = time.time()
        ((machine, seen),) = db.execute(
            "select (select value from meta where key = 'machine'), (select value from meta where key = 'seen')"
        ).fetchall()
        if machine not in (self._machine, "") and now - seen < ABANDONED_AFTER:
            if seen > now + ABANDONED_AFTER:
                # The other machine's clock was far ahead, perhaps only until it was restarted. From now on its claim
                # ages by our clock; if it lives, it renews the claim.
                db.execute("update meta set value = ? where key = 'seen'", (now,))
                db.execute("commit")
            raise StoreInvalid(
                f"{self.display_path} is in use on another machine (seen {max(0.0, now - seen):.0f} s ago)."
                " SQLite works on one machine only; use RabbitMQ for several. If that machine is off, or this one has"
                " just restarted, try again in half a minute."
            )
        db.execute("update meta set value = ? where key = 'machine'", (self._machine,))
        db.execute("update meta set value = ? where key = 'seen'", (now,))
        self._renewed = time.monotonic()

    def is_in_place(self) -> bool:
        """Whether the file still exists at its path. No process reads data written to a removed or replaced file.

        Call this after each write. If it returns False, repeat the write in the new file.
        """
        try:
            inode = os.stat(self.path).st_ino
        except OSError:
            return False
        self._inode = self._inode or inode
        return inode == self._inode
