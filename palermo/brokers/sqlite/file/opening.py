"""Open the file, and report any problem with it in one line."""

import asyncio
import atexit
import contextlib
import errno
import logging
import math
import os
import shutil
import sqlite3
import stat
import tempfile
import threading
import time
import uuid
from collections.abc import Callable
from functools import cache
from importlib.resources import files
from pathlib import Path

from palermo.brokers.sqlite.file.mounts import mounts
from palermo.brokers.sqlite.file.store import Store, is_busy, translated, unusable
from palermo.core.address import Address
from palermo.errors import StoreInvalid, UrlInvalid

log = logging.getLogger("palermo.sqlite")

MEMORY = ":memory:"

#: Files for which this process has already warned that other users can read them.
_warned: set[str] = set()

#: "PLRM", the application id of Palermo's files.
APPLICATION_ID = 0x504C524D

#: The version of schema.sql, stored in every file. It is raised when a later Palermo changes the tables.
SCHEMA_VERSION = 1

_OPTIONS = ("timeout",)


async def open_store(address: Address, timeout: float, *, warns: bool = True, creates: bool = True) -> Store:
    """Open the store at the address; `timeout` is the time to wait for other processes, in seconds.

    With `warns`, log a warning, once per process, if all users can read the file. With `creates`, create a missing
    file. Raises UrlInvalid for unknown options, StoreInvalid if the file is missing or can't be a store, and
    BrokerUnavailable if another process blocks access.
    """
    timeout = _options(address).get("timeout", timeout)
    if address.path == MEMORY:
        memory = _memory()
        path = memory.enter()
        try:
            return await _open(path, "the embedded broker in memory", timeout, closed=memory.leave)
        except BaseException:
            memory.leave()
            raise
    if "\0" in address.path:
        raise StoreInvalid(f"{address.path!r} is not the name of a file.")
    if not creates:
        _check_exists(address.path)
    store = await _open(address.path, address.path, timeout)
    if warns:
        _warn_if_open(_real(address.path))
    return store


def _check_exists(path: str) -> None:
    """Raise StoreInvalid if the file doesn't exist."""
    if not os.path.exists(path):
        raise StoreInvalid(
            f"there is no file {os.path.abspath(path)}. No job has been enqueued there and no worker has run."
            " Correct the path in the URL; a relative path starts at the current directory."
        )


async def _open(path: str, display_path: str, timeout: float, *, closed: Callable[[], None] | None = None) -> Store:
    path, lasting = _real(path), closed is None
    try:
        _check_path(path, display_path)
        if lasting:
            _make_private(path)
        _make_side_directory(path)
    except OSError as error:
        raise unusable(display_path, error) from error
    try:
        # no busy handler, which would block the loop
        connection = sqlite3.connect(path, timeout=0, isolation_level=None, cached_statements=256)
    except sqlite3.Error as error:
        raise translated(error, display_path) from error
    try:
        await _prepare(connection, display_path, lasting=lasting, timeout=timeout)
        store = Store(connection, path, display_path=display_path, machine=machine(), timeout=timeout, closed=closed)
        await store.initialize(lambda db: _check_schema(db, display_path))
        await store.find_trouble()  # a full disk doesn't prevent reading
    except BaseException:
        connection.close()
        raise
    return store


def configure(connection: sqlite3.Connection, *, lasting: bool) -> None:
    """Set the pragmas that every connection to the file needs."""
    # FULL, because a job that `publish` has confirmed must survive a power failure.
    connection.execute(f"pragma synchronous = {'full' if lasting else 'off'}")
    connection.execute("pragma foreign_keys = on")
    connection.execute("pragma journal_size_limit = 67108864")


def side_directory(path: str) -> str:
    """The directory of the files for locking and waking. Its contents are needed only while a process uses them."""
    return f"{path}.d"


def machine() -> str:
    """An id of this machine, different after each boot. Containers on one kernel share it."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
    except OSError:
        return f"{uuid.getnode():012x}"


def _real(path: str) -> str:
    """The path with links resolved, so that processes with different paths find the same side directory."""
    return os.path.realpath(path)


def _options(address: Address) -> dict[str, float]:
    options: dict[str, float] = {}
    for name, text in address.options:
        if name not in _OPTIONS:
            raise UrlInvalid(f"the SQLite URL has an unknown option {name!r}. Known: {', '.join(_OPTIONS)}.")
        try:
            options[name] = float(text)
        except ValueError:
            options[name] = math.nan
        if not 0 <= options[name] < math.inf:
            raise UrlInvalid(f"option {name}={text!r} in the SQLite URL is not a number of seconds.")
    return options


def _check_path(path: str, display_path: str) -> None:
    folder = os.path.dirname(path)
    if not os.path.isdir(folder):
        raise StoreInvalid(f"{display_path} cannot be opened: the folder {folder} does not exist. Create it first.")
    if os.path.isdir(path):
        raise StoreInvalid(f"{display_path} is a folder. Name a file in it.")
    if os.path.exists(path) and not os.path.isfile(path):
        raise StoreInvalid(f"{display_path} is not a regular file.")
    if any(place == path for place, _ in mounts()):
        raise StoreInvalid(
            f"{display_path} is mounted as a single file. Mount its folder instead, because SQLite keeps the newest"
            " jobs in other files in that folder."
        )
    effective = os.access in os.supports_effective_ids
    if os.path.exists(path) and not os.access(path, os.W_OK, effective_ids=effective):
        # Checked before SQLite creates its files beside it, which would be read-only too, and stay so.
        raise StoreInvalid(
            f"{display_path} cannot be written. Check the permissions of the file, of its folder and of the disk."
        )


class _Memory:
    """The directory behind `:memory:`, shared by all sessions of this process. It exists while one of them is open."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._users = 0
        self._directory = ""
        self._owner = 0
        atexit.register(self._remove)
        # A lock held by another thread during a fork is never released in the child, so the child makes a new one.
        # Holding it during the fork instead would make the fork wait for a client that closes a session.
        os.register_at_fork(after_in_child=self._renew_lock)

    def enter(self) -> str:
        """Register a session; return the path of the file."""
        with self._lock:
            if not self._users:
                self._directory, self._owner = tempfile.mkdtemp(prefix="palermo-"), os.getpid()
            self._users += 1
            return os.path.join(self._directory, "jobs.db")

    def leave(self) -> None:
        """Unregister a session; the last one removes the directory."""
        with self._lock:
            self._users -= 1
            if not self._users:
                self._remove()

    def _renew_lock(self) -> None:
        self._lock = threading.Lock()

    def _remove(self) -> None:
        if self._directory and os.getpid() == self._owner:
            shutil.rmtree(self._directory, ignore_errors=True)


