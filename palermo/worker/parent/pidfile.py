"""A file that contains the worker's pid while it runs.

A lock on it shows that the worker is alive, because another program may have the pid of a dead worker.
"""

import errno
import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO

from palermo.errors import SettingInvalid


@contextmanager
def pidfile(name: str) -> Iterator[IO[str]]:
    """Write the pidfile, and remove it at the end if it still belongs to this worker.

    Children must close the yielded file, or they would hold the lock after the worker's end. Raises SettingInvalid if
    another live worker holds the lock, or if the file can't be written.
    """
    path = Path(name).absolute()
    try:
        file = _locked(path)
        # Truncate first, so that a reader never sees the new number followed by the rest of an old one.
        file.truncate(0)
        file.write(f"{os.getpid()}\n")
        file.flush()
    except OSError as error:
        why = "it is a symbolic link, which is not followed" if error.errno == errno.ELOOP else error.strerror or error
        raise SettingInvalid(f"pidfile {path} cannot be written: {why}.") from None
    with file:
        try:
            yield file
        finally:
            if _names(path, file):
                with suppress(OSError):
                    path.unlink()


def _locked(path: Path) -> IO[str]:
    """Open the file and lock it."""
    while True:
        # Never follow a symbolic link that another user may have put into a shared folder such as /tmp.
        flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
        file = os.fdopen(os.open(path, flags, 0o644), "r+", errors="replace")
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            with file:
                holder = file.read(20).strip() or "unknown"
            raise SettingInvalid(
                f"pidfile {path} belongs to a running worker, pid {holder}. Stop it, or choose another file."
            ) from None
        if _names(path, file):
            return file
        file.close()  # its worker removed it between opening and locking


def _names(path: Path, file: IO[str]) -> bool:
    """Whether the path leads to this open file."""
    with suppress(OSError):
        return os.path.samestat(os.lstat(path), os.fstat(file.fileno()))
    return False
