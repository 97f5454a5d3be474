"""Reads the journal: once to its end, for commands and programs that ask now and then, or on and on, for views.

One thread and one session with the broker serve all views of a JournalFollower. After a lost session the thread reads
on behind the last batch that was taken. It reads that batch once more, to see that it is the same. If it is not, the
journal has been deleted and made anew, or has forgotten that batch by then, and all views begin again with the journal
as it is. A batch that its writer stored twice is taken once.
"""

import asyncio
import logging
import math
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Protocol

from msgspec import Struct
from msgspec.structs import replace

from palermo.client.journal_watch import wait_first
from palermo.contract.broker import Broker
from palermo.contract.journal import FROM_START, ReadFrom, Wants
from palermo.contract.sweep import SweepProgress
from palermo.core.journal_records import RecordBatch
from palermo.errors import BrokerUnavailable, PalermoError

if TYPE_CHECKING:
    from palermo.client.client import Client
    from palermo.settings.settings import Settings

log = logging.getLogger("palermo.history")

#: The most writers whose number of batches is remembered, those heard of last.
_WRITERS = 10_000

#: A function that is told how far the reading has come: in batches, since the number of records is not known.
OnProgress = Callable[[SweepProgress], None]

#: Seconds that closing a follower may take.
_CLOSING = 5.0

#: Seconds by which the clocks of two writers may differ, and batches in a row that are later than what is wanted.
_SKEW, _LATER = 60.0, 100

#: Seconds between two attempts to read: the first pause is doubled each time up to the last one. The third is the pause
#: after a view could not keep a batch.
_FIRST_PAUSE, _LAST_PAUSE, _BROKEN_PAUSE = 0.1, 2.0, 30.0


class JournalView(Protocol):
    """An object that keeps something of what is read. Called on the reading thread, one call at a time."""

    def take(self, batch: RecordBatch) -> None:
        """Keep what matters of a batch; its position is above that of the one before. Should take milliseconds.

        May raise PalermoError: then it gets no more batches before it is `reset`.
        """

    def reset(self) -> None:
        """Forget all: the next batch is from the beginning of a journal. May raise PalermoError."""


class BatchFilter:
    """Recognizes batches that were stored twice, since the broker did not answer their writer the first time."""

    def __init__(self) -> None:
        self._written: OrderedDict[str, int] = OrderedDict()

    def is_new(self, batch: RecordBatch) -> bool:
        """Whether the batch comes for the first time. A writer sends one batch at a time, so a copy comes next."""
        if not batch.source:
            return True
        before = self._written.pop(batch.source, 0)
        self._written[batch.source] = max(before, batch.number)
        if len(self._written) > _WRITERS:
            self._written.popitem(last=False)
        return batch.number > before


def read_to_end(
    client: "Client",
    views: Sequence[JournalView],
    start: ReadFrom = FROM_START,
    *,
    before: int | None = None,
    until: float = math.inf,
    wants: Wants | None = None,
    progress: OnProgress | None = None,
) -> None:
    """Hand the views all that is in the journal at this moment, before the position `before` if there is one.

    Reading ends once _LATER batches in a row were written a minute or more after `until`, in Unix seconds: one writer's
    clock may be ahead. With `wants` only the batches that are wanted. Raises BrokerUnavailable, BrokerRefused.
    """
    client.run(lambda broker: _read(broker, views, start, before, until, wants, progress))


