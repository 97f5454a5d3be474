"""Passes the journal to views: its current content for commands, or all of it as it grows.

palermo/client/journal_reading.py reads the batches, which are passed to views here. If the journal was replaced, or a
view fails to store a batch, all views are reset and reading starts again.
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

#: Called with the progress of reading, in batches because the number of records is unknown.
OnProgress = Callable[[SweepProgress], None]

#: Maximum clock difference between writers in seconds, and number of consecutive later batches after which reading
#: stops.
_SKEW, _LATER = 60.0, 100

#: Seconds until reading restarts after a view failed.
_BROKEN_PAUSE = 30.0


class JournalView(Protocol):
    """Keeps data from journal batches. Called in the reading thread, one call at a time."""

    def take(self, batch: RecordBatch) -> None:
        """Add a batch, whose position is higher than the previous one's. Should take milliseconds.

        May raise PalermoError, after which `reset` is called before further batches.
        """

    def reset(self) -> None:
        """Drop all data, because the journal is read again from a start. May raise PalermoError."""


def read_to_end(
    client: Client,
    views: Sequence[JournalView],
    start: ReadFrom = FROM_START,
    *,
    until: float = math.inf,
    wants: Wants | None = None,
    progress: OnProgress | None = None,
) -> tuple[int | None, int]:
    """Pass the current content of the journal to the views. Returns the position of the first batch that was read, if
    any, and the last one that was stored.

    Stops after _LATER consecutive batches that were written a minute or more after `until` (Unix seconds), because one
    writer's clock may be ahead. `wants` selects the batches. Raises BrokerUnavailable, BrokerRefused, and errors of
    views.
    """

    async def read(watch: JournalWatch) -> tuple[int | None, int]:
        first: int | None = None
        end = later = 0
        async with aclosing(watch.read(start, wants)) as events:
            async for event in events:
                match event:
                    case Opened():
                        end = event.end
                    case RecordBatch():
                        later = later + 1 if _is_later(event, until) else 0
                        if later >= _LATER:
                            break
                        for view in views:
                            view.take(event)
                        first = event.position if first is None else first
                        if progress is not None and end:
                            seen = min(event.position, end) - first + 1
                            progress(SweepProgress(total=max(1, end - first + 1), seen=seen))
                    case CaughtUp():
                        break
                    case Restarted():
                        raise BrokerUnavailable("the journal was deleted while it was being read. Try again.")
                    case Away(error):
                        raise error
        return first, end

    return client.watch(read)


def _is_later(batch: RecordBatch, until: float) -> bool:
    at = batch.records[0]["at"] if batch.records else None
    return isinstance(at, int | float) and at > until + _SKEW


class Progress(Struct, frozen=True, kw_only=True):
    #: Whether all batches that existed at the start have been read. Stays true while the broker is unavailable.
    ready: bool = False
    #: The positions of the first and last batches read, or None.
    first: int | None = None
    last: int | None = None
    #: The last position that existed at the start.
    end: int = -1
    #: Number of records read so far.
    records: int = 0
    #: Changes whenever the data changes.
    version: int = 0
    #: Why the journal can't be read at present, or "".
    error: str = ""

    @property
    def part(self) -> float:
        """The fraction of the journal that has been read, from 0 to 1."""
        if self.ready:
            return 1.0
        if self.first is None or self.last is None:
            return 0.0
        return min(1.0, (self.last - self.first + 1) / max(1, self.end - self.first + 1))


class JournalFollower:
    """Follows a broker's journal and passes it to views. Thread-safe."""

    def __init__(self, settings: Settings, views: Sequence[JournalView], start: ReadFrom = FROM_START) -> None:
        """Start reading only when `begin` is called. Batches before `start` are never read."""
        self._client = Client(settings)
        self._views = tuple(views)
        self._start = start
        self._progress = Progress()
        self._lock = threading.Lock()
        self._begun = False
        self._ready = threading.Event()

    @property
    def progress(self) -> Progress:
        return self._progress

    def begin(self) -> None:
        """Start reading in the background. Safe to call again."""
        with self._lock:
            if not self._begun:
                self._begun = True
                self._client.begin_watch(self._run)

    def wait(self, seconds: float) -> bool:
        """Start reading, and wait up to `seconds` for all existing batches. Returns whether they were read."""
        self.begin()
        return self._ready.wait(seconds)

    def close(self) -> None:
        """Stop reading. Safe to call again."""
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
        """Read until a view raises an error."""
        async with aclosing(watch.read(self._start)) as events:
            async for event in events:
                match event:
                    case RecordBatch():
                        self._take(event)
                    case Opened(end):
                        self._change(end=end, error="")
                    case CaughtUp():
                        log.info("journal read records=%d", self._progress.records)
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
        except Exception:  # a batch from another program must not prevent reading the next
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
