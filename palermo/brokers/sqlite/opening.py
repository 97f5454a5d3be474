"""Opening the file: what may be wrong with it is found here, and said in one line."""

import asyncio
import atexit
import math
import os
import shutil
import sqlite3
import tempfile
import time
import uuid
from functools import cache
from importlib.resources import files
from pathlib import Path

from palermo.brokers.sqlite.faults import is_busy, translated, unusable
from palermo.brokers.sqlite.store import Store
from palermo.core.address import Address
from palermo.errors import StoreInvalid, UrlInvalid

MEMORY = ":memory:"

#: "PLRM": how a file says that it is Palermo's.
APPLICATION_ID = 0x504C524D

#: What makes the tables, and what was added since: the version of a file is how many of these it has been through.
_SCHEMA = ("schema.sql", *(f"schema_{number}.sql" for number in range(2, 11)))
SCHEMA_VERSION = len(_SCHEMA)

_OPTIONS = ("timeout",)


async def open_store(address: Address, timeout: float) -> Store:
    """The store at the address, made if it is not there; `timeout` is for waiting for other processes.

    Raises UrlInvalid for unknown options, StoreInvalid for what is not, or cannot be, a store,
    and BrokerUnavailable if another process does not let us in.
    """
    timeout = _options(address).get("timeout", timeout)
    lasting = address.path != MEMORY
    if "\0" in address.path:
        raise StoreInvalid(f"{address.path!r} is no name for a file.")
    path = _real(address.path if lasting else str(_private_directory() / "jobs.db"))
    shown = address.path if lasting else "the embedded broker in memory"
    try:
        _check_path(path, shown)
        os.makedirs(side_directory(path), exist_ok=True)
    except OSError as error:
        raise unusable(shown, error) from error
    try:
        # No busy handler: it would block the loop.
        connection = sqlite3.connect(path, timeout=0, isolation_level=None, cached_statements=256)
    except sqlite3.Error as error:
        raise translated(error, shown) from error
    try:
        await _prepare(connection, shown, lasting=lasting, timeout=timeout)
        store = Store(connection, path, shown=shown, machine=machine(), timeout=timeout, lasting=lasting)
        await store.found(lambda db: _check_schema(db, shown))
        await store.renew()
    except BaseException:
        connection.close()
        raise
    return store


def configure(connection: sqlite3.Connection, *, lasting: bool) -> None:
    """Set what holds for every connection with the file."""
    # FULL, since a job that publish has confirmed must outlive a power cut.
    connection.execute(f"pragma synchronous = {'full' if lasting else 'off'}")
    connection.execute("pragma foreign_keys = on")
    connection.execute("pragma journal_size_limit = 67108864")


def side_directory(path: str) -> str:
    """Where the files lie that are for locking and waking; nothing in it outlives the processes that use it."""
    return f"{path}.d"


def machine() -> str:
    """What this machine, since it was started, has and no other: containers on one kernel share it."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
    except OSError:
        return f"{uuid.getnode():012x}"


def _real(path: str) -> str:
    """The path without links: whoever comes by another name must find the same side directory."""
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


def _check_path(path: str, shown: str) -> None:
    folder = os.path.dirname(path)
    if not os.path.isdir(folder):
        raise StoreInvalid(f"{shown} cannot be opened: the folder {folder} does not exist. Make it first.")
    if os.path.isdir(path):
        raise StoreInvalid(f"{shown} is a folder. Name a file in it.")
    if os.path.exists(path) and not os.path.isfile(path):
        raise StoreInvalid(f"{shown} is not a regular file.")


@cache
def _private_directory() -> Path:
    """The folder that stands for `:memory:`: one for all sessions of this process, and of those it forks later."""
    directory = tempfile.mkdtemp(prefix="palermo-")
    owner = os.getpid()

    def remove() -> None:
        if os.getpid() == owner:
            shutil.rmtree(directory, ignore_errors=True)

    atexit.register(remove)
    return Path(directory)


async def _prepare(connection: sqlite3.Connection, shown: str, *, lasting: bool, timeout: float) -> None:
    """Set what holds for the connection; only switching a new file to WAL may have to wait for others."""
    deadline = time.monotonic() + timeout
    while True:
        try:
            (mode,) = connection.execute("pragma journal_mode").fetchone()
            if mode != "wal":
                _check_owner(connection, shown)
                (mode,) = connection.execute("pragma journal_mode = wal").fetchone()
            configure(connection, lasting=lasting)
            break
        except sqlite3.Error as error:
            if not is_busy(error) or time.monotonic() > deadline:
                raise translated(error, shown) from error
        await asyncio.sleep(0.002)
    if mode != "wal":
        raise StoreInvalid(f"{shown} lies where SQLite cannot share memory (mode {mode!r}). Put it on a local disk.")


def _check_owner(db: sqlite3.Connection, shown: str) -> int:
    """The version of the schema in the file, 0 for a fresh one. Raises StoreInvalid for another program's database."""
    (application,) = db.execute("pragma application_id").fetchone()
    (version,) = db.execute("pragma user_version").fetchone()
    (tables,) = db.execute("select count(*) from sqlite_master").fetchone()
    if tables and application != APPLICATION_ID:
        raise StoreInvalid(f"{shown} is another program's database. Name another file.")
    if tables and version > SCHEMA_VERSION:
        raise StoreInvalid(
            f"{shown} was written by a newer Palermo (schema {version}; this one knows {SCHEMA_VERSION})."
            " Upgrade this Palermo."
        )
    return int(version) if tables else 0


def _check_schema(db: sqlite3.Connection, shown: str) -> None:
    version = _check_owner(db, shown)
    if version == SCHEMA_VERSION:
        return
    for name in _SCHEMA[version:]:
        _run(db, files("palermo.brokers.sqlite").joinpath(name).read_text(encoding="utf-8"))
    db.execute(f"pragma application_id = {APPLICATION_ID}")
    db.execute(f"pragma user_version = {SCHEMA_VERSION}")


def _run(db: sqlite3.Connection, script: str) -> None:
    """Not executescript: it commits what was begun, and two processes may be here at once."""
    statement = ""
    for line in script.splitlines():
        statement += line + "\n"
        if sqlite3.complete_statement(statement):
            db.execute(statement)
            statement = ""
