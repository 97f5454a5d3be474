"""Reading the journal for as long as someone wants to know: through lost sessions, and after it was made anew.

One thread, one session with the broker and one reading serve all that keep something of it. After
a lost session reading goes on behind the last batch that was taken. That batch is read once more, to see
that it is the same: where it is not, the journal has been deleted and made anew, or has forgotten
that batch by then, and all begin again with what there is. A batch that its writer stored twice is taken once.
"""

import asyncio
import logging
import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace

from palermo.broker import Broker
from palermo.client import Client
from palermo.config import Settings
from palermo.core.journal import Batch
from palermo.core.values import dataclass
from palermo.errors import PalermoError
from palermo.first_of import first_of
from palermo.history.reading import Once, Taker
from palermo.journal import FIRST, Start

log = logging.getLogger("palermo.history")

#: Seconds that closing may take.
_CLOSING = 5.0

#: Seconds between two attempts to read, doubled each time up to the last; and after what is kept could not be.
_FIRST_PAUSE, _LAST_PAUSE, _BROKEN_PAUSE = 0.1, 2.0, 30.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """How far reading has come."""

    #: Whether all that was stored when reading began has been taken; stays so while the broker is away.
    ready: bool = False
    #: The position of the first batch and of the last that have been taken; None before there was one.
    first: int | None = None
    last: int | None = None
    #: The last position that was stored when reading began.
    end: int = -1
    #: How many records have been taken.
    records: int = 0
    #: Another number after every change of what is known.
    version: int = 0
    #: Why the journal is not being read at this moment; "" while it is.
    error: str = ""

    @property
    def part(self) -> float:
        """How much of the way has been gone, 0 to 1."""
        if self.ready:
            return 1.0
        if self.first is None or self.last is None:
            return 0.0
        return min(1.0, (self.last - self.first + 1) / max(1, self.end - self.first + 1))


class Following:
    """Reads one broker's journal and hands it to its takers. Safe to share between threads."""

    def __init__(self, settings: Settings, takers: Sequence[Taker], start: Start = FIRST) -> None:
        """Nothing is read before `begin`. What is before `start` is never read."""
        self._client = Client(settings)
        self._takers = tuple(takers)
        self._start = start
        self._progress = Progress()
        self._last: Batch | None = None
        #: Whether the next batch is the last one once more.
        self._resuming = False
        #: Set where reading has to begin anew.
        self._astray: asyncio.Event | None = None
        self._broken: PalermoError | None = None
        #: Whether takers may still hold what is to be forgotten.
        self._unclean = False
        self._once = Once()
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None
        self._ready = threading.Event()
        self._closed = threading.Event()

    @property
    def progress(self) -> Progress:
        """How far it has come."""
        return self._progress

    def begin(self) -> None:
        """Begin to read; returns at once. May be called again."""
        with self._lock:
            if self._thread is None and not self._closed.is_set():
                self._thread = threading.Thread(target=self._run, name="palermo-journal", daemon=True)
                self._thread.start()

    def wait(self, seconds: float) -> bool:
        """Begin, and wait so long at most until all that was stored has been taken; whether it has."""
        self.begin()
        return self._ready.wait(seconds)

    def close(self) -> None:
        """Read no more. May be called again."""
        self._closed.set()
        deadline = time.monotonic() + _CLOSING
        self._client.close()
        while self._thread is not None and self._thread.is_alive() and time.monotonic() < deadline:
            # It may have opened a session again, since it had not heard.
            self._thread.join(0.1)
            self._client.close()

    def _run(self) -> None:
        pause = _FIRST_PAUSE
        while not self._closed.is_set():
            before = self._progress.records
            try:
                self._client.run(self._follow, again=True)
                error = "The session with the broker was lost."
            except PalermoError as problem:
                error = f"{type(problem).__name__}: {problem}"
            if self._broken is not None:
                error, pause, self._broken = f"{type(self._broken).__name__}: {self._broken}", _BROKEN_PAUSE, None
            elif self._progress.records != before:
                pause = _FIRST_PAUSE
            self._progress = replace(self._progress, error=error)
            self._closed.wait(pause)
            pause = min(2 * pause, _LAST_PAUSE)

    async def _follow(self, broker: Broker) -> None:
        """Read until the session is lost, the journal deleted, or what is read is another journal's."""
        if self._unclean:
            self._clean()
        self._astray = astray = asyncio.Event()
        last = self._last
        start = self._start if last is None else Start(position=last.position)
        self._resuming = last is not None
        began, before = time.monotonic(), self._progress.records
        reader = await broker.journal.read(self._take, start)
        try:
            if last is not None and reader.end < last.position:
                astray.set()
            self._progress = replace(self._progress, end=reader.end, error="")
            await first_of(reader.caught_up, reader.ended, astray)
            if reader.caught_up.is_set() and not astray.is_set():
                self._progress = replace(self._progress, ready=True, version=self._progress.version + 1)
                self._ready.set()
                count, took = self._progress.records - before, time.monotonic() - began
                log.info("the journal has been read records=%d seconds=%.3f", count, took)
            await first_of(reader.ended, astray)
        finally:
            with suppress(PalermoError):
                await reader.close()
        if astray.is_set() or reader.deleted:
            self._reset()

    def _take(self, batch: Batch) -> None:
        assert self._astray is not None
        if self._astray.is_set():
            return
        if self._resuming:
            self._resuming = False
            if batch != self._last:
                self._astray.set()
            return
        new = self._once.is_new(batch)
        try:
            for taker in self._takers if new else ():
                taker.take(batch)
        except PalermoError as problem:
            self._broken = problem
            self._astray.set()
            return
        except Exception:  # what foreign hands wrote must not be the end of all that comes after it
            log.exception("a batch of the journal cannot be kept: a bug position=%d", batch.position)
        self._last = batch
        now = self._progress
        self._progress = replace(
            now,
            first=batch.position if now.first is None else now.first,
            last=batch.position,
            records=now.records + len(batch.records),
            version=now.version + 1,
        )

    def _reset(self) -> None:
        self._last = None
        self._once = Once()
        self._ready.clear()
        self._progress = Progress(version=self._progress.version + 1)
        try:
            self._clean()
        except PalermoError as problem:
            self._broken = problem

    def _clean(self) -> None:
        self._unclean = True
        for taker in self._takers:
            taker.reset()
        self._unclean = False
