"""Writes the journal: gathers records and counts, and stores them in batches in the background.

Nothing here may stop or slow a job. If the journal is away, storing is tried again. Records for which there is no
room meanwhile are left out and counted. The counts themselves are always kept, since adding to
them takes no room. What was gathered last is lost with the process.
"""

import asyncio
import logging
import math
import uuid
from collections import deque
from collections.abc import Callable, Collection, Sequence
from contextlib import suppress
from typing import Any

import msgspec

from palermo.contract import clock
from palermo.contract.journal import Journal
from palermo.core.durations import Durations
from palermo.core.journal_records import JournalLevel, Record, RecordKind, encode, encode_record, is_wanted
from palermo.core.message import Message
from palermo.core.topics import Event
from palermo.core.unique_rules import EnqueueAnswer, EnqueueOutcome
from palermo.errors import BrokerUnavailable, PalermoError

log = logging.getLogger("palermo.journal")

#: A batch is stored this many seconds after its first record, or once it has so many records, or bytes.
FLUSH_EVERY = 0.25
BATCH, BATCH_BYTES = 500, 500_000

#: Counts are stored once there are COUNTS of them, else some seconds after the last ones: at first COUNTS_SOON, then
#: twice as many each time up to COUNTS_EVERY, and from the first again after a rest. Each time they take some 300
#: bytes for every job of every queue: four times a second that would be a gigabyte in ten days of one worker.
COUNTS, COUNTS_SOON, COUNTS_EVERY = 500, 0.25, 5.0

#: The most records that wait for a journal that is away; more are left out.
MOST_WAITING = 20_000

#: Seconds between two attempts to store a batch: doubled from the first to the last.
_FIRST_PAUSE, _LAST_PAUSE = 1.0, 30.0


class JobCounts:
    """The counts of a queue's jobs of one name since their last counts were stored."""

    __slots__ = ("outcomes", "run", "wait")

    def __init__(self) -> None:
        self.outcomes: dict[str, int] = {}
        self.wait = Durations()
        self.run = Durations()

    def record(self, at: float, queue: str, job: str) -> dict[str, Any]:
        """The counts as a record."""
        times = self.wait.fields("wait") | self.run.fields("run")
        return {"kind": RecordKind.COUNTS, "at": at, "queue": queue, "job": job, **self.outcomes, **times}


