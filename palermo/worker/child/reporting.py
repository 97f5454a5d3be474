"""Sends the progress, log lines and saved state of a running job from the slot to the parent.

The job's thread only stores its report. This is safe even if a timeout or cancellation raises between any two steps.
Another thread (ReportSender) sends the reports, at most once every EVERY seconds per job. The last report is always
sent before the job's result.
"""

import os
import threading
import time
from collections import deque
from collections.abc import Callable
from queue import SimpleQueue
from typing import Protocol

from palermo.core.failure import printable
from palermo.worker.ipc.frames import MAX_LINE, MAX_LINES, MAX_TEXT, NO_MORE, Report
from palermo.worker.signals import block_in_this_thread

#: Minimum seconds between two reports of a job.
EVERY = 0.1


class ReportSender:
    """Sends the reports of all jobs of a process. Its thread is started by `start` or the first report."""

    def __init__(self, send: Callable[[int, Report], None]) -> None:
        """`send` is called with the slot and its report, by one thread at a time."""
        self._send = send
        #: The pid of the process in which it works.
        self.pid = os.getpid()
        self._lock = threading.Lock()
        #: Functions for the thread to call.
        self._inbox: SimpleQueue[Callable[[], None]] = SimpleQueue()
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Start the thread if it isn't running."""
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="palermo reports", daemon=True)
            self._thread.start()

    def put(self, reporter: "Reporter") -> None:
        """Queue this reporter's report for the thread. Called by jobs."""
        self.call_soon(lambda: self.deliver(reporter))
        self.start()

    def call_soon(self, act: Callable[[], None]) -> None:
        """Let the thread call this function at most EVERY seconds later."""
        self._inbox.put(act)

    def deliver(self, reporter: "Reporter", *, last: bool = False) -> None:
        """Send this reporter's report now. After the `last` one, nothing more is sent."""
        with self._lock:
            report = reporter.take(last=last)
            if report is not None:
                self._send(reporter.slot, report)

    def _run(self) -> None:
        block_in_this_thread()
        while True:
            for _ in range(self._inbox.qsize() or 1):
                self._inbox.get()()
            time.sleep(EVERY)


class Sender(Protocol):
    """Sends the reports of a process's jobs."""

    pid: int

    def put(self, reporter: "Reporter") -> None:
        """Send this reporter's report, now or soon."""

    def deliver(self, reporter: "Reporter", *, last: bool = False) -> None:
        """Send this reporter's report now. After the `last` one, nothing more is sent."""


class Reporter:
    """The reports of one run. Initial values are class attributes, because few jobs report anything."""

    _progress: tuple[float | None, str] | None = None
    _saved: str | None = None
    _lines: deque[str] | None = None
    _line_count = 0
    #: Whether the job has reported anything. If not, the sender isn't called at its end.
    _reported = _queued = _over = False

    def __init__(self, sender: Sender, slot: int) -> None:
        self.slot = slot
        self._sender = sender

    def progress(self, fraction: float | None, text: str) -> None:
        self._progress = fraction, printable(text[:MAX_TEXT])[:MAX_TEXT]
        self._put()

    def line(self, text: str) -> None:
        if self._line_count > MAX_LINES:
            return
        self._line_count += 1
        if self._lines is None:
            self._lines = deque()
        self._lines.append(NO_MORE if self._line_count > MAX_LINES else printable(text[:MAX_LINE])[:MAX_LINE])
        self._put()

    def saved(self, text: str) -> None:
        self._saved = text
        self._put()

    def end(self) -> None:
        """Mark the end of the job and send its last report. Threads that it left running can't report any more."""
        if self._reported:
            self._sender.deliver(self, last=True)
        else:
            self._over = True

    def take(self, *, last: bool) -> Report | None:
        """Return the report to send, or None."""
        if self._over:
            return None
        self._over = last
        # first, so that a report stored from now on is queued again
        self._queued = False
        progress, self._progress = self._progress, None
        stored = self._lines
        lines = [stored.popleft() for _ in range(len(stored))] if stored else []
        saved, self._saved = self._saved, None
        if progress is None and not lines and saved is None:
            return None
        fraction, text = progress or (None, "")
        return Report(fraction, text, moved=progress is not None, lines=tuple(lines), saved=saved)

    def _put(self) -> None:
        # A process forked by the job lacks this thread, and must not write to the parent.
        if not self._queued and not self._over and os.getpid() == self._sender.pid:
            self._reported = self._queued = True
            self._sender.put(self)
