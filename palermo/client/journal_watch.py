"""Waits for jobs: all callers waiting through one client share a journal subscription.

Each record goes to the callers that wait for its job, without polling. The subscription lasts until a few seconds after
the last caller has left. It remembers the most recent ends. Earlier ones are searched for in the journal, in one search
for all callers waiting at that time.

Everything here runs in the client's event loop.
"""

import asyncio
import itertools
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Coroutine, Iterator, Mapping
from contextlib import aclosing, contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any, TypeVar

from palermo.client.journal_reading import Away, CaughtUp, JournalEvent, Opened, Restarted, read_journal
from palermo.client.session_keeper import SessionKeeper
from palermo.contract import clock
from palermo.contract.broker import Broker
from palermo.contract.journal import FROM_START, ReadFrom, Wants
from palermo.contract.tasks import spawn
from palermo.core.journal_records import RUN_ENDS, Record, RecordBatch, RecordKind, names_any
from palermo.core.latest import remember
from palermo.errors import BrokerUnavailable, PalermoError

#: Maximum number of remembered ends, and of bytes of their results.
MAX_ENDS, MAX_BYTES = 20_000, 32 * 1024 * 1024


#: User actions that end a job without a run, and the resulting kind of end.
_ENDS_BY_ACTION: Mapping[str, RecordKind] = {
    "cancel scheduled": RecordKind.CANCELLED,
    "give up": RecordKind.FAILED,
    "discard": RecordKind.DISCARDED,
}


def job_records(batch: RecordBatch) -> Iterator[tuple[Record, bool]]:
    """Yield the records in a batch that concern one job, each with whether the job has ended.

    The record of an end names its writer. An action on many jobs yields one record per job.
    """
    for record in batch.records:
        kind, id = record["kind"], record.get("id")
        if isinstance(id, str):
            ended = RUN_ENDS.get(kind, False)
            yield ({**record, "writer": batch.writer} if ended else record), ended
        elif kind == RecordKind.ACTION and record.get("action") in _ENDS_BY_ACTION and record.get("outcome") == "done":
            ids, by = record.get("ids"), record.get("by", "somebody")
            common = {
                "kind": _ENDS_BY_ACTION[record["action"]],
                "at": record["at"],
                "message": f"{record['action']} by {by}",
            }
            for one in ids if isinstance(ids, list) else ():
                yield {**common, "id": one, "by_hand": True}, True


def cancelled_ids(record: Record) -> list[str]:
    """Return the jobs that this record cancels. They may still be running."""
    if record["kind"] != RecordKind.ACTION or record.get("action") != "cancel" or record.get("outcome") != "done":
        return []
    ids = record.get("ids")
    return [id for id in ids if isinstance(id, str)] if isinstance(ids, list) else []


def is_about(record: Record, created: int | None) -> bool:
    """Whether a record belongs to the job enqueued at this instant (Unix seconds), since ids may be reused."""
    if created is None:
        return True
    return bool(record["at"] >= created) if "by_hand" in record else record.get("created") in (None, created)


class RecentEnds:
    """The last end of each job. The oldest are dropped above the maximum."""

    def __init__(
        self,
        since: float,
        *,
        now: Callable[[], float] = clock.now,
        most: int = MAX_ENDS,
        most_bytes: int = MAX_BYTES,
    ) -> None:
        #: The local time since when all ends in the journal are included here.
        self.since = since
        self._now = now
        self._most, self._most_bytes = most, most_bytes
        self._bytes = 0
        #: The record of each job's end, and when it was read, by job id.
        self._ends: dict[str, tuple[Record, float]] = {}

    @property
    def full(self) -> bool:
        """Whether adding an end would drop another."""
        return len(self._ends) >= self._most or self._bytes >= self._most_bytes

    def add(self, record: Record) -> None:
        id = record["id"]
        self._drop(id)
        self._ends[id] = record, self._now()
        self._bytes += _size(record)
        while len(self._ends) > self._most or (self._bytes > self._most_bytes and len(self._ends) > 1):
            # A job enqueued after this instant can't be the dropped one.
            self.since = max(self.since, self._drop(next(iter(self._ends))))

    def find(self, id: str, created: int | None) -> Record | None:
        """Return the record of the job's end, or None if unknown."""
        found = self._ends.get(id)
        return found[0] if found is not None and is_about(found[0], created) else None

    def _drop(self, id: str) -> float:
        record, read_at = self._ends.pop(id, (None, 0.0))
        if record is not None:
            self._bytes -= _size(record)
        return read_at


