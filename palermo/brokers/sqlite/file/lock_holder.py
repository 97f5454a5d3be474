"""Find the process that is writing to a file, on Linux, for error messages: it may be stopped."""

import os
from contextlib import suppress
from pathlib import Path

#: The byte of the shared memory that SQLite locks for writing: https://sqlite.org/walformat.html#wal_locks
_WRITES = 120


def lock_holder(path: str) -> str:
    """A description of the process that is writing to a file in WAL mode; "another process" if unknown."""
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
    # the program's name, in parentheses, may contain any character
    state = Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()[0]
    return f"process {pid}, which is stopped (kill -CONT {pid} continues it)" if state == b"T" else f"process {pid}"
