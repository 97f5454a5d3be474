"""The view of failed jobs: an index of their queues that is kept up to date with little blocking.

AMQP can reach the end of a queue only by reading all of it, and other clients can't access the jobs in the meantime.
Therefore the queues are read only while a user is viewing them, and usually only after their count has changed, which
is cheap to get. Reading takes a small part of the time (tuning.PAUSE). Jobs removed by this process are dropped from
the view immediately.

Quorum queues are read through their log, which takes no job. A note on the page shows where log and queue differ.
"""

import threading
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from palermo.client.client import Client
from palermo.client.failed_queues import failed_queues, sweep_failed
from palermo.contract.sweep import SweepProgress
from palermo.core.message import Message
from palermo.errors import BrokerRefused, NotBrowsable, NotFound, PalermoError
from palermo.inspector.inspector import Inspector
from palermo.inspector.judges import TakenJob, reading, stoppable
from palermo.jobs.redaction import masked_preview
from palermo.webui import tuning
from palermo.webui.failed.entry import Entry, EntryBuilder
from palermo.webui.failed.index import Index


class FailedJobReader:
    """Reads a broker's queues of failed jobs; for RabbitMQ's quorum queues, the log of failed jobs."""

    def __init__(self, client: Client, hidden: Sequence[str]) -> None:
        """`hidden` contains the patterns of hidden names."""
        self._client = client
        self._hidden = hidden

    def counts(self) -> dict[str, int]:
        """Return the number of messages in each failed queue. Two copies of one id count as two."""
        return self._client.run(failed_queues, again=True, within=self._client.settings.publish_timeout)

    def search_text(self, message: Message) -> str | None:
        """Return the preview of a message's arguments without hidden values."""
        return masked_preview(message, self._client.serializers, self._hidden)

    def read(
        self,
        see: Callable[[Message], object],
        *,
        progress: Callable[[SweepProgress], None] | None = None,
        stop: Callable[[], bool] | None = None,
        ids: Collection[str] = (),
    ) -> SweepProgress:
        """Call `see` with every failed job, oldest first, until `stop` returns True.

        Skips queues that can't be read without changing them. Takes time proportional to the number of jobs. With
        `ids`, other jobs may be skipped. `see` is called on the client's own thread and must be quick.
        """
        judge = stoppable(stop, reading(see))
        return self._client.run(lambda broker: sweep_failed(broker, judge, progress, only_look=True, ids=ids))


class ViewState(Struct, frozen=True, kw_only=True):
    """How well the view matches the queues."""

    #: Whether the queues have been read to their end at least once.
    ready: bool = False
    #: Whether they are being read, and the progress.
    reading: bool = False
    seen: int = 0
    total: int = 0
    #: When the last reading ended, in Unix seconds.
    at: float | None = None
    #: Seconds for which the last reading held jobs.
    took: float = 0.0
    #: The number of messages missing in the view; negative if it contains too many.
    behind: int = 0
    #: Whether the messages were counted for this answer, and not up to a second earlier.
    is_current: bool = True
    #: Number of failed jobs in queues that can't be read without changing them and have no log. Negative if the view
    #: shows more jobs than exist.
    unseen: int = 0
    #: Why the last reading failed, or "".
    error: str = ""


