"""A file that holds the worker's pid while it lives. Its lock keeps a second worker from using the same file."""

import errno
import fcntl
import os
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Self

from palermo.errors import SettingInvalid


class Pidfile:
    """A pidfile, owned through a lock on it: the pid of a dead worker in it may be another program's by now."""

    def __init__(self, path: str) -> None:
        self._path = Path(path).absolute()
        self._descriptor = -1

    def __enter__(self) -> Self:
        """Write the file. Raises SettingInvalid if another live worker holds it, or if it cannot be written."""
        # No write follows a symbolic link that somebody put into a shared folder such as /tmp.
        fresh = self._path.with_name(f".{self._path.name}.{os.getpid()}")
        try:
            old = self._lock_old()
            try:
                # A reader sees the old file or the new one, and never half a number.
                fresh.unlink(missing_ok=True)
                flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
                self._descriptor = os.open(fresh, flags, 0o644)
                fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                os.write(self._descriptor, f"{os.getpid()}\n".encode())
                os.replace(fresh, self._path)
            finally:
                os.close(old)
        except OSError as error:
            with suppress(OSError):
                fresh.unlink()
            why = "it is a symbolic link, which is not followed" if error.errno == errno.ELOOP else error.strerror
            raise SettingInvalid(f"pidfile {self._path} cannot be written: {why}.") from None
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Remove the file, if it is still ours."""
        if self._ours(self._descriptor):
            with suppress(OSError):
                self._path.unlink()
        self.close()

    def close(self) -> None:
        """Close the file in this process. A child must do so, or it would hold the lock after the worker's end."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1

    def _lock_old(self) -> int:
        """A locked descriptor of the present file, so that of two workers that find a stale file only one wins."""
        while True:
            descriptor = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o644)
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError as error:
                holder = os.read(descriptor, 20).decode(errors="replace").strip()
                os.close(descriptor)
                if error.errno in (errno.EAGAIN, errno.EACCES):
                    raise SettingInvalid(
                        f"pidfile {self._path} belongs to a worker that lives, pid {holder or 'unknown'}."
                        " Stop it, or choose another file."
                    ) from None
                raise
            if self._ours(descriptor):
                return descriptor
            os.close(descriptor)  # replaced between opening and locking

    def _ours(self, descriptor: int) -> bool:
        """Whether the path still names the file that is open here."""
        try:
            there, here = os.lstat(self._path), os.fstat(descriptor)
        except OSError:
            return False
        return (there.st_dev, there.st_ino) == (here.st_dev, here.st_ino)
