"""Marks by which a job tells that it runs, at half a microsecond and no system call. Each process writes to a file in
its memory.

The file of a process holds a count and, in a ring, when each of its last jobs started and was enqueued. Both are
the monotonic clock's nanoseconds, which all processes of a machine share. The driver reads the files as they are.
"""

import asyncio
import itertools
import mmap
import os
import struct
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from benchmarks.peers.order import sleep_of, stamp_of

#: Runs that a file remembers, of which none may be read later than it is overwritten.
RING = 4096

_HEAD = struct.Struct("<q")
_RUN = struct.Struct("<qq")
_SIZE = _HEAD.size + RING * _RUN.size

#: Names the folder to a worker.
FOLDER = "PEERS_MARKS"


class Marker:
    """One process's file, created at its first job, and again after a fork."""

    def __init__(self, folder: str) -> None:
        self._folder = folder
        self._forget()
        os.register_at_fork(after_in_child=self._forget)

    def mark(self, enqueued: int) -> None:
        """Count a job that starts now. From any thread."""
        started = time.monotonic_ns()
        # One call, so that no two threads get the same place.
        number = next(self._numbers)
        file = self._file or self._open()
        _RUN.pack_into(file, _HEAD.size + number % RING * _RUN.size, started, enqueued)
        # A thread may be overtaken here by another: the count is then one short until the next job.
        _HEAD.pack_into(file, 0, number + 1)

    def _forget(self) -> None:
        self._numbers = itertools.count()
        self._file: mmap.mmap | None = None

    def _open(self) -> mmap.mmap:
        path = Path(self._folder, str(os.getpid()))
        descriptor = os.open(path, os.O_CREAT | os.O_RDWR)
        os.ftruncate(descriptor, _SIZE)
        # Threads that come here at once map the same file twice, which harms nothing.
        self._file = made = mmap.mmap(descriptor, _SIZE)
        os.close(descriptor)
        return made


_marker = Marker(os.environ.get(FOLDER, "/nonexistent"))


def run(order: dict[str, Any]) -> None:
    """The work of the job in every system: count it, and sleep if requested."""
    _marker.mark(stamp_of(order))
    if pause := sleep_of(order):
        time.sleep(pause)


async def run_async(order: dict[str, Any]) -> None:
    """The same where jobs are coroutines."""
    _marker.mark(stamp_of(order))
    if pause := sleep_of(order):
        await asyncio.sleep(pause)


class Marks:
    """The driver's view of one worker's files."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._files: dict[str, mmap.mmap] = {}

    def per_process(self) -> list[int]:
        """The number of jobs that each process has started, without processes that started none."""
        for path in self._folder.iterdir():
            if path.name not in self._files and path.stat().st_size == _SIZE:
                with path.open("rb") as file:
                    self._files[path.name] = mmap.mmap(file.fileno(), _SIZE, access=mmap.ACCESS_READ)
        return [count for file in self._files.values() if (count := _HEAD.unpack_from(file)[0])]

    def count(self) -> int:
        """The number of jobs that were started."""
        return sum(self.per_process())

    def runs(self) -> Iterator[tuple[int, int]]:
        """When a job started and when it was enqueued, of the last RING of each process, in no order."""
        for file in self._files.values():
            held = min(_HEAD.unpack_from(file)[0], RING)
            for number in range(held):
                yield _RUN.unpack_from(file, _HEAD.size + number * _RUN.size)

    def close(self) -> None:
        for file in self._files.values():
            file.close()
        self._files.clear()
