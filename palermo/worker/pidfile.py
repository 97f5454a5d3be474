"""A file that holds the worker's pid while it lives, and keeps a second worker from using the same one."""

import errno
import fcntl
import os
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Self

from palermo.errors import SettingInvalid


class Pidfile:
    """Held by a lock and not by the number in it, since the number of a dead worker may be another program's by now."""

    def __init__(self, path: str) -> None:
        self._path = Path(path).absolute()
        self._descriptor = -1

    def __enter__(self) -> Self:
        """Write the file. Raises SettingInvalid if another live worker holds it, or if it cannot be written."""
        fresh = self._path.with_name(f".{self._path.name}.{os.getpid()}")
        try:
            old = self._lock_old()
            try:
                # A reader sees the old file or the new one, and never half a number.
                self._descriptor = os.open(fresh, os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o644)
                fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                os.write(self._descriptor, f"{os.getpid()}\n".encode())
                os.replace(fresh, self._path)
            finally:
                os.close(old)
        except OSError as error:
            with suppress(OSError):
                fresh.unlink()
            raise SettingInvalid(f"pidfile {self._path} cannot be written: {error.strerror}.") from None
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
        """Let go of the lock in this process: a child that keeps it would outlive the worker's claim."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1

    def _lock_old(self) -> int:
        """A descriptor of the file as it is, locked, so that of two workers that find a stale one, one wins."""
        while True:
            descriptor = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
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
        """Whether the path still leads to the file that is open here."""
        try:
            there, here = os.stat(self._path), os.fstat(descriptor)
        except OSError:
            return False
        return (there.st_dev, there.st_ino) == (here.st_dev, here.st_ino)