def _size(record: Record) -> int:
    result = record.get("result")
    return sum(len(text) for text in result.values() if isinstance(text, str)) if isinstance(result, dict) else 0


#: Seconds that the subscription outlives its last caller.
LINGER = 10.0

#: Start this many seconds before the first awaited job, because jobs enqueued shortly before it may be awaited next.
_HEAD_START = 10.0

#: Start at most this many seconds ago. The subscription decodes every batch, and the journal may contain millions of
#: older ends, which are searched by job id instead.
_LATELY = 60.0

#: Number of recent batches to search first for jobs whose enqueue time is unknown.
_RECENT = 1_000

#: Job records that do not change the job's state.
_NO_STEPS = (RecordKind.LOG, RecordKind.PROGRESS)

#: Called with each journal record of a job.
OnRecord = Callable[[Record], None]

#: Locates a job. Takes its known end or None, and whether it was cancelled. Returns its end, or None to wait for it.
Check = Callable[[Record | None, bool], Awaitable[Record | None]]

T = TypeVar("T")


@dataclass(eq=False)
class Waiter:
    """A caller that waits for a job to end."""

    id: str
    created: int | None
    since: float
    on_record: OnRecord | None
    #: Whether the job was cancelled, and the check to run if that happens later.
    cancelled: bool
    check: Check | None = None
    #: An end found while older batches are still being searched; a later one may follow.
    end: Record | None = None
    future: "asyncio.Future[Record]" = field(default_factory=lambda: asyncio.get_running_loop().create_future())


