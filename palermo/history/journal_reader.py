"""Hands the journal to views: its present content, for commands that ask once, or all of it as it grows.

palermo/client/journal_reading.py reads; here each batch is given to the views. If the journal becomes another one, or a
view cannot keep a batch, every view is reset and reading begins again.
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

#: Seconds by which the clocks of two writers may differ, and batches in a row that are later than what is wanted.
_SKEW, _LATER = 60.0, 100

#: Seconds until reading begins again after a view could not keep a batch.
_BROKEN_PAUSE = 30.0


class JournalView(Protocol):
    """An object that keeps something of what is read. Called on the reading thread, one call at a time."""

    def take(self, batch: RecordBatch) -> None:
        """Keep what matters of a batch; its position is above that of the one before. Should take milliseconds.

        May raise PalermoError: then it gets no more batches before it is `reset`.
        """

    def reset(self) -> None:
        """Forget all: the next batch is from the beginning of a journal. May raise PalermoError."""


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
    """Hand the views everything that is in the journal now, before the position `before` if it is given.

    Reading ends once _LATER batches in a row were written a minute or more after `until`, in Unix seconds: one writer's
    clock may be ahead. With `wants`, only batches that it accepts. Raises BrokerUnavailable, BrokerRefused, and what a
    view raises.
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
    """How far the reading has come."""

    #: Whether all that was stored when reading began has been taken; stays so while the broker is away.
    ready: bool = False
    #: The position of the first batch and of the last that have been taken; None before there was one.
    first: int | None = None
    last: int | None = None
    #: The last position that was stored when reading began.
    end: int = -1
    #: How many records have been taken.
    records: int = 0
    #: A number that differs after every change of what is known.
    version: int = 0
    #: Why the journal is not being read at this moment; "" while it is.
    error: str = ""

    @property
    def part(self) -> float:
        """The part of the journal that has been read, 0 to 1."""
        if self.ready:
            return 1.0
        if self.first is None or self.last is None:
            return 0.0
        return min(1.0, (self.last - self.first + 1) / max(1, self.end - self.first + 1))


class JournalFollower:
    """Follows one broker's journal and hands it to its views. Safe to share between threads."""

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
        """How far the reading has come."""
        return self._progress

    def begin(self) -> None:
        """Begin to read; returns immediately. May be called again."""
        with self._lock:
            if not self._begun:
                self._begun = True
                self._client.begin_watch(self._run)

    def wait(self, seconds: float) -> bool:
        """Begin to read, and wait up to `seconds` until all that was stored has been taken; returns whether it has."""
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
        except Exception:  # a batch that another program wrote must not end the reading of what follows
            log.exception("a batch of the journal cannot be kept: a bug position=%d", batch.position)
        first = batch.position if self._progress.first is None else self._progress.first
        self._change(first=first, last=batch.position, records=self._progress.records + len(batch.records))

    def _reset(self) -> None:
        """Forget everything that was read."""
        self._ready.clear()
        self._progress = Progress(version=self._progress.version + 1, error=self._progress.error)
        for view in self._views:
            view.reset()

    def _change(self, **changes: Any) -> None:
        self._progress = replace(self._progress, version=self._progress.version + 1, **changes)


def _text(error: PalermoError) -> str:
    return f"{type(error).__name__}: {error}"
