"""Writing the journal: records and counts are gathered, and stored in batches behind the work's back.

Nothing here may stop or slow a job. A journal that is away is tried again, and what there is no room
for meanwhile is left out and counted: the counts themselves are always kept, since adding to
them takes none. What was gathered last is lost with the process.
"""

import asyncio
import logging
import math
import time
import uuid
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any

from palermo.core.durations import Durations
from palermo.core.journal import Kind, Level, Record, encode, is_wanted
from palermo.core.message import Message
from palermo.core.topics import Event
from palermo.errors import BrokerUnavailable, PalermoError
from palermo.journal import Journal

log = logging.getLogger("palermo.journal")

#: A batch is stored this many seconds after its first record, or when it has so many, or so many bytes of texts.
FLUSH_EVERY = 0.25
BATCH, BATCH_BYTES = 500, 500_000

#: Counts are stored when there are so many, and else some seconds after the last: at first these, then twice as many
#: each time up to the last, and from the first again after a rest. Each time they take some 300 bytes for every job of
#: every queue, which four times a second would be a gigabyte in ten days of one worker.
COUNTS, COUNTS_SOON, COUNTS_EVERY = 500, 0.25, 5.0

#: Records that wait for a journal that is away; more are left out.
MOST_WAITING = 20_000

#: Seconds between two attempts to store a batch: doubled from the first to the last.
_FIRST_PAUSE, _LAST_PAUSE = 1.0, 30.0


class Tally:
    """What a queue's jobs of one name did since their last counts were stored."""

    __slots__ = ("outcomes", "run", "wait")

    def __init__(self) -> None:
        self.outcomes: dict[str, int] = {}
        self.wait = Durations()
        self.run = Durations()

    def add(self, outcome: str, wait: float | None, took: float | None) -> None:
        self.outcomes[outcome] = self.outcomes.get(outcome, 0) + 1
        if wait is not None:
            self.wait.add(wait)
        if took is not None:
            self.run.add(took)

    def record(self, at: float, queue: str, job: str) -> dict[str, Any]:
        """Itself as a record."""
        times = self.wait.fields("wait") | self.run.fields("run")
        return {"kind": Kind.COUNTS, "at": at, "queue": queue, "job": job, **self.outcomes, **times}