class JournalWatch:
    """A client's subscription to the journal."""

    def __init__(self, keeper: SessionKeeper) -> None:
        self._keeper = keeper
        self._waiters: dict[str, set[Waiter]] = {}
        self._reading: asyncio.Task[None] | None = None
        self._stop_timer: asyncio.TimerHandle | None = None
        self._ends = RecentEnds(clock.now())
        #: Ends after those already searched for. A caller that waits for many jobs usually needs them next.
        self._later_ends = RecentEnds(clock.now())
        #: Ids of jobs cancelled since the subscription started, latest last.
        self._cancelled: dict[str, None] = {}
        #: Running checks of cancelled jobs.
        self._checks: set[asyncio.Task[None]] = set()
        #: Set once all batches from before the subscription have been read, or reading has failed.
        self._caught_up = asyncio.Event()
        #: The permanent error that ended the subscription.
        self._error: Exception | None = None
        #: The first position read, or -1.
        self._first = -1
        #: Why the journal can't be read at present, or "".
        self.read_error = ""
        #: The next search of older batches, which waits while another is running.
        self._next_search = _Search()
        self._searching = asyncio.Lock()
        #: How often a subscription was opened, for tests.
        self.subscriptions = 0

    async def session(self) -> Broker:
        """Return the client's session. Raises BrokerUnavailable within its timeout, BrokerRefused."""
        return await self._keeper.get_within_timeout()

    def read(self, start: ReadFrom, wants: Wants | None = None) -> AsyncGenerator[JournalEvent]:
        """See `read_journal`."""
        return read_journal(self._keeper, start, wants)

    async def find_end(self, id: str, created: int | None, since: float) -> Record | None:
        """Return the record of the job's end if it is in the journal, else None.

        `created` is the job's enqueue time in Unix seconds, or None. The journal is read from the instant `since`,
        where 0 means its beginning. Waits while the journal is unavailable. Raises BrokerRefused, StoreInvalid.
        """
        with self._joined(id, created, since, None) as waiter:
            return await self._find_past_end(waiter)

    async def end(
        self,
        id: str,
        created: int | None,
        since: float,
        *,
        check: Check | None = None,
        on_record: OnRecord | None = None,
    ) -> Record:
        """Wait until the job has ended, and return the record of its end. See `find_end` for arguments and errors.

        `check` is called at the start, where it may raise, and again if the job is cancelled. `on_record` gets every
        record of the job until then.
        """
        with self._joined(id, created, since, on_record) as waiter:
            found = await self._find_past_end(waiter)
            if check is not None and not waiter.future.done():
                waiter.check = check
                found = await check(found, waiter.cancelled)
            return found or await waiter.future

    async def last_record(self, id: str, created: int | None, since: float) -> Record | None:
        """Return the job's last record other than its progress and log lines, or None. See `find_end` for arguments and
        errors.
        """
        found: Record | None = None
        async for batch in self._stored(since, names_any([id])):
            for record, _ in job_records(batch):
                if record["id"] == id and record["kind"] not in _NO_STEPS and is_about(record, created):
                    found = record
        return found

    def recent_end(self, id: str, created: int | None) -> Record | None:
        """Return the record of the job's end if it was read recently. Sends no request."""
        return self._ends.find(id, created)

    # Callers

    @contextmanager
    def _joined(self, id: str, created: int | None, since: float, on_record: OnRecord | None) -> Iterator[Waiter]:
        """Add a waiting caller, and remove it afterwards."""
        waiter = Waiter(id, created, since, on_record, cancelled=id in self._cancelled)
        self._waiters.setdefault(id, set()).add(waiter)
        if self._stop_timer is not None:
            self._stop_timer.cancel()
            self._stop_timer = None
        if self._reading is None:
            self._begin(max(since, clock.now() - _LATELY) - _HEAD_START)
        try:
            yield waiter
        finally:
            self._waiters[id].discard(waiter)
            if not self._waiters[id]:
                del self._waiters[id]
            waiter.future.cancel()
            if not self._waiters and self._reading is not None:
                self._stop_timer = asyncio.get_running_loop().call_later(LINGER, self._stop)

    def _begin(self, since: float) -> None:
        self._ends = RecentEnds(since)
        self._cancelled = {}
        self._caught_up.clear()
        self._error = None
        self._first = -1
        self._reading = asyncio.ensure_future(self._follow(since))

    def _stop(self) -> None:
        self._stop_timer = None
        following, self._reading = self._reading, None
        if following is not None:
            following.cancel()

    # Older batches

    async def _find_past_end(self, waiter: Waiter) -> Record | None:
        await self._caught_up.wait()
        if self._error is not None:
            raise type(self._error)(*self._error.args) from self._error
        id, created = waiter.id, waiter.created
        found = waiter.end or self._ends.find(id, created) or self._later_ends.find(id, created)
        if found is None and waiter.since < self._ends.since:
            search = self._next_search
            search.waiters.setdefault(id, []).append(waiter)
            search.task = search.task or asyncio.ensure_future(self._search(search))
            await asyncio.wait({search.task})
            if (error := search.task.exception()) is not None:
                raise type(error)(*error.args) from error
            found = search.found.get(waiter)
        return waiter.end or found

    async def _search(self, search: "_Search") -> None:
        """Search the batches before the subscription for all current callers. Later ones wait for the next search."""
        async with self._searching:
            self._next_search = _Search()
            self._later_ends = search.later_ends
            await search.run(self._stored, before=self._first)

    async def _stored(
        self, since: float, wants: Wants | None = None, *, last: int | None = None
    ) -> AsyncGenerator[RecordBatch]:
        """Yield the batches stored at present. Waits while the journal is unavailable."""
        start = ReadFrom(last=last) if last is not None else ReadFrom(since=since) if since else FROM_START
        async with aclosing(self.read(start, wants)) as events:
            async for event in events:
                match event:
                    case RecordBatch():
                        yield event
                    case CaughtUp():
                        return
                    case Away(error) if not isinstance(error, BrokerUnavailable):
                        raise error

    # New batches

    async def _follow(self, since: float) -> None:
        """Follow the journal forever. A permanent error is passed to every caller."""
        try:
            async with aclosing(self.read(ReadFrom(since=since))) as events:
                async for event in events:
                    match event:
                        case RecordBatch():
                            self._on_batch(event)
                        case Opened():
                            self.subscriptions += 1
                            self.read_error = ""
                        case CaughtUp():
                            # Callers check the ends read until now, because a failed job may have been requeued.
                            self._caught_up.set()
                        case Restarted():
                            self._first = -1
                        case Away(BrokerUnavailable() as error):
                            self.read_error = str(error)
                        case Away(error):
                            raise error
        except Exception as error:
            self._reading, self._error = None, error
            self._caught_up.set()
            for waiter in itertools.chain.from_iterable(self._waiters.values()):
                if not waiter.future.done():
                    waiter.future.set_exception(type(error)(*error.args))

    def _on_batch(self, batch: RecordBatch) -> None:
        if self._first < 0:
            self._first = batch.position
        for record in batch.records:
            for id in cancelled_ids(record):
                self._on_cancelled(id)
        for record, ended in job_records(batch):
            if ended:
                self._ends.add(record)
            for waiter in list(self._waiters.get(record["id"], ())):
                if is_about(record, waiter.created):
                    self._notify(waiter, record, ended=ended)

    def _on_cancelled(self, id: str) -> None:
        remember(self._cancelled, id, None, most=MAX_ENDS)
        for waiter in self._waiters.get(id, ()):
            waiter.cancelled = True
            if waiter.check is not None:
                spawn(self._checks, _run_check(waiter, waiter.check))

    def _notify(self, waiter: Waiter, record: Record, *, ended: bool) -> None:
        if waiter.on_record is not None:
            waiter.on_record(record)
        if ended:
            waiter.end = record
            if self._caught_up.is_set() and not waiter.future.done():
                waiter.future.set_result(record)


