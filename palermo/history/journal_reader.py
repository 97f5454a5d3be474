"""Passes the journal to views: its current content, for single commands, or all of it as it grows.

palermo/client/journal_reading.py reads; here each batch is passed to the views. If the journal was replaced, or a
view cannot keep a batch, every view is reset and reading starts again.
"""

import asyncio
import logging
import math
import threading
from collections.abc import Callable, Sequence
from contextlib import aclosing
from typing import Any, Protocol

from msgspec import Struct
from msgspec.structs import replace

from palermo.client.client import Client
from palermo.client.journal_reading import Away, CaughtUp, Opened, Restarted
from palermo.client.journal_watch import JournalWatch
from palermo.contract.journal import FROM_START, ReadFrom, Wants
from palermo.contract.sweep import SweepProgress
from palermo.core.journal_records import RecordBatch
from palermo.errors import BrokerUnavailable, PalermoError
from palermo.settings.settings import Settings

log = logging.getLogger("palermo.history")

#: Gets the progress of reading: in batches, since the number of records is unknown.
OnProgress = Callable[[SweepProgress], None]

#: Maximum clock difference between two writers, in seconds; and number of consecutive batches after the requested time.
_SKEW, _LATER = 60.0, 100

#: Seconds until reading restarts after a view could not keep a batch.
_BROKEN_PAUSE = 30.0


class JournalView(Protocol):
    """Keeps data from the read batches. Called on the reading thread, one call at a time."""

    def take(self, batch: RecordBatch) -> None:
        """Keep the relevant data of a batch; its position is above that of the previous one. Should take milliseconds.

        May raise PalermoError: then it gets no more batches before it is `reset`.
        """

    def reset(self) -> None:
        """Drop all data: the next batch is from the start of a journal. May raise PalermoError."""


def read_to_end(
    client: Client,
    views: Sequence[JournalView],
    start: ReadFrom = FROM_START,
    *,
    before: int | None = None,
    until: float = math.inf,
    wants: Wants | None = None,
    progress: OnProgress | None = None,
) -> None:
    """Pass everything that is in the journal now to the views, up to the position `before` if given.

    Reading ends after _LATER consecutive batches that were written a minute or more after `until`, in Unix seconds,
    because one writer's clock may be ahead. With `wants`, only batches that it accepts. Raises BrokerUnavailable,
    BrokerRefused, and the errors of views.
    """

    async def read(watch: JournalWatch) -> None:
        first: int | None = None
        end = later = 0
        async with aclosing(watch.read(start, wants)) as events:
            async for event in events:
                match event:
                    case Opened():
                        end = event.end if before is None else min(event.end, before - 1)
                    case RecordBatch():
                        later = later + 1 if _is_later(event, until) else 0
                        if later >= _LATER or (before is not None and event.position >= before):
                            return
                        for view in views:
                            view.take(event)
                        first = event.position if first is None else first
                        if progress is not None and end:
                            seen = min(event.position, end) - first + 1
                            progress(SweepProgress(total=max(1, end - first + 1), seen=seen))
                    case CaughtUp():
                        return
                    case Restarted():
                        raise BrokerUnavailable("the journal was deleted while it was being read. Try again.")
                    case Away(error):
                        raise error

    client.watch(read)


def _is_later(batch: RecordBatch, until: float) -> bool:
    at = batch.records[0]["at"] if batch.records else None
    return isinstance(at, int | float) and at > until + _SKEW


class Progress(Struct, frozen=True, kw_only=True):
    """The progress of reading."""

    #: Whether all batches that were stored when reading started have been read; stays true while the broker is away.
    ready: bool = False
    #: The positions of the first and last batches read; None before the first.
    first: int | None = None
    last: int | None = None
    #: The last position that was stored when reading started.
    end: int = -1
    #: Number of records read.
    records: int = 0
    #: A number that changes with every change of the data.
    version: int = 0
    #: Why the journal can't be read now; "" if it can.
    error: str = ""

    @property
    def part(self) -> float:
        """The fraction of the journal that has been read, 0 to 1."""
        if self.ready:
            return 1.0
        if self.first is None or self.last is None:
            return 0.0
        return min(1.0, (self.last - self.first + 1) / max(1, self.end - self.first + 1))


class JournalFollower:
    """Follows one broker's journal and passes it to its views. Safe to share between threads."""

    def __init__(self, settings: Settings, views: Sequence[JournalView], start: ReadFrom = FROM_START) -> None:
        """Nothing is read before `begin` is called. Batches before `start` are never read."""
        self._client = Client(settings)
        self._views = tuple(views)
        self._start = start
        self._progress = Progress()
        self._lock = threading.Lock()
        self._begun = False
        self._ready = threading.Event()

    @property
    def progress(self) -> Progress:
        """The progress of reading."""
        return self._progress

    def begin(self) -> None:
        """Start reading; returns immediately. May be called again."""
        with self._lock:
            if not self._begun:
                self._begun = True
                self._client.begin_watch(self._run)

    def wait(self, seconds: float) -> bool:
        """Start reading, and wait up to `seconds` until all stored batches have been read; returns whether they
        have."""
        self.begin()
        return self._ready.wait(seconds)

    def close(self) -> None:
        """Stop reading. May be called again."""
        with self._lock:
            self._begun = True
            self._client.close()

    async def _run(self, watch: JournalWatch) -> None:
        while True:
            try:
                self._reset()
                await self._follow(watch)
            except PalermoError as problem:
                self._ready.clear()
                self._change(error=_text(problem), ready=False)
            await asyncio.sleep(_BROKEN_PAUSE)

    async def _follow(self, watch: JournalWatch) -> None:
        """Read until a view cannot keep a batch. Raises its error."""
        async with aclosing(watch.read(self._start)) as events:
            async for event in events:
                match event:
                    case RecordBatch():
                        self._take(event)
                    case Opened(end):
                        self._change(end=end, error="")
                    case CaughtUp():
                        log.info("the journal has been read records=%d", self._progress.records)
                        self._change(ready=True)
                        self._ready.set()
                    case Restarted():
                        self._reset()
                    case Away(error):
                        self._change(error=_text(error))

    def _take(self, batch: RecordBatch) -> None:
        try:
            for view in self._views:
                view.take(batch)
        except PalermoError:
            raise
        except Exception:  # a batch from another program must not stop the reading of later ones
            log.exception("bug: cannot keep a batch of the journal position=%d", batch.position)
        first = batch.position if self._progress.first is None else self._progress.first
        self._change(first=first, last=batch.position, records=self._progress.records + len(batch.records))

    def _reset(self) -> None:
        """Drop all data."""
        self._ready.clear()
        self._progress = Progress(version=self._progress.version + 1, error=self._progress.error)
        for view in self._views:
            view.reset()

    def _change(self, **changes: Any) -> None:
        self._progress = replace(self._progress, version=self._progress.version + 1, **changes)


def _text(error: PalermoError) -> str:
    return f"{type(error).__name__}: {error}"
