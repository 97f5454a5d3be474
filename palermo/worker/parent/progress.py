"""The progress and log lines of the job in one slot, for the worker's listings and for the journal."""

import asyncio
from collections import deque
from collections.abc import Callable, Mapping
from typing import Any

from palermo.core.journal_records import RecordKind
from palermo.worker.ipc.frames import Report

#: Seconds between two journal records of one job's progress.
RECORD_EVERY = 1.0

#: How many of a job's newest lines a worker keeps; the journal has them all.
KEPT_LINES = 100

Write = Callable[[RecordKind, Mapping[str, Any]], None]


class Progress:
    """The progress and log lines of the present job of one slot."""

    __slots__ = ("_reported", "_timer", "_unwritten", "_write", "fraction", "lines", "text")

    def __init__(self) -> None:
        self.fraction: float | None = None
        self.text = ""
        self.lines: deque[str] = deque(maxlen=KEPT_LINES)
        self._write: Write | None = None
        self._timer: asyncio.TimerHandle | None = None
        #: Whether the job has reported anything, as few jobs do; whether its newest progress is not yet recorded.
        self._reported = self._unwritten = False

    def begin(self, write: Write) -> None:
        """A job begins. `write` records its log lines, and its progress at most once a second."""
        self._write = write

    def add(self, report: Report) -> None:
        """Take a report of the job."""
        write = self._write
        if write is None:
            return
        self._reported = True
        for line in report.lines:
            self.lines.append(line)
            write(RecordKind.LOG, {"text": line})
        if report.moved:
            self.fraction, self.text = report.fraction, report.text
            self._unwritten = True
            if self._timer is None:
                self._record_regularly()

    def end(self) -> None:
        """The job has ended: record its last progress, and forget the job."""
        if self._reported:
            self._forget()
        self._write = None

    def _forget(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._unwritten:
            self._record()
        self._reported = False
        self.fraction, self.text = None, ""
        self.lines.clear()

    def _record_regularly(self) -> None:
        self._timer = None
        if self._unwritten:
            self._record()
            self._timer = asyncio.get_running_loop().call_later(RECORD_EVERY, self._record_regularly)

    def _record(self) -> None:
        self._unwritten = False
        if self._write is not None:
            said: dict[str, Any] = {} if self.fraction is None else {"fraction": round(self.fraction, 4)}
            self._write(RecordKind.PROGRESS, said | ({"text": self.text} if self.text else {}))