class Recorder:
    """Gathers what one process writes into the journal. Belongs to one event loop."""

    def __init__(
        self,
        level: JournalLevel,
        writer: str,
        *,
        arguments: Callable[[Message], dict[str, Any]] | None = None,
        now: Callable[[], float] = clock.now,
    ) -> None:
        """`writer` is the id of a worker, or another name for this process.

        `arguments` makes the fields of a record that hold a job's arguments and options; without it none are recorded.
        """
        self.level = level
        #: The kinds of records that are written down at all.
        self.wanted = frozenset(kind for kind in RecordKind if is_wanted(kind, level))
        #: Makes the fields of a record that hold a job's arguments and options; none below the level "all".
        self.arguments = arguments if arguments is not None and level is JournalLevel.ALL else _no_arguments
        self._writer = writer
        self._now = now
        self._journal: Journal | None = None
        #: Identifies this recorder. With a batch's number it shows which batches are one that was stored twice.
        self._source = uuid.uuid4().hex[:12]
        self._stored = 0
        #: The records that wait, each with the future that somebody waits for until it is stored, and their bytes.
        self._waiting: deque[tuple[msgspec.Raw, asyncio.Future[None] | None]] = deque()
        self._size = 0
        self._counts: dict[tuple[str, str], JobCounts] = {}
        #: How many jobs are in them; when the last were stored, by the loop's clock; how long the next may wait.
        self._counted = 0
        self._counts_at = -math.inf
        self._counts_pause = COUNTS_SOON
        #: Whether everything must be stored at once.
        self._flushing = False
        #: Makes records that are written only if they are still here when the next batch goes: the beginning of a long
        #: run. Nearly all are taken out before. After one is put in, `remind` sees to the batch.
        self.tentative: dict[object, Callable[[], Record]] = {}
        #: The futures that somebody waits for.
        self._awaited: set[asyncio.Future[None]] = set()
        #: A batch that is not stored yet, and the futures of its records.
        self._unstored: tuple[bytes, list[asyncio.Future[None]]] | None = None
        self._lost = 0
        self._failures = 0
        self._timer: asyncio.TimerHandle | None = None
        #: Whether the timer was set for records, so that no earlier one is needed.
        self._for_records = False
        self._sending: asyncio.Task[None] | None = None
        self._closed = False

    def attach(self, journal: Journal) -> None:
        """Store into this journal from now on."""
        self._journal = journal
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._has_any:
            self._flush()

    def detach(self) -> None:
        """The session is lost: keep what is gathered until the next `attach`."""
        self._journal = None

    def add(self, kind: str, fields: Record, *, at: float | None = None) -> None:
        """Add a record, if records of its kind are written; `at` is when it happened, now unless given."""
        if kind in self.wanted:
            self._append({"kind": kind, "at": round(self._now() if at is None else at, 3), **fields})

    def count(self, outcome: str, queue: str, job: str, wait: float | None = None, took: float | None = None) -> None:
        """Count one more job of this name in this queue for this outcome; its wait and its run took so many seconds."""
        if self.level is JournalLevel.OFF:
            return
        counts = self._counts.get((queue, job))
        if counts is None:
            counts = self._counts[(queue, job)] = JobCounts()
        counts.outcomes[outcome] = counts.outcomes.get(outcome, 0) + 1
        if wait is not None:
            counts.wait.add(wait)
        if took is not None:
            counts.run.add(took)
        self._counted += 1
        if self._timer is None or self._counted == COUNTS:
            self.remind()

    def remind(self) -> None:
        """Set the timer so that what is gathered is stored in time."""
        if self._sending is not None or self._closed or self._journal is None:
            return
        # Fast path: the loop is asked for its time once a batch, and not for each job.
        if self._timer is not None and self._for_records:
            return
        loop = asyncio.get_running_loop()
        at = loop.time() + (FLUSH_EVERY if self._has_records else max(FLUSH_EVERY, self._counts_in))
        if self._timer is not None:
            # After a failure the timer says when to try again.
            if self._failures or self._timer.when() <= at:
                return
            self._timer.cancel()
        self._timer, self._for_records = loop.call_at(at, self._flush), self._has_records

    @property
    def is_failing(self) -> bool:
        """Whether the last attempt to write the journal failed."""
        return self._failures > 0

    async def add_confirmed(self, kind: str, fields: Record, *, timeout: float) -> None:
        """Write a record, at any level, and return once it is stored.

        Raises BrokerUnavailable if that takes longer than so many seconds; the record may be stored later all the same.
        """
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._awaited.add(future)
        self._append({"kind": kind, "at": round(self._now(), 3), **fields}, future)
        if self._journal is not None and self._sending is None:
            self._flush()
        try:
            async with asyncio.timeout(timeout):
                await future
        except TimeoutError:
            raise BrokerUnavailable(f"the journal did not store it within {timeout:g} s.") from None
        finally:
            self._awaited.discard(future)

    async def flush(self, timeout: float) -> None:
        """Store everything that is gathered, within so many seconds."""
        self._flushing = True
        with suppress(TimeoutError):
            async with asyncio.timeout(timeout):
                while self._has_any and self._journal is not None and not self._failures:
                    self._flush()
                    if self._sending is not None:
                        await asyncio.wait({self._sending})
        self._flushing = False

    async def close(self, timeout: float) -> None:
        """Flush a last time; nothing is written after that."""
        await self.flush(timeout)
        self._closed = True
        if self._timer is not None:
            self._timer.cancel()
        if self._sending is not None:
            self._sending.cancel()

    @property
    def unwritten(self) -> int:
        """How many records and counts wait to be stored."""
        return len(self._waiting) + len(self._counts) + self._lost + (self._unstored is not None)

    @property
    def _has_any(self) -> bool:
        return bool(self._counts or self._has_records)

    @property
    def _has_records(self) -> bool:
        """Whether there is anything besides counts."""
        return bool(self._waiting or self.tentative or self._unstored or self._lost)

    @property
    def _counts_in(self) -> float:
        """Seconds until the counts must be stored."""
        if self._flushing or self._counted >= COUNTS:
            return 0.0
        return max(0.0, self._counts_at + self._counts_pause - asyncio.get_running_loop().time())

    def _append(self, record: Record, stored: "asyncio.Future[None] | None" = None) -> None:
        if len(self._waiting) >= MOST_WAITING and stored is None:
            self._lost += 1
            return
        encoded = encode_record(record)
        self._waiting.append((encoded, stored))
        self._size += len(encoded)
        if (len(self._waiting) >= BATCH or self._size > BATCH_BYTES) and not self._failures:
            self._flush()
        else:
            self.remind()

    def _flush(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        journal = self._journal
        if self._sending is not None or journal is None or not self._has_any:
            return
        if not self._has_records and self._counts_in > 0:
            self.remind()
            return
        self._sending = asyncio.ensure_future(self._store(journal))
        self._sending.add_done_callback(self._on_stored)

    def _on_stored(self, task: "asyncio.Task[None]") -> None:
        self._sending = None
        if task.cancelled() or self._closed:
            return
        if (error := task.exception()) is not None:
            log.error("the journal cannot be written: a bug", exc_info=error)
        if self._failures:
            pause = min(_LAST_PAUSE, _FIRST_PAUSE * 2.0 ** (self._failures - 1))
            self._timer = self._timer or asyncio.get_running_loop().call_later(pause, self._flush)
        elif len(self._waiting) >= BATCH or self._awaited:
            self._flush()
        elif self._has_any:
            self.remind()

    async def _store(self, journal: Journal) -> None:
        self._unstored = self._unstored or self._next_batch()
        if self._unstored is None:
            return
        batch, confirmed = self._unstored
        try:
            await journal.append(batch)
        except PalermoError as error:
            self._failures += 1
            if self._failures == 1:
                log.warning("the journal cannot be written, jobs go on without it for now error=%r", str(error))
            return
        self._unstored = None
        if self._failures:
            log.warning("the journal is written again left_out=%d", self._lost)
            self._failures = 0
        for future in confirmed:
            if not future.done():
                future.set_result(None)

    def _next_batch(self) -> tuple[bytes, list[asyncio.Future[None]]] | None:
        """The next batch as bytes, and the futures of its records; None if there are no records any more."""
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
        if not self._waiting:
            records += [encode_record(make()) for make in self.tentative.values()]
            self.tentative = {}
            if self._counts_in <= 0:
                records += [
                    encode_record(counts.record(now, queue, job)) for (queue, job), counts in self._counts.items()
                ]
                self._counts, self._counted = {}, 0
                at = asyncio.get_running_loop().time()
                rested = at - self._counts_at > 2 * COUNTS_EVERY
                self._counts_pause = COUNTS_SOON if rested else min(COUNTS_EVERY, 2 * self._counts_pause)
                self._counts_at = at
        if self._lost:
            records.append(encode_record({"kind": RecordKind.LOST, "at": now, "count": self._lost}))
            self._lost = 0
        if not records:
            return None
        self._stored += 1
        return encode(self._writer, records, source=self._source, number=self._stored), confirmed


def record_stored(
    recorder: Recorder, messages: Message | Event | Sequence[Message], *, again: Collection[str] = ()
) -> None:
    """Record and count these jobs, or this event, which have just been stored.

    `again` has the ids of those that run in place of an earlier enqueue of the same id, which had not begun.
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
                fields["instead_of"] = message.id
            if message.run_at is not None:
                # It may be cancelled before a worker gets it, and can tell its arguments.
                fields |= {"run_at": message.run_at, **recorder.arguments(message)}
            recorder.add(RecordKind.ENQUEUED, fields, at=message.queued_at)


def record_dropped(recorder: Recorder, message: Message, answer: EnqueueAnswer) -> None:
    """Record that the job which waited for the end of the present run of its key does not run: this one does.

    Not of a debounce or throttle: a burst of them drops all but one, and would fill the journal.
    """
    if answer.outcome is EnqueueOutcome.NEXT and answer.instead_of not in ("", message.id):
        reason = f"job {message.id} was enqueued with the same key, and runs instead of it"
        # Jobs that share a key have the same name and queue, unless the caller chose the key.
        fields = {"id": answer.instead_of, "job": message.job, "queue": message.queue, "reason": reason}
        recorder.add(RecordKind.DISCARDED, fields)


def _no_arguments(message: Message) -> dict[str, Any]:
    return {}