class Recorder:
    """Gathers what one process has to write down. Belongs to one event loop."""

    def __init__(self, level: Level, writer: str, *, now: Callable[[], float] = time.time) -> None:
        """`writer` is the id of a worker, or says what else this process is."""
        self.level = level
        self._writer = writer
        self._now = now
        self._journal: Journal | None = None
        #: Tells batches of this recorder from all others, and from themselves: one may be stored twice.
        self._source = uuid.uuid4().hex[:12]
        self._stored = 0
        self._waiting: deque[Record] = deque()
        self._size = 0
        self._tallies: dict[tuple[str, str], Tally] = {}
        #: How many jobs are in them; when the last were stored, by the loop's clock; how long the next may wait.
        self._counted = 0
        self._counts_at = -math.inf
        self._pace = COUNTS_SOON
        #: Whether nothing may wait.
        self._hurry = False
        #: What is written down only if it still is so when the next batch goes: the beginning of a long run.
        self._maybe: dict[object, Record] = {}
        self._promised: dict[int, asyncio.Future[None]] = {}
        self._unsent: tuple[bytes, list[Record]] | None = None
        self._lost = 0
        self._failures = 0
        self._timer: asyncio.TimerHandle | None = None
        self._sending: asyncio.Task[None] | None = None
        self._closed = False

    def attach(self, journal: Journal) -> None:
        """Store to this journal from now on."""
        self._journal = journal
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._has_any:
            self._soon()

    def detach(self) -> None:
        """The session is lost: keep what there is until the next `attach`."""
        self._journal = None

    def wants(self, kind: str) -> bool:
        """Whether records of this kind are written down at all."""
        return is_wanted(kind, self.level)

    def add(self, kind: str, fields: Record, *, at: float | None = None) -> None:
        """Write this down, if records of its kind are; `at` is when it was so, now unless it says so."""
        if is_wanted(kind, self.level):
            self._put({"kind": kind, "at": self._at(at), **fields})

    def add_if_it_lasts(self, key: object, kind: str, fields: Record) -> None:
        """Write this down unless `over(key)` is said before the next batch."""
        if is_wanted(kind, self.level):
            self._maybe[key] = {"kind": kind, "at": self._at(None), **fields}
            self._soon()

    def over(self, key: object) -> None:
        """See add_if_it_lasts."""
        self._maybe.pop(key, None)

    def count(self, outcome: str, queue: str, job: str, wait: float | None = None, took: float | None = None) -> None:
        """One more job of this name in this queue came to this; its wait and its run lasted so many seconds."""
        if self.level is Level.OFF:
            return
        tally = self._tallies.get((queue, job))
        if tally is None:
            tally = self._tallies[(queue, job)] = Tally()
        tally.add(outcome, wait, took)
        self._counted += 1
        if self._timer is None or self._counted == COUNTS:
            self._soon()

    @property
    def away(self) -> bool:
        """Whether the journal could not be written when that was tried last."""
        return self._failures > 0

    async def confirmed(self, kind: str, fields: Record, *, timeout: float) -> None:
        """Write this down, at any level, and return once it is stored.

        Raises BrokerUnavailable if that takes longer than so many seconds; it may be stored later all the same.
        """
        record = {"kind": kind, "at": self._at(None), **fields}
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._promised[id(record)] = future
        self._put(record)
        if self._journal is not None and self._sending is None:
            self._flush()
        try:
            async with asyncio.timeout(timeout):
                await future
        except TimeoutError:
            raise BrokerUnavailable(f"the journal did not store it within {timeout:g} s.") from None
        finally:
            self._promised.pop(id(record), None)

    async def flush(self, timeout: float) -> None:
        """Store all that there is, within so many seconds."""
        self._hurry = True
        with suppress(TimeoutError):
            async with asyncio.timeout(timeout):
                while self._has_any and self._journal is not None and not self._failures:
                    self._flush()
                    if self._sending is not None:
                        await asyncio.wait({self._sending})
        self._hurry = False

    async def close(self, timeout: float) -> None:
        """The last flush; nothing is written after it."""
        await self.flush(timeout)
        self._closed = True
        if self._timer is not None:
            self._timer.cancel()
        if self._sending is not None:
            self._sending.cancel()

    @property
    def _has_any(self) -> bool:
        return bool(self._tallies or self._has_records)

    @property
    def _has_records(self) -> bool:
        """Whether there is anything but counts."""
        return bool(self._waiting or self._maybe or self._unsent or self._lost)

    @property
    def _counts_in(self) -> float:
        """Seconds until the counts are to be stored."""
        if self._hurry or self._counted >= COUNTS:
            return 0.0
        return max(0.0, self._counts_at + self._pace - asyncio.get_running_loop().time())

    def _at(self, at: float | None) -> float:
        return round(self._now() if at is None else at, 3)

    def _put(self, record: Record) -> None:
        if len(self._waiting) >= MOST_WAITING and id(record) not in self._promised:
            self._lost += 1
            return
        self._waiting.append(record)
        self._size += _weight(record)
        if (len(self._waiting) >= BATCH or self._size > BATCH_BYTES) and not self._failures:
            self._flush()
        else:
            self._soon()

    def _soon(self) -> None:
        """See that what there is goes when its time has come."""
        if self._sending is not None or self._closed or self._journal is None:
            return
        loop = asyncio.get_running_loop()
        at = loop.time() + (FLUSH_EVERY if self._has_records else max(FLUSH_EVERY, self._counts_in))
        if self._timer is not None:
            # After a failure it says when to try again.
            if self._failures or self._timer.when() <= at:
                return
            self._timer.cancel()
        self._timer = loop.call_at(at, self._flush)

    def _flush(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        journal = self._journal
        if self._sending is not None or journal is None or not self._has_any:
            return
        if not self._has_records and self._counts_in > 0:
            self._soon()
            return
        self._sending = asyncio.ensure_future(self._send(journal))
        self._sending.add_done_callback(self._sent)

    def _sent(self, task: "asyncio.Task[None]") -> None:
        self._sending = None
        if task.cancelled() or self._closed:
            return
        if (error := task.exception()) is not None:
            log.error("the journal cannot be written: a bug", exc_info=error)
        if self._failures:
            pause = min(_LAST_PAUSE, _FIRST_PAUSE * 2.0 ** (self._failures - 1))
            self._timer = self._timer or asyncio.get_running_loop().call_later(pause, self._flush)
        elif len(self._waiting) >= BATCH or self._promised:
            self._flush()
        elif self._has_any:
            self._soon()

    async def _send(self, journal: Journal) -> None:
        batch, records = self._unsent or self._gather()
        if not records:
            return
        self._unsent = (batch, records)
        try:
            await journal.append(batch)
        except PalermoError as error:
            self._failures += 1
            if self._failures == 1:
                log.warning("the journal cannot be written, jobs go on without it for now error=%r", str(error))
            return
        self._unsent = None
        if self._failures:
            log.warning("the journal is written again left_out=%d", self._lost)
            self._failures = 0
        for record in records:
            if (future := self._promised.get(id(record))) is not None and not future.done():
                future.set_result(None)

    def _gather(self) -> tuple[bytes, list[Record]]:
        """The next batch, and its records."""
        now = self._at(None)
        records: list[Record] = []
        size = 0
        while self._waiting and len(records) < BATCH and size < BATCH_BYTES:
            record = self._waiting.popleft()
            records.append(record)
            size += _weight(record)
        self._size = max(0, self._size - size)
        if not self._waiting:
            records += self._maybe.values()
            self._maybe = {}
            if self._counts_in <= 0:
                records += [tally.record(now, queue, job) for (queue, job), tally in self._tallies.items()]
                self._tallies, self._counted = {}, 0
                at = asyncio.get_running_loop().time()
                rested = at - self._counts_at > 2 * COUNTS_EVERY
                self._pace = COUNTS_SOON if rested else min(COUNTS_EVERY, 2 * self._pace)
                self._counts_at = at
        if self._lost:
            records.append({"kind": Kind.LOST, "at": now, "count": self._lost})
            self._lost = 0
        self._stored += 1
        return encode(self._writer, records, source=self._source, number=self._stored), records


def record_stored(recorder: Recorder, messages: Message | Event | Sequence[Message]) -> None:
    """Write down and count these jobs, or this event, which have just been stored."""
    if recorder.level is Level.OFF:
        return
    if isinstance(messages, Event):
        fields = {"id": messages.message.id, "topic": messages.topic}
        recorder.add(Kind.PUBLISHED, fields, at=messages.message.queued_at)
        return
    for message in (messages,) if isinstance(messages, Message) else messages:
        recorder.count(Kind.ENQUEUED, message.queue, message.job)
        if recorder.level is Level.ALL:
            fields = {"id": message.id, "job": message.job, "queue": message.queue}
            due = {} if message.run_at is None else {"run_at": message.run_at}
            recorder.add(Kind.ENQUEUED, fields | due, at=message.queued_at)


def _weight(value: Any) -> int:
    """The characters of all texts in it."""
    match value:
        case str():
            return len(value)
        case dict():
            return sum(map(_weight, value.values()))
        case list() | tuple():
            return sum(map(_weight, value))
    return 0
