"""Writes the journal: collects records and counts, and stores them in batches in the background.

The journal must never stop or slow down a job. If it is unavailable, storing is retried. Until then, records above the
limit are dropped and counted. Counts are always kept, because they don't grow. The last records are lost
if the process dies.
"""

import asyncio
import logging
import math
import uuid
from collections import deque
from collections.abc import Callable, Collection, Sequence
from contextlib import suppress
from time import monotonic
from typing import Any

import msgspec

from palermo.contract import clock
from palermo.contract.journal import Journal
from palermo.core.durations import Durations
from palermo.core.journal_records import JournalLevel, Record, RecordKind, encode, encode_record, is_recorded
from palermo.core.message import Message
from palermo.core.topics import Event
from palermo.core.unique_rules import EnqueueAnswer, EnqueueOutcome
from palermo.errors import BrokerUnavailable, PalermoError

log = logging.getLogger("palermo.journal")

#: Limits of a batch: it is stored this many seconds after its first record, or at this number of records or bytes.
FLUSH_EVERY = 0.25
BATCH, BATCH_BYTES = 500, 500_000

#: Counts are stored after COUNTS jobs or a number of seconds: first COUNTS_SOON, doubled each time up to COUNTS_EVERY,
#: and reset after a pause. They take about 300 bytes per queue and job name, so at four times per second a worker would
#: write a gigabyte in ten days.
COUNTS, COUNTS_SOON, COUNTS_EVERY = 500, 0.25, 5.0

#: Maximum number of records kept while the journal is unavailable.
MOST_WAITING = 20_000

#: Seconds between attempts to store a batch, doubled from the first to the last value.
_FIRST_PAUSE, _LAST_PAUSE = 1.0, 30.0


class JobCounts:
    """Counts for one job name in one queue since they were last stored."""

    __slots__ = ("outcomes", "run", "wait")

    def __init__(self) -> None:
        self.outcomes: dict[str, int] = {}
        self.wait = Durations()
        self.run = Durations()

    def record(self, at: float, queue: str, job: str) -> dict[str, Any]:
        times = self.wait.fields("wait") | self.run.fields("run")
        return {"kind": RecordKind.COUNTS, "at": at, "queue": queue, "job": job, **self.outcomes, **times}


class Counts:
    """Counts of all jobs since they were last stored, and when to store them next."""

    def __init__(self, hurry: Callable[[], None]) -> None:
        """`hurry` is called when the counts must be stored earlier than planned."""
        self._hurry = hurry
        self._jobs: dict[tuple[str, str], JobCounts] = {}
        #: Number of jobs counted, when counts were last stored, and the current interval.
        self._counted = 0
        self._stored_at = -math.inf
        self._pause = COUNTS_SOON
        #: When to store them, by the monotonic clock.
        self.due = math.inf

    def __len__(self) -> int:
        return len(self._jobs)

    def add(self, outcome: str, queue: str, job: str, wait: float | None = None, took: float | None = None) -> None:
        """Count one job. `wait` and `took` are in seconds."""
        counts = self._jobs.get((queue, job))
        if counts is None:
            counts = self._jobs[(queue, job)] = JobCounts()
        counts.outcomes[outcome] = counts.outcomes.get(outcome, 0) + 1
        if wait is not None:
            counts.wait.add(wait)
        if took is not None:
            counts.run.add(took)
        self._counted += 1
        # Fast path: read the clock once per batch, not per job.
        if self._counted == 1:
            self.due = max(monotonic() + FLUSH_EVERY, self._stored_at + self._pause)
            self._hurry()
        elif self._counted == COUNTS:
            self.due = 0.0
            self._hurry()

    def take(self, now: float) -> list[msgspec.Raw]:
        """Return the counts as records with this Unix time, and reset them."""
        jobs, self._jobs, self._counted, self.due = self._jobs, {}, 0, math.inf
        at = monotonic()
        rested = at - self._stored_at > 2 * COUNTS_EVERY
        self._pause = COUNTS_SOON if rested else min(COUNTS_EVERY, 2 * self._pause)
        self._stored_at = at
        return [encode_record(counts.record(now, queue, job)) for (queue, job), counts in jobs.items()]


