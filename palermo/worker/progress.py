"""How far the job of one slot is, as its worker knows it: shown to those who look, and written down now and then."""

import asyncio
from collections import deque
from collections.abc import Callable, Mapping
from typing import Any

from palermo.core.journal import Kind
from palermo.worker.reporting import Report

#: Seconds between two records of one job's progress.
EVERY = 1.0

#: How many of the newest lines a worker can tell; the journal has them all.
NEWEST = 100

Write = Callable[[Kind, Mapping[str, Any]], None]


class Progress:
    """Of one slot, from job to job."""

    __slots__ = ("_timer", "_told", "_unwritten", "_write", "fraction", "lines", "text")

    def __init__(self) -> None:
        self.fraction: float | None = None
        self.text = ""
        self.lines: deque[str] = deque(maxlen=NEWEST)
        self._write: Write | None = None
        self._timer: asyncio.TimerHandle | None = None
        #: Whether the job has told anything, as few do; whether its progress is still to be written down.
        self._told = self._unwritten = False

    def begin(self, write: Write) -> None:
        """A job begins; what it tells is written down by `write`, its progress at most once a second."""
        self._write = write

    def heard(self, report: Report) -> None:
        """The job has told something."""
        write = self._write
        if write is None:
            return
        self._told = True
        for line in report.lines:
            self.lines.append(line)
            write(Kind.LOG, {"text": line})
        if report.moved:
            self.fraction, self.text = report.fraction, report.text
            self._unwritten = True
            if self._timer is None:
                self._write_down()

    def end(self) -> None:
        """The job has ended: write down where it came to, and forget it."""
        if self._told:
            self._forget()
        self._write = None

    def _forget(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._unwritten:
            self._record()
        self._told = False
        self.fraction, self.text = None, ""
        self.lines.clear()

    def _write_down(self) -> None:
        self._timer = None
        if self._unwritten:
            self._record()
            self._timer = asyncio.get_running_loop().call_later(EVERY, self._write_down)

    def _record(self) -> None:
        self._unwritten = False
        if self._write is not None:
            said: dict[str, Any] = {} if self.fraction is None else {"fraction": round(self.fraction, 4)}
            self._write(Kind.PROGRESS, said | ({"text": self.text} if self.text else {}))
