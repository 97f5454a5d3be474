"""Translates SQLite's errors into Palermo's. No exception of sqlite3 crosses this adapter."""

import errno
import sqlite3
from pathlib import Path

from palermo.errors import BrokerError, BrokerUnavailable, PublishRefused, StoreInvalid

_BUSY = frozenset({sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED})

#: What happened, and what to do; by SQLite's primary result code.
_TEXTS: dict[int, str] = {
    sqlite3.SQLITE_NOTADB: "is not a SQLite database. Name another file, or move this one away.",
    sqlite3.SQLITE_CORRUPT: "is damaged. Restore it from a backup, or save what is left with `sqlite3 FILE .recover`.",
    sqlite3.SQLITE_READONLY: "cannot be written. Check the permissions of the file, of its folder and of the disk.",
    sqlite3.SQLITE_CANTOPEN: "cannot be opened. Check its folder, and that this user may read and write there.",
    sqlite3.SQLITE_PERM: "cannot be opened: no permission. Check who may read and write the file and its folder.",
    sqlite3.SQLITE_AUTH: "cannot be used: access refused.",
    sqlite3.SQLITE_FULL: "has no room: the disk is full. Make room, then try again.",
    sqlite3.SQLITE_IOERR: "cannot be read or written: the disk reports an error. Check its space, quota and health.",
    sqlite3.SQLITE_PROTOCOL: "cannot be locked. SQLite needs a local disk; network folders do not lock reliably.",
    sqlite3.SQLITE_NOLFS: "is too large for this file system.",
    sqlite3.SQLITE_SCHEMA: "was changed by another program while in use.",
    sqlite3.SQLITE_MISMATCH: "holds data of an unexpected type. Was it changed by hand?",
    sqlite3.SQLITE_CONSTRAINT: "refused a change that breaks its own rules. Was it changed by hand?",
}


def is_busy(error: sqlite3.Error) -> bool:
    """Whether another process was writing, so that another attempt helps."""
    return _code(error) in _BUSY


def translated(error: Exception, path: str, *, publishing: bool = False) -> BrokerError:
    """Palermo's error for one that sqlite3 raised, or that a statement's values caused."""
    if not isinstance(error, sqlite3.Error):
        return PublishRefused(f"{path} cannot hold this message: {error}.")
    code = _code(error)
    if code in _BUSY:
        return BrokerUnavailable(f"{path} was locked by another program for too long. Try again.")
    if getattr(error, "sqlite_errorcode", 0) == sqlite3.SQLITE_CONSTRAINT_FOREIGNKEY:
        return BrokerUnavailable(
            f"{path} no longer knows this worker: another process took it for dead. Open it again."
        )
    if publishing and code in (sqlite3.SQLITE_FULL, sqlite3.SQLITE_TOOBIG):
        text = "the disk is full" if code == sqlite3.SQLITE_FULL else "the message is too big"
        return PublishRefused(f"{path} did not store the message: {text}. Nothing that was stored before is lost.")
    if code in _TEXTS:
        return StoreInvalid(f"{path} {_TEXTS[code]} (SQLite: {error})")
    if isinstance(error, sqlite3.ProgrammingError):
        return BrokerUnavailable(f"the session with {path} is closed. (SQLite: {error})")
    if isinstance(error, sqlite3.DataError | sqlite3.NotSupportedError):
        return StoreInvalid(f"{path} cannot be used. (SQLite: {error})")
    if code == sqlite3.SQLITE_ERROR:
        return StoreInvalid(
            f"{path} does not have the tables that Palermo made. Was it changed by hand? (SQLite: {error})"
        )
    return BrokerUnavailable(f"{path} does not answer. (SQLite: {error})")


def unusable(path: str, error: OSError) -> StoreInvalid:
    """The error for a file or folder of the store that the system refused."""
    name = Path(error.filename).name if isinstance(error.filename, str) else path
    match error.errno:
        case errno.EACCES | errno.EPERM:
            hint = "This user may not write there; check the permissions of the folder."
        case errno.EROFS:
            hint = "The disk is mounted read-only."
        case errno.ENOSPC | errno.EDQUOT:
            hint = "The disk is full; make room."
        case _:
            hint = "Check the folder and the disk."
    return StoreInvalid(f"{path} cannot be used: {name}: {error.strerror}. {hint}")


def _code(error: sqlite3.Error) -> int:
    """The primary result code, which is the lowest byte of an extended one; 0 for errors of the module itself."""
    return int(getattr(error, "sqlite_errorcode", 0)) & 0xFF