class Recorder:
    """Collects the journal records of one process. Must be used from one event loop."""

    def __init__(
        self,
        level: JournalLevel,
        writer: str,
        *,
        arguments: Callable[[Message], dict[str, Any]] | None = None,
        now: Callable[[], float] = clock.now,
    ) -> None:
        """`writer` is a worker's id, or another name for this process.

        `arguments` creates the record fields for a job's arguments and options. Without it, they aren't recorded.
        """
        self.level = level
        #: The kinds of records to write.
        self.kinds = frozenset(kind for kind in RecordKind if is_recorded(kind, level))
        #: Creates the record fields for a job's arguments and options; only at the level "all".
        self.arguments = arguments if arguments is not None and level is JournalLevel.ALL else lambda message: {}
        self._writer = writer
        self._now = now
        #: Identifies this recorder. With the batch number, it identifies batches that were stored twice.
        self._source = uuid.uuid4().hex[:12]
        self._number = 0
        #: The collected records, each with the future of a caller that waits until it is stored, and their size in
        #: bytes.
        self._waiting: deque[tuple[msgspec.Raw, asyncio.Future[None] | None]] = deque()
        self._size = 0
        #: When to store them, by the monotonic clock.
        self._records_due = math.inf
        #: Whether to store everything immediately.
        self._flushing = False
        #: Creates records that are written only if they are still here at the next batch: the starts of long runs. Most
        #: are removed before that. Call `remind` after adding one.
        self.tentative: dict[object, Callable[[], Record]] = {}
        #: A batch that isn't stored yet, with the futures of its records.
        self._unstored: tuple[bytes, list[asyncio.Future[None]]] | None = None
        self._lost = 0
        self._failures = 0
        #: The task that stores batches while there is a session.
        self._writing: asyncio.Task[None] | None = None
        #: Set when a batch may be due earlier than planned, and after each attempt to store one.
        self._hurry, self._attempted = asyncio.Event(), asyncio.Event()
        self._counts = Counts(self._hurry.set)
        #: Counts a job, like `Counts.add`.
        self.count = _ignore_count if level is JournalLevel.OFF else self._counts.add

    def attach(self, journal: Journal) -> None:
        """Store into this journal from now on."""
        self.detach()
        self._writing = asyncio.ensure_future(self._write(journal))

    def detach(self) -> None:
        """Keep collected records until the next `attach`, because the session is lost."""
        if self._writing is not None:
            self._writing.cancel()
        self._writing = None
        self._attempted.set()

    def add(self, kind: str, fields: Record, *, at: float | None = None, rare: bool = False) -> None:
        """Add a record if its kind is recorded at this level, or it is `rare` and the level isn't "off".

        `at` defaults to now.
        """
        if kind in self.kinds or (rare and self.level is not JournalLevel.OFF):
            self._append({"kind": kind, "at": round(self._now() if at is None else at, 3), **fields})

    def remind(self) -> None:
        """Schedule the next batch, unless it is scheduled."""
        if self._records_due == math.inf:
            self._records_due = monotonic() + FLUSH_EVERY
            self._hurry.set()

    @property
    def is_failing(self) -> bool:
        """Whether the last attempt to write the journal failed."""
        return self._failures > 0

    async def add_confirmed(self, kind: str, fields: Record, *, timeout: float) -> None:
        """Write a record at any journal level, and return once it is stored.

        Raises BrokerUnavailable after `timeout` seconds; the record may still be stored later.
        """
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._append({"kind": kind, "at": round(self._now(), 3), **fields}, future)
        try:
            async with asyncio.timeout(timeout):
                await future
        except TimeoutError:
            raise BrokerUnavailable(f"the journal did not confirm the record within {timeout:g} s.") from None

    async def flush(self, timeout: float) -> None:
        """Store everything collected so far, within `timeout` seconds."""
        self._flushing = True
        self._hurry.set()
        with suppress(TimeoutError):
            async with asyncio.timeout(timeout):
                while self._has_any and self._writing is not None and not self._failures:
                    self._attempted.clear()
                    await self._attempted.wait()
        self._flushing = False

    async def close(self, timeout: float) -> None:
        """Flush a last time. Nothing is written afterwards."""
        await self.flush(timeout)
        self.detach()

    @property
    def unwritten(self) -> int:
        """Number of records and counts that aren't stored yet."""
        return len(self._waiting) + len(self._counts) + self._lost + (self._unstored is not None)

    @property
    def _has_any(self) -> bool:
        return bool(self._counts or self._waiting or self.tentative or self._unstored or self._lost)

    def _append(self, record: Record, stored: "asyncio.Future[None] | None" = None) -> None:
        if len(self._waiting) >= MOST_WAITING and stored is None:
            self._lost += 1
            return
        encoded = encode_record(record)
        self._waiting.append((encoded, stored))
        self._size += len(encoded)
        if stored is not None or len(self._waiting) >= BATCH or self._size > BATCH_BYTES:
            self._records_due = 0.0
            self._hurry.set()
        else:
            self.remind()

    async def _write(self, journal: Journal) -> None:
        """Store each batch when it is due."""
        while True:
            while (left := self._due_in) > 0:
                self._hurry.clear()
                with suppress(TimeoutError):
                    async with asyncio.timeout(None if left == math.inf else left):
                        await self._hurry.wait()
            stored = await self._store(journal)
            self._attempted.set()
            if not stored:
                await asyncio.sleep(min(_LAST_PAUSE, _FIRST_PAUSE * 2.0 ** (self._failures - 1)))

    @property
    def _due_in(self) -> float:
        """Seconds until the next batch is due."""
        if self._unstored is not None or (self._flushing and self._has_any):
            return 0.0
        return min(self._records_due, self._counts.due) - monotonic()

    async def _store(self, journal: Journal) -> bool:
        """Store the next batch, or the last one again if that failed. Returns whether it is stored."""
        try:
            self._unstored = self._unstored or self._next_batch()
            if self._unstored is None:
                return True
            batch, confirmed = self._unstored
            await journal.append(batch)
        except Exception as error:  # an error other than PalermoError is a bug, which must not stop the journal either
            self._failures += 1
            if self._failures == 1:
                log.warning(
                    "cannot write the journal, continuing without it error=%r",
                    str(error),
                    exc_info=not isinstance(error, PalermoError),
                )
            return False
        self._unstored = None
        if self._failures:
            log.warning("journal can be written again dropped=%d", self._lost)
            self._failures = 0
        for future in confirmed:
            if not future.done():
                future.set_result(None)
        return True

    def _next_batch(self) -> tuple[bytes, list[asyncio.Future[None]]] | None:
        """Return the next batch as bytes with the futures of its records; None if there are no more records."""
        now = round(self._now(), 3)
        records: list[msgspec.Raw] = []
        confirmed: list[asyncio.Future[None]] = []
        size = 0
        while self._waiting and len(records) < BATCH and size < BATCH_BYTES:
            record, stored = self._waiting.popleft()
            records.append(record)
            size += len(record)
            if stored is not None:
                confirmed.append(stored)
        self._size -= size
        self._records_due = 0.0 if self._waiting else math.inf
        if not self._waiting:
            records += [encode_record(make()) for make in self.tentative.values()]
            self.tentative = {}
            if self._counts and (self._flushing or self._counts.due <= monotonic()):
                records += self._counts.take(now)
        if self._lost:
            records.append(encode_record({"kind": RecordKind.LOST, "at": now, "count": self._lost}))
            self._lost = 0
        if not records:
            return None
        self._number += 1
        return encode(self._writer, records, source=self._source, number=self._number), confirmed