async def _run_check(waiter: Waiter, check: Check) -> None:
    """Locate a cancelled job. If that fails, the journal will contain its end when a worker drops the job."""
    with suppress(PalermoError):
        found = await check(None, True)
        if found is not None and not waiter.future.done():
            waiter.future.set_result(found)


class _Search:
    """Searches older batches for the ends of several jobs."""

    def __init__(self) -> None:
        self.waiters: dict[str, list[Waiter]] = {}
        self.found: dict[Waiter, Record] = {}
        self.later_ends = RecentEnds(0.0)
        #: The running search.
        self.task: asyncio.Task[None] | None = None

    async def run(self, stored: Callable[..., AsyncIterator[RecordBatch]], *, before: int) -> None:
        """Search the last batches first if an enqueue time is unknown, then the whole journal.

        Waiters get the records before the position `before`; later ones come from the subscription.
        """
        waiters, named = [*itertools.chain.from_iterable(self.waiters.values())], names_any(self.waiters)

        def wants(body: bytes) -> bool:
            # After one end is found, the following ones go into `later_ends`.
            return (bool(self.found) and not self.later_ends.full) or named(body)

        since = min(waiter.since for waiter in waiters)
        if not since and all(waiter.on_record is None for waiter in waiters):
            async for batch in stored(since, wants, last=_RECENT):
                self._take(batch, before)
        if len(self.found) < len(waiters):
            async for batch in stored(since, wants):
                self._take(batch, before)

    def _take(self, batch: RecordBatch, before: int) -> None:
        untold = before < 0 or batch.position < before
        for record in batch.records:
            for id in cancelled_ids(record):
                for waiter in self.waiters.get(id, ()):
                    waiter.cancelled = True
        for record, ended in job_records(batch):
            for waiter in self.waiters.get(record["id"], ()):
                if not is_about(record, waiter.created):
                    continue
                if ended:
                    self.found[waiter] = record
                if untold and waiter.on_record is not None:
                    waiter.on_record(record)
            if ended and self.found and not self.later_ends.full:
                self.later_ends.add(record)


#: A coroutine function for `Client.watch`, which runs in the client's event loop with its subscription.
Question = Callable[[JournalWatch], Coroutine[Any, Any, T]]
