"""Writes the lines of a log in a thread of its own: a reader that stops reading must not stop the worker's loop.

Lines wait in a buffer of bounded size. If it is full, lines are dropped, and a line says how many as soon as the log is
read again.
"""

import os
import select
import threading
from collections.abc import Callable

from palermo.worker import signals

#: The most bytes that wait.
BUFFER = 4_000_000


class LineWriter:
    """The lines on their way to one open file."""

    def __init__(self, file: int, dropped_line: Callable[[int], str], *, buffer: int = BUFFER) -> None:
        """`file` is a descriptor; `dropped_line` gives the line that says how many lines were dropped."""
        self._file = file
        self._dropped_line = dropped_line
        self._buffer = buffer
        self._changed = threading.Condition()
        self._lines: list[bytes] = []
        self._size = 0
        self._dropped = 0
        self._idle = False
        threading.Thread(target=self._run, name="palermo log", daemon=True).start()

    def put(self, line: str) -> None:
        """Have the line written soon. Never waits for the file."""
        data = line.encode(errors="backslashreplace") + b"\n"
        with self._changed:
            if self._size + len(data) > self._buffer:
                self._dropped += 1
                return
            self._lines.append(data)
            self._size += len(data)
            if self._idle:
                self._idle = False
                self._changed.notify_all()

    def drain(self, within: float) -> None:
        """Wait until all lines are written, for at most this many seconds."""
        with self._changed:
            self._changed.wait_for(lambda: self._idle, within)

    def _run(self) -> None:
        signals.block_in_this_thread()
        while True:
            with self._changed:
                if not self._lines and not self._dropped:
                    self._idle = True
                    self._changed.notify_all()
                    self._changed.wait_for(lambda: not self._idle)
                lines, self._lines, self._size = self._lines, [], 0
                dropped, self._dropped = self._dropped, 0
            if dropped:
                lines.append(self._dropped_line(dropped).encode() + b"\n")
            self._write(b"".join(lines))

    def _write(self, data: bytes) -> None:
        left = memoryview(data)
        while left:
            try:
                left = left[os.write(self._file, left) :]
            except BlockingIOError:  # another program has set O_NONBLOCK on the file
                select.select([], [self._file], [])
            except OSError:  # closed, or nothing can read it any more
                return