def record_stored(
    recorder: Recorder, messages: Message | Event | Sequence[Message], *, again: Collection[str] = ()
) -> None:
    """Record and count newly stored jobs or an event.

    `again` contains the ids of jobs that replaced an earlier enqueue, not started yet, with the same id.
    """
    if recorder.level is JournalLevel.OFF:
        return
    if isinstance(messages, Event):
        event = {"id": messages.message.id, "topic": messages.topic}
        recorder.add(RecordKind.PUBLISHED, event, at=messages.message.queued_at)
        return
    for message in (messages,) if isinstance(messages, Message) else messages:
        recorder.count(RecordKind.ENQUEUED, message.queue, message.job)
        if recorder.level is JournalLevel.ALL:
            fields: dict[str, Any] = {"id": message.id, "job": message.job, "queue": message.queue}
            if message.extra and message.parent:
                fields["parent"] = message.parent
            if message.id in again:
                fields["displaced"] = message.id
            if message.run_at is not None:
                # It may be cancelled before a worker has received it and recorded its arguments.
                fields |= {"run_at": message.run_at, **recorder.arguments(message)}
            recorder.add(RecordKind.ENQUEUED, fields, at=message.queued_at)


def record_dropped(recorder: Recorder, message: Message, answer: EnqueueAnswer) -> None:
    """Record that the job that was waiting for this key won't run, because the new one replaces it.

    Not for debounce or throttle, where a burst drops all jobs but one and would fill the journal.
    """
    if answer.outcome is EnqueueOutcome.NEXT and answer.displaced not in ("", message.id):
        reason = f"replaced by job {message.id}, which was enqueued with the same key"
        # Jobs with the same key have the same name and queue, unless the caller chose the key.
        fields = {"id": answer.displaced, "job": message.job, "queue": message.queue, "reason": reason}
        recorder.add(RecordKind.DISCARDED, fields)


def _ignore_count(outcome: str, queue: str, job: str, wait: float | None = None, took: float | None = None) -> None:
    """Do nothing, for the journal level "off"."""