def _make_private(path: str) -> None:
    """Create the file with mode 0600, because it contains the arguments of jobs. Does nothing if the file exists.

    If the umask permits group writes, such as 0007, the group can also read and write the file. SQLite gives its -wal
    and -shm files the same mode.
    """
    with contextlib.suppress(FileExistsError):
        _make_file(path)
        if not os.stat(path).st_mode & stat.S_IWGRP:
            os.chmod(path, 0o600)


def _warn_if_open(path: str) -> None:
    """Warn, once per process, if all users can read the file."""
    mode = stat.S_IMODE(os.stat(path).st_mode)
    if mode & 0o007 and path not in _warned:
        _warned.add(path)
        log.warning("all users of this machine can read the file of jobs; run chmod 600 mode=%03o file=%s", mode, path)


def _make_file(path: str) -> None:
    """Make an empty file. Raises FileExistsError."""
    try:
        # Without opening it, because closing it would drop this process's locks on it, which other threads may hold.
        os.mknod(path, stat.S_IFREG | 0o660)
    except OSError as error:
        if error.errno not in (errno.EPERM, errno.EINVAL):
            raise
        # on macOS only root may use mknod
        os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o660))


def _make_side_directory(path: str) -> None:
    """Create the directory beside the file for this user, and for the group if it may write the file."""
    directory = side_directory(path)
    with contextlib.suppress(FileExistsError):
        os.mkdir(directory, 0o700)
        if os.path.exists(path) and os.stat(path).st_mode & stat.S_IWGRP:
            # The directory may have inherited the setgid bit, and must keep it, so that its files belong to the group.
            os.chmod(directory, stat.S_IMODE(os.stat(directory).st_mode) | 0o070)


@cache
def _memory() -> _Memory:
    return _Memory()


async def _prepare(connection: sqlite3.Connection, display_path: str, *, lasting: bool, timeout: float) -> None:
    """Configure the connection. Only switching a new file to WAL may have to wait for other processes."""
    deadline = time.monotonic() + timeout
    while True:
        try:
            (mode,) = connection.execute("pragma journal_mode").fetchone()
            if mode != "wal":
                _check_owner(connection, display_path)
                (mode,) = connection.execute("pragma journal_mode = wal").fetchone()
            configure(connection, lasting=lasting)
            break
        except sqlite3.Error as error:
            if not is_busy(error) or time.monotonic() > deadline:
                raise translated(error, display_path) from error
        await asyncio.sleep(0.002)
    if mode != "wal":
        raise StoreInvalid(
            f"{display_path} is on a disk on which SQLite cannot share memory (mode {mode!r}). Move it to a local disk."
        )


def _check_owner(db: sqlite3.Connection, display_path: str) -> int:
    """The schema version of the file, 0 for a new one. Raises StoreInvalid for another program's database."""
    (application,) = db.execute("pragma application_id").fetchone()
    (version,) = db.execute("pragma user_version").fetchone()
    (tables,) = db.execute("select count(*) from sqlite_master").fetchone()
    if tables and application != APPLICATION_ID:
        raise StoreInvalid(f"{display_path} is another program's database. Name another file.")
    if tables and version > SCHEMA_VERSION:
        raise StoreInvalid(
            f"{display_path} was written by a newer Palermo (schema {version}; this one supports {SCHEMA_VERSION})."
            " Upgrade Palermo."
        )
    return int(version) if tables else 0


def _check_schema(db: sqlite3.Connection, display_path: str) -> None:
    if _check_owner(db, display_path):
        return
    _run(db, files("palermo.brokers.sqlite.file").joinpath("schema.sql").read_text(encoding="utf-8"))
    db.execute(f"pragma application_id = {APPLICATION_ID}")
    db.execute(f"pragma user_version = {SCHEMA_VERSION}")


def _run(db: sqlite3.Connection, script: str) -> None:
    """Run the script statement by statement.

    executescript would commit the transaction that keeps other processes out.
    """
    statement = ""
    for line in script.splitlines():
        statement += line + "\n"
        if sqlite3.complete_statement(statement):
            db.execute(statement)
            statement = ""