class FailedView:
    """The view of a broker's failed jobs. Thread-safe."""

    def __init__(
        self, inspector: Inspector, reader: FailedJobReader, *, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._inspector = inspector
        self._reader = reader
        self._clock = clock
        self.index = Index()
        self._lock = threading.Lock()
        #: Held by a reading or a command while it reads the queues.
        self._queues_lock = threading.Lock()
        self._waiting = 0
        self._closed = False
        self._state = ViewState()
        self._thread: threading.Thread | None = None
        self._number = 0
        self._counted = 0
        #: The broker's last count. A reading may miss a message that was in transit when it started.
        self._last_count = 0
        self._unseen: dict[str, int] = {}
        #: Number of jobs missing in the logs through which the last reading read queues.
        self._unlogged = 0
        self._counted_at = self._ended = -float("inf")
        self._is_requested = True

    @property
    def state(self) -> ViewState:
        """Return the state as of the last update."""
        return self._state

    def update(self, timeout: float = 0.25) -> ViewState:
        """Count the failed jobs, and start a reading if one is due. Waits at most `timeout` seconds for its end.

        Raises BrokerUnavailable, and other errors of the request.
        """
        with self._lock:
            # A count doesn't include jobs that a reading or command holds. But before the first reading, a page must
            # show the number of jobs to be read.
            reads = (self._state.ready and self._waiting > 0) or (self._thread is not None and self._thread.is_alive())
            is_due = not reads and (self._clock() - self._counted_at >= tuning.BRIEF or not self._state.ready)
            if is_due:
                self._counted_at = self._clock()
        if is_due:
            self._count()
        reader = self._start_if_due()
        if reader is not None:
            reader.join(timeout)
        return replace(self._state, is_current=is_due)

    def request_reading(self) -> None:
        """Let the next update read the queues, even if no reading is due."""
        with self._lock:
            self._is_requested, self._counted_at = True, -float("inf")

    @contextmanager
    def exclusive(self) -> Iterator[None]:
        """Enter a context for a command that reads the queues. Stops any reading, and prevents new ones."""
        with self._lock:
            self._waiting += 1
        try:
            with self._queues_lock:
                yield
        finally:
            with self._lock:
                self._waiting -= 1

    def watching(self, callbacks: dict[str, Any]) -> dict[str, Any]:
        """Return the callbacks for a command on failed jobs: the view drops the taken jobs, and all calls are passed
        on.
        """
        removed = 0

        def progress(swept: SweepProgress) -> None:
            nonlocal removed
            with self._lock:
                # Counts messages, so two copies of one job count as two.
                self._counted -= swept.removed + swept.moved - removed
                self._counted_at = -float("inf")
            removed = swept.removed + swept.moved
            callbacks["progress"](swept)

        def taken(jobs: Sequence[TakenJob]) -> None:
            self.index.drop(job.id for job in jobs)
            callbacks["on_taken"](jobs)

        return {**callbacks, "progress": progress, "on_taken": taken}

    def message(self, id: str) -> tuple[Message, bool] | None:
        """Return the failed job with this id, and whether it is complete; None if it isn't in the view."""
        found = self.index.job(id)
        return None if found is None else (found.message, found.whole)

    def close(self) -> None:
        """Stop reading and delete the view."""
        self._closed = True
        if self._thread is not None:
            self._thread.join(5)
        self.index.close()

    # -- private

    def _count(self) -> None:
        """Ask the broker for the number of failed jobs."""
        counts = self._reader.counts()
        unseen = [queue for queue in counts if self._is_harmed_by_reading(queue)]
        with self._lock:
            self._unseen = {queue: counts[queue] for queue in unseen}
            count = sum(counts.values()) - sum(self._unseen.values())
            reading = self._state.reading  # the broker's count doesn't include the jobs being read
            if not reading:
                self._last_count = count
            behind = self._state.behind if reading else count - self._counted
            self._state = replace(self._state, behind=behind, unseen=sum(self._unseen.values()) + self._unlogged)

    def _is_harmed_by_reading(self, queue: str) -> bool:
        try:
            self._inspector.jobs.list(queue, limit=0)
        except NotBrowsable:
            return True
        # deleted after it was counted; or the reading will report the missing permission
        except (NotFound, BrokerRefused):
            return False
        return False

    def _start_if_due(self) -> threading.Thread | None:
        """Start the reading thread if a reading is due. Returns the thread, or None if no reading is running."""
        with self._lock:
            if self._closed or self._waiting:
                return None
            if self._thread is not None and self._thread.is_alive():
                return self._thread
            longest = tuning.PAUSE_PER_JOB * self._counted
            pause = max(tuning.BRIEF, min(tuning.PAUSE * self._state.took, longest))
            is_whole = self._state.ready and self.index.complete
            if not self._is_requested and is_whole and self._clock() - self._ended < pause:
                return None
            self._is_requested = False
            self._number += 1
            self._state = replace(self._state, reading=True, seen=0, total=0, error="")
            self._thread = threading.Thread(target=self._read, args=(self._number,), name="palermo-failed", daemon=True)
            self._thread.start()
            return self._thread

    def _read(self, number: int) -> None:
        # When the first job was read, from which time others can't access the jobs. Opening the session before doesn't
        # hold jobs.
        began: float | None = None
        batch: list[Entry] = []
        builder = EntryBuilder(self._reader.search_text)

        def add(message: Message) -> None:
            nonlocal began
            began = self._clock() if began is None else began
            batch.append(builder.entry(message))
            if len(batch) >= tuning.LIMIT:
                self.index.put(batch, number)
                batch.clear()

        def progress(swept: SweepProgress) -> None:
            self._state = replace(self._state, seen=swept.seen, total=swept.total)

        def stop() -> bool:
            return self._closed or self._waiting > 0

        error, swept, whole = "", SweepProgress(total=0), False
        try:
            with self._queues_lock:
                swept = self._reader.read(add, progress=progress, stop=stop)
                whole = not stop()
                if batch:
                    self.index.put(batch, number)
                if whole:
                    self.index.drop_unseen(number)
        except PalermoError as problem:
            error = f"{type(problem).__name__}: {problem}"
        finally:
            took = 0.0 if began is None else self._clock() - began
            self._finish(whole=whole, error=error, swept=swept, took=took)

    def _finish(self, *, whole: bool, error: str, swept: SweepProgress, took: float) -> None:
        with self._lock:
            self._state = replace(self._state, reading=False, error=error)
            if not whole:
                # A command requested its turn, or an error ended the reading. The jobs that were read are kept, and the
                # next update reads again.
                self._is_requested = True
                return
            self._ended, self._counted, self._unlogged = self._clock(), swept.seen + swept.unseen, swept.unseen
            unseen = sum(self._unseen.values()) + swept.unseen
            self._state = replace(
                self._state,
                ready=True,
                at=time.time(),
                took=took,
                behind=self._last_count - self._counted,
                unseen=unseen,
                seen=0,
                total=0,
            )
