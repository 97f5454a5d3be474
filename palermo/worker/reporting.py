"""What a job tells of itself while it runs, on its way from the slot to the parent: its progress and its lines.

The job's own thread only leaves its report here, in steps that an exception raised between any two of
them cannot spoil: a timeout or a cancellation may be raised in it at every one. A thread of ours, the courier,
sends it, at most so often; what a job told last is sent before its result in any case.
"""

import os
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping
from contextlib import suppress
from queue import Empty, SimpleQueue
from typing import Any

from palermo.core.failure import printable
from palermo.core.values import dataclass
from palermo.worker.signals import leave_to_main_thread

#: Seconds between two reports of a job.
EVERY = 0.1

#: Lines that are kept of a run, characters of each, and characters of the text of a progress.
MAX_LINES, MAX_LINE, MAX_TEXT = 1_000, 1_000, 200

#: What is said in place of the first line that is not kept.
NO_MORE = f"more than {MAX_LINES:,} lines, the rest is not kept"

Frame = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Report:
    """What a slot told of its job."""

    #: From 0 to 1; None where only the text says how far it is.
    fraction: float | None = None
    text: str = ""
    #: Whether it told of its progress at all.
    moved: bool = False
    lines: tuple[str, ...] = ()


def unpack_report(reply: Mapping[str, Any]) -> Report | None:
    """What `Reporter` sent; None for what is no report. It comes from a process that runs user code."""
    match reply:
        case {"report": {"lines": list(lines), "progress": None}} if _are_lines(lines):
            return Report(lines=tuple(lines))
        case {"report": {"lines": list(lines), "progress": [None | float() | int() as fraction, str(text)]}} if (
            _are_lines(lines) and (fraction is None or 0 <= fraction <= 1) and len(text) <= MAX_TEXT
        ):
            return Report(fraction, text, moved=True, lines=tuple(lines))
    return None


def _are_lines(lines: list[Any]) -> bool:
    return len(lines) <= MAX_LINES + 1 and all(isinstance(line, str) and len(line) <= MAX_LINE for line in lines)


class Courier:
    """Sends the reports of all jobs of one process, in a thread that is there once there is one."""

    def __init__(self, send: Callable[[Frame], None]) -> None:
        """`send` is called by one thread at a time."""
        self._send = send
        #: Of the process that it serves.
        self.pid = os.getpid()
        self._lock = threading.Lock()
        self._inbox: SimpleQueue[Reporter] = SimpleQueue()
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Have the thread, if it is not there."""
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="palermo reports", daemon=True)
            self._thread.start()

    def put(self, reporter: "Reporter") -> None:
        """Have what this one holds sent, when it is due. Called by jobs."""
        self._inbox.put(reporter)
        self.start()

    def deliver(self, reporter: "Reporter", *, last: bool = False) -> None:
        """Send what it holds now; nothing after the last time."""
        with self._lock:
            frame = reporter.take(last=last)
            if frame is not None:
                self._send(frame)

    def _run(self) -> None:
        leave_to_main_thread()
        held: set[Reporter] = set()
        while True:
            due = min((reporter.due for reporter in held), default=None)
            with suppress(Empty):
                held.add(self._inbox.get(timeout=None if due is None else max(0.0, due - time.monotonic())))
            now = time.monotonic()
            for reporter in [reporter for reporter in held if reporter.due <= now]:
                held.discard(reporter)
                self.deliver(reporter)


class Reporter:
    """The reports of one run of a job. What it begins with is the class's: few jobs tell anything."""

    _progress: tuple[float | None, str] | None = None
    _lines: deque[str] | None = None
    _kept = 0
    #: Whether it has told anything at all: the others end without a word to the courier.
    _told = _queued = _over = False
    #: Not to be sent before this, by the monotonic clock.
    due = 0.0

    def __init__(self, courier: Courier, slot: int | None = None) -> None:
        """`slot` is told to the parent where several share the process."""
        self._courier = courier
        self._slot = slot

    def progress(self, fraction: float | None, text: str) -> None:
        self._progress = fraction, printable(text[:MAX_TEXT])[:MAX_TEXT]
        self._put()

    def line(self, text: str) -> None:
        if self._kept > MAX_LINES:
            return
        self._kept += 1
        if self._lines is None:
            self._lines = deque()
        self._lines.append(NO_MORE if self._kept > MAX_LINES else printable(text[:MAX_LINE])[:MAX_LINE])
        self._put()

    def end(self) -> None:
        """The job has ended: send what it told last. What it leaves running reports no more."""
        if self._told:
            self._courier.deliver(self, last=True)
        else:
            self._over = True

    def take(self, *, last: bool) -> Frame | None:
        """What is to be sent; None for nothing."""
        if self._over:
            return None
        self._over = last
        # In this order: what is told from now on is put again.
        self._queued = False
        progress, self._progress = self._progress, None
        kept = self._lines
        lines = [kept.popleft() for _ in range(len(kept))] if kept else []
        if progress is None and not lines:
            return None
        self.due = time.monotonic() + EVERY
        report: Frame = {"report": {"progress": progress, "lines": lines}}
        return report if self._slot is None else {"slot": self._slot, **report}

    def _put(self) -> None:
        # In a process that the job forked there is no courier, and the way to the parent is not its own.
        if not self._queued and not self._over and os.getpid() == self._courier.pid:
            self._told = self._queued = True
            self._courier.put(self)
