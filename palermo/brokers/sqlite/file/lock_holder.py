"""Finds the process that writes to a file, as far as Linux tells, for people who wait for it: it may be stopped."""

import os
from contextlib import suppress
from pathlib import Path

#: The byte of a file's shared memory that SQLite locks to write: https://sqlite.org/walformat.html#wal_locks
_WRITES = 120


def lock_holder(path: str) -> str:
    """The process that writes to a file in WAL mode, for people; "another process" where that is not known."""
    with suppress(OSError, ValueError, IndexError):
        status = os.stat(f"{path}-shm")
        device = f"{os.major(status.st_dev):02x}:{os.minor(status.st_dev):02x}:{status.st_ino}"
        for line in Path("/proc/locks").read_text(encoding="ascii").splitlines():
            # 4: POSIX  ADVISORY  WRITE 4711 fe:01:8042 120 120
            _, kind, _, access, pid, locked, first, last = line.replace("-> ", "").split()
            if (kind, access, locked) == ("POSIX", "WRITE", device) and int(first) <= _WRITES <= int(last):
                return _named(int(pid))
    return "another process"


def _named(pid: int) -> str:
    # The name of the program, in brackets, may hold anything.
    state = Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()[0]
    return f"process {pid}, which is stopped: kill -CONT {pid} lets it go on" if state == b"T" else f"process {pid}"