async def _read(
    broker: Broker,
    views: Sequence[JournalView],
    start: ReadFrom,
    before: int | None,
    until: float,
    wants: Wants | None,
    progress: OnProgress | None,
) -> None:
    once = BatchFilter()
    broken: list[PalermoError] = []
    failed, done = asyncio.Event(), asyncio.Event()
    first: int | None = None
    end = later = 0

    def take(batch: RecordBatch) -> None:
        nonlocal first, later
        if before is not None and batch.position >= before:
            done.set()
        at = batch.records[0]["at"] if batch.records else None
        later = later + 1 if isinstance(at, int | float) and at > until + _SKEW else 0
        if later >= _LATER:
            done.set()
        if broken or done.is_set() or not once.is_new(batch):
            return
        try:
            for view in views:
                view.take(batch)
        except PalermoError as error:
            broken.append(error)
            failed.set()
        first = batch.position if first is None else first
        if progress is not None and end:
            progress(SweepProgress(total=max(1, end - first + 1), seen=min(batch.position, end) - first + 1))

    reader = await broker.journal.read(take, start, wants)
    end = reader.end if before is None else min(reader.end, before - 1)
    try:
        await wait_first(reader.caught_up, reader.ended, failed, done)
    finally:
        with suppress(PalermoError):
            await reader.close()
    if broken:
        raise broken[0]
    if not (reader.caught_up.is_set() or done.is_set()):
        raise BrokerUnavailable("the journal was deleted, or the session lost, while it was being read. Try again.")


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
    """Reads one broker's journal and hands it to its views. Safe to share between threads."""

    def __init__(self, settings: "Settings", views: Sequence[JournalView], start: ReadFrom = FROM_START) -> None:
        """Nothing is read before `begin` is called. Batches before `start` are never read."""
        # Here, since a worker with metrics uses this module too, and has no client.
        from palermo.client.client import Client

        self._client = Client(settings)
        self._views = tuple(views)
        self._start = start
        self._progress = Progress()
        self._last: RecordBatch | None = None
        #: Whether the next batch is the last one, read once more.
        self._resuming = False
        #: Set when the reading has to begin anew.
        self._wrong_journal: asyncio.Event | None = None
        self._broken: PalermoError | None = None
        #: Whether views may still hold what they must forget.
        self._unclean = False
        self._once = BatchFilter()
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None
        self._ready = threading.Event()
        self._closed = threading.Event()

    @property
    def progress(self) -> Progress:
        """How far the reading has come."""
        return self._progress

    def begin(self) -> None:
        """Begin to read; returns at once. May be called again."""
        with self._lock:
            if self._thread is None and not self._closed.is_set():
                self._thread = threading.Thread(target=self._run, name="palermo-journal", daemon=True)
                self._thread.start()

    def wait(self, seconds: float) -> bool:
        """Begin to read, and wait up to `seconds` until all that was stored has been taken; returns whether it has."""
        self.begin()
        return self._ready.wait(seconds)

    def close(self) -> None:
        """Read no more. May be called again."""
        self._closed.set()
        deadline = time.monotonic() + _CLOSING
        self._client.close()
        while self._thread is not None and self._thread.is_alive() and time.monotonic() < deadline:
            # The thread may have opened a session again, before it saw that this is closed.
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
        """Read until the session is lost, the journal is deleted, or turns out to be another journal."""
        if self._unclean:
            self._clean()
        self._wrong_journal = wrong_journal = asyncio.Event()
        last = self._last
        start = self._start if last is None else ReadFrom(position=last.position)
        self._resuming = last is not None
        began, before = time.monotonic(), self._progress.records
        reader = await broker.journal.read(self._take, start)
        try:
            if last is not None and reader.end < last.position:
                wrong_journal.set()
            self._progress = replace(self._progress, end=reader.end, error="")
            await wait_first(reader.caught_up, reader.ended, wrong_journal)
            if reader.caught_up.is_set() and not wrong_journal.is_set():
                self._progress = replace(self._progress, ready=True, version=self._progress.version + 1)
                self._ready.set()
                count, took = self._progress.records - before, time.monotonic() - began
                log.info("the journal has been read records=%d seconds=%.3f", count, took)
            await wait_first(reader.ended, wrong_journal)
        finally:
            with suppress(PalermoError):
                await reader.close()
        if wrong_journal.is_set() or reader.deleted:
            self._reset()

    def _take(self, batch: RecordBatch) -> None:
        assert self._wrong_journal is not None
        if self._wrong_journal.is_set():
            return
        if self._resuming:
            self._resuming = False
            if batch != self._last:
                self._wrong_journal.set()
            return
        new = self._once.is_new(batch)
        try:
            for view in self._views if new else ():
                view.take(batch)
        except PalermoError as problem:
            self._broken = problem
            self._wrong_journal.set()
            return
        except Exception:  # a batch that another program wrote must not end the reading of what follows
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
        self._once = BatchFilter()
        self._ready.clear()
        self._progress = Progress(version=self._progress.version + 1)
        try:
            self._clean()
        except PalermoError as problem:
            self._broken = problem

    def _clean(self) -> None:
        self._unclean = True
        for view in self._views:
            view.reset()
        self._unclean = False
