"""The view of failed jobs: an index of the queue, kept near to it without being in the way.

AMQP has no way to look at the end of a queue but through all of it, and what is being read others
cannot reach meanwhile. So the queue is read when someone looks and the number of jobs in it, which
costs nothing to ask, is another than the view can explain; and never for more than a small part of
the time (PACE). What this process takes out itself is known at once, without reading. Nothing is
read while nobody looks.

Quorum queues are seen by their log: reading takes nothing, and the note says where log and queue differ.
"""

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace

from palermo.broker import Swept
from palermo.core.message import Message
from palermo.errors import NotBrowsable, NotFound, PalermoError
from palermo.inspector import Inspector
from palermo.verdicts import Taken
from palermo.webui.failed.entry import Entry, Taking
from palermo.webui.failed.index import Index
from palermo.webui.failed.source import Source

#: A reading that took t seconds is not repeated for PACE * t, if the queue has changed, and for STILL_PACE * t
#: if not as far as its count tells.
PACE, STILL_PACE = 15.0, 60.0

#: Seconds between two looks at the count, and at least between two readings.
GLANCE, BREATH = 1.0, 0.3

_BATCH = 500


@dataclass(frozen=True, slots=True, kw_only=True)
class State:
    """How near the view is to the queue."""

    #: Whether the queue was read to its end at least once.
    ready: bool = False
    #: Whether it is being read now, and how far.
    reading: bool = False
    seen: int = 0
    total: int = 0
    #: Unix seconds of the last reading's end.
    at: float | None = None
    #: How long it took, in seconds.
    took: float = 0.0
    #: How many messages more (or fewer) the queue holds than the view knows of; with `changed` others took and added.
    behind: int = 0
    #: How many failed jobs lie in queues that looking would harm, and are in no log that is shown instead; below 0
    #: where more are shown than there are.
    unseen: int = 0
    #: Why the last reading failed; "" if it did not.
    error: str = ""


class FailedView:
    """What is known of one broker's failed jobs. Safe to share between threads."""

    def __init__(self, inspector: Inspector, source: Source, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._inspector = inspector
        self._source = source
        self._clock = clock
        self.index = Index()
        self._lock = threading.Lock()
        #: Held by whoever goes through the queue: a reading, or a command.
        self._turn = threading.Lock()
        self._waiting = 0
        self._closed = False
        self._state = State()
        self._reader: threading.Thread | None = None
        self._number = 0
        self._counted = 0
        self._unseen: dict[str, int] = {}
        #: What the last reading could not look at in queues that are seen by their log.
        self._unlogged = 0
        self._glanced = self._ended = -float("inf")
        self._wanted = True

    @property
    def state(self) -> State:
        """How near it is, as of the last look."""
        return self._state

    def look(self, patience: float = 0.25) -> State:
        """Make sure that the view is as near to the queue as it should be; waits that long for a reading at most.

        Raises BrokerUnavailable and what else asking the broker raises.
        """
        with self._lock:
            glance = self._clock() - self._glanced >= GLANCE or not self._state.ready
            if glance:
                self._glanced = self._clock()
        if glance:
            self._glance()
        reader = self._start_if_due()
        if reader is not None:
            reader.join(patience)
        return self._state

    def refresh(self) -> None:
        """Have the next look read the queue, whatever that costs."""
        with self._lock:
            self._wanted, self._glanced = True, -float("inf")

    @contextmanager
    def taking(self) -> Iterator[None]:
        """While a command goes through the queue: a reading ends first, and none begins."""
        with self._lock:
            self._waiting += 1
        try:
            with self._turn:
                yield
        finally:
            with self._lock:
                self._waiting -= 1

    def taken(self, jobs: Sequence[Taken]) -> None:
        """These have gone from the queue by our own hand."""
        self.index.drop(job.id for job in jobs)

    def left(self, messages: int) -> None:
        """So many messages have left the queue by our own hand; of two copies of a job both count."""
        with self._lock:
            self._counted -= messages
            self._glanced = -float("inf")

    def message(self, id: str) -> tuple[Message, bool] | None:
        """The failed job of this id, as far as it is in the view, and whether that is all of it."""
        found = self.index.job(id)
        return None if found is None else (found.message, found.whole)

    def close(self) -> None:
        """Stop reading and throw the view away."""
        self._closed = True
        if self._reader is not None:
            self._reader.join(5)
        self.index.close()

    # -- behind them

    def _glance(self) -> None:
        """Ask how many there are."""
        counts = self._source.counts()
        unseen = [queue for queue in counts if self._is_harmed_by_looking(queue)]
        with self._lock:
            self._unseen = {queue: counts[queue] for queue in unseen}
            count = sum(counts.values()) - sum(self._unseen.values())
            reading = self._state.reading  # what is being read is not counted
            behind = self._state.behind if reading else count - self._counted
            self._state = replace(self._state, behind=behind, unseen=sum(self._unseen.values()) + self._unlogged)

    def _is_harmed_by_looking(self, queue: str) -> bool:
        try:
            self._inspector.jobs(queue, limit=0)
        except NotBrowsable:
            return True
        except NotFound:  # deleted since it was counted
            return False
        return False

    def _start_if_due(self) -> threading.Thread | None:
        """The thread that reads, begun if it is time to read."""
        with self._lock:
            if self._closed or self._waiting:
                return None
            if self._reader is not None and self._reader.is_alive():
                return self._reader
            pace = PACE if self._state.behind else STILL_PACE
            pause = max(BREATH if self._state.behind else GLANCE, pace * self._state.took)
            if not self._wanted and self._state.ready and self._clock() - self._ended < pause:
                return None
            self._wanted = False
            self._number += 1
            self._state = replace(self._state, reading=True, seen=0, total=0, error="")
            self._reader = threading.Thread(target=self._read, args=(self._number,), name="palermo-failed", daemon=True)
            self._reader.start()
            return self._reader

    def _read(self, number: int) -> None:
        began = self._clock()
        batch: list[Entry] = []
        taking = Taking()

        def see(message: Message) -> None:
            batch.append(taking.entry(message))
            if len(batch) >= _BATCH:
                self.index.put(batch, number)
                batch.clear()

        def progress(swept: Swept) -> None:
            self._state = replace(self._state, seen=swept.seen, total=swept.total)

        def stop() -> bool:
            return self._closed or self._waiting > 0

        error, swept, whole = "", Swept(total=0), False
        try:
            with self._turn:
                swept = self._source.read(see, progress=progress, stop=stop)
                whole = not stop()
                if batch:
                    self.index.put(batch, number)
                if whole:
                    self.index.drop_unseen(number)
        except PalermoError as problem:
            error = f"{type(problem).__name__}: {problem}"
        finally:
            self._finish(whole=whole, error=error, swept=swept, took=self._clock() - began)

    def _finish(self, *, whole: bool, error: str, swept: Swept, took: float) -> None:
        with self._lock:
            self._state = replace(self._state, reading=False, error=error)
            if not whole:
                # Asked to make room, or cut off: what was read stays, and the next look begins again.
                self._wanted = True
                return
            self._ended, self._counted, self._unlogged = self._clock(), swept.seen + swept.unseen, swept.unseen
            unseen = sum(self._unseen.values()) + swept.unseen
            self._state = replace(
                self._state, ready=True, at=time.time(), took=took, behind=0, unseen=unseen, seen=0, total=0
            )
