"""Waits for jobs: one subscription to the journal serves all callers that wait through one client.

Each record of the journal goes to the callers that wait for its job; the journal is never polled. The subscription
lasts as long as a caller waits, and a while longer. It remembers the latest ends. Ends from before it began are
searched in the journal once for all callers that ask at that time.

All of it belongs to the client's event loop.
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

#: Maximum number of ends that are kept, and of bytes of their results.
MAX_ENDS, MAX_BYTES = 20_000, 32 * 1024 * 1024


#: Actions of users after which no worker runs the job, and the kind of end that each of them is.
_ENDS_BY_ACTION: Mapping[str, RecordKind] = {
    "cancel scheduled": RecordKind.CANCELLED,
    "give up": RecordKind.FAILED,
    "discard": RecordKind.DISCARDED,
}


def job_records(batch: RecordBatch) -> Iterator[tuple[Record, bool]]:
    """The records of a batch that are about one job, each with whether it says that the job has ended.

    A record that ends a job names its writer. An action on many jobs is yielded as one record for each.
    """
    for record in batch.records:
        kind, id = record["kind"], record.get("id")
        if isinstance(id, str):
            ended = RUN_ENDS.get(kind, False)
            yield ({**record, "writer": batch.writer} if ended else record), ended
        elif kind == RecordKind.ACTION and record.get("action") in _ENDS_BY_ACTION and record.get("outcome") == "done":
            ids, by = record.get("ids"), record.get("by", "somebody")
            said = {
                "kind": _ENDS_BY_ACTION[record["action"]],
                "at": record["at"],
                "message": f"{record['action']} by {by}",
            }
            for one in ids if isinstance(ids, list) else ():
                yield {**said, "id": one, "by_hand": True}, True


def cancelled_ids(record: Record) -> list[str]:
    """The jobs that the action in this record cancelled: they may run anyway, or end only later."""
    if record["kind"] != RecordKind.ACTION or record.get("action") != "cancel" or record.get("outcome") != "done":
        return []
    ids = record.get("ids")
    return [id for id in ids if isinstance(id, str)] if isinstance(ids, list) else []


def is_about(record: Record, created: int | None) -> bool:
    """Whether a record is about the job that was enqueued at that instant (Unix seconds): ids may be reused."""
    if created is None:
        return True
    return bool(record["at"] >= created) if "by_hand" in record else record.get("created") in (None, created)


class RecentEnds:
    """The last end of each job. If there are too many, the oldest are dropped."""

    def __init__(
        self,
        since: float,
        *,
        now: Callable[[], float] = clock.now,
        most: int = MAX_ENDS,
        most_bytes: int = MAX_BYTES,
    ) -> None:
        #: Every end since this instant, by this process's clock, that was read from the journal is here.
        self.since = since
        self._now = now
        self._most, self._most_bytes = most, most_bytes
        self._bytes = 0
        #: By job id, the record and when it was read.
        self._ends: dict[str, tuple[Record, float]] = {}

    @property
    def full(self) -> bool:
        """Whether adding an end would drop another."""
        return len(self._ends) >= self._most or self._bytes >= self._most_bytes

    def add(self, record: Record) -> None:
        """Remember the end in this record."""
        id = record["id"]
        self._drop(id)
        self._ends[id] = record, self._now()
        self._bytes += _size(record)
        while len(self._ends) > self._most or (self._bytes > self._most_bytes and len(self._ends) > 1):
            # A job that is enqueued after this instant cannot be the one that is dropped.
            self.since = max(self.since, self._drop(next(iter(self._ends))))

    def find(self, id: str, created: int | None) -> Record | None:
        """How this job ended; None if that is not known."""
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


#: Seconds that the subscription lasts after the last caller has gone.
LINGER = 10.0

#: The subscription begins this many seconds before the first awaited job: jobs enqueued shortly before may be next.
_HEAD_START = 10.0

#: The subscription begins at most this many seconds ago. It decodes every batch, and a journal may hold millions of
#: older ends: these are searched by the ids of their jobs.
_LATELY = 60.0

#: Number of batches at the journal's end that are searched first for jobs whose instant is unknown.
_RECENT = 1_000

#: The records about a job that do not say where it is.
_NO_STEPS = (RecordKind.LOG, RecordKind.PROGRESS)

#: Gets the journal's records about a job.
OnRecord = Callable[[Record], None]

#: Locates a job. Gets the end that is known, or None, and whether the job was cancelled; returns its end, or None if
#: the job has to be waited for.
Check = Callable[[Record | None, bool], Awaitable[Record | None]]

T = TypeVar("T")


@dataclass(eq=False)
class Waiter:
    """A caller that waits for a job to end."""

    id: str
    created: int | None
    since: float
    on_record: OnRecord | None
    #: Whether the job was cancelled, and the check to run if that happens from now on.
    cancelled: bool
    check: Check | None = None
    #: The end that was read while the past was being searched; more may follow.
    end: Record | None = None
    future: "asyncio.Future[Record]" = field(default_factory=lambda: asyncio.get_running_loop().create_future())


class JournalWatch:
    """The subscription of one client to the journal."""

    def __init__(self, keeper: SessionKeeper) -> None:
        self._keeper = keeper
        self._waiters: dict[str, set[Waiter]] = {}
        self._reading: asyncio.Task[None] | None = None
        self._stop_timer: asyncio.TimerHandle | None = None
        self._ends = RecentEnds(clock.now())
        #: Ends after the ones last searched: a caller that asks for one job of many asks for the next ones too.
        self._later_ends = RecentEnds(clock.now())
        #: The ids of jobs that were cancelled since the subscription began, the latest last.
        self._cancelled: dict[str, None] = {}
        #: The running checks of such jobs.
        self._checks: set[asyncio.Task[None]] = set()
        #: Set once all that was stored when the subscription began has been read, or reading has failed.
        self._caught_up = asyncio.Event()
        #: The error that ended the subscription.
        self._error: Exception | None = None
        #: The first position that was read; -1 before that.
        self._first = -1
        #: Why the journal can't be read now; "" if it can.
        self.read_error = ""
        #: The next search of the past; held while one runs.
        self._next_search = _Search()
        self._searching = asyncio.Lock()
        #: How often the journal was opened to follow it, for tests.
        self.subscriptions = 0

    async def session(self) -> Broker:
        """The client's session. Raises BrokerUnavailable within its timeout, BrokerRefused."""
        return await self._keeper.get_within_timeout()

    def read(self, start: ReadFrom, wants: Wants | None = None) -> AsyncGenerator[JournalEvent]:
        """See `read_journal`."""
        return read_journal(self._keeper, start, wants)

    async def find_end(self, id: str, created: int | None, since: float) -> Record | None:
        """The record of the job's end, if the journal has it by now, else None.

        `created` is when the job was enqueued, in Unix seconds, None if unknown. `since` is the instant from which the
        journal is read, 0 for all of it. Raises BrokerRefused, StoreInvalid; waits for a journal that is away.
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
        """Wait until the job has ended; returns the record of its end. Arguments and errors are those of `find_end`.

        `check` is called at the beginning, and may raise then; and again if the job is cancelled. `on_record` gets
        every record of the job in the meantime.
        """
        with self._joined(id, created, since, on_record) as waiter:
            found = await self._find_past_end(waiter)
            if check is not None and not waiter.future.done():
                waiter.check = check
                found = await check(found, waiter.cancelled)
            return found or await waiter.future

    async def last_step(self, id: str, created: int | None, since: float) -> Record | None:
        """The last record of a step in the job's life, or None. Arguments and errors are those of `find_end`."""
        found: Record | None = None
        async for batch in self._stored(since, names_any([id])):
            for record, _ in job_records(batch):
                if record["id"] == id and record["kind"] not in _NO_STEPS and is_about(record, created):
                    found = record
        return found

    def recent_end(self, id: str, created: int | None) -> Record | None:
        """The record of the job's end, if it was read recently; sends no request."""
        return self._ends.find(id, created)

    # The callers.

    @contextmanager
    def _joined(self, id: str, created: int | None, since: float, on_record: OnRecord | None) -> Iterator[Waiter]:
        """A caller, and the subscription that it needs."""
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

    # The past.

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
        """Read what was before the subscription, once for all callers so far. Later ones wait for the next search."""
        async with self._searching:
            self._next_search = _Search()
            self._later_ends = search.later_ends
            await search.run(self._stored, before=self._first)

    async def _stored(
        self, since: float, wants: Wants | None = None, *, last: int | None = None
    ) -> AsyncGenerator[RecordBatch]:
        """The batches that are in the journal now. If the journal is away, this waits for it."""
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

    # The journal as it grows.

    async def _follow(self, since: float) -> None:
        """Follow the journal forever. A permanent error goes to every caller."""
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
                            self._on_caught_up()
                        case Restarted():
                            self._first = -1
                        case Away(BrokerUnavailable() as error):
                            self.read_error = str(error)
                        case Away(error):
                            raise error
        except Exception as error:
            self._reading, self._error = None, error
            self._caught_up.set()
            for waiter in self._all_waiters():
                if not waiter.future.done():
                    waiter.future.set_exception(type(error)(*error.args))

    def _on_caught_up(self) -> None:
        self._caught_up.set()
        for waiter in self._all_waiters():
            if waiter.end is not None and not waiter.future.done():
                waiter.future.set_result(waiter.end)

    def _all_waiters(self) -> Iterator[Waiter]:
        return itertools.chain.from_iterable(self._waiters.values())

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
                    self._tell(waiter, record, ended=ended)

    def _on_cancelled(self, id: str) -> None:
        remember(self._cancelled, id, None, most=MAX_ENDS)
        for waiter in self._waiters.get(id, ()):
            waiter.cancelled = True
            if waiter.check is not None:
                spawn(self._checks, _run_check(waiter, waiter.check))

    def _tell(self, waiter: Waiter, record: Record, *, ended: bool) -> None:
        if waiter.on_record is not None:
            waiter.on_record(record)
        if ended:
            waiter.end = record
            if self._caught_up.is_set() and not waiter.future.done():
                waiter.future.set_result(record)


async def _run_check(waiter: Waiter, check: Check) -> None:
    """Locate a cancelled job. If that fails, the journal has its end once a worker drops the job."""
    with suppress(PalermoError):
        found = await check(None, True)
        if found is not None and not waiter.future.done():
            waiter.future.set_result(found)


class _Search:
    """Searches the past of the journal for the ends of some jobs."""

    def __init__(self) -> None:
        self.waiters: dict[str, list[Waiter]] = {}
        self.found: dict[Waiter, Record] = {}
        self.later_ends = RecentEnds(0.0)
        #: Runs it once there is a waiter.
        self.task: asyncio.Task[None] | None = None

    async def run(self, stored: Callable[..., AsyncIterator[RecordBatch]], *, before: int) -> None:
        """Read the end of the journal first if no instant is known, then all of it.

        The waiters get the records before the position `before`: the later ones they get from the subscription.
        """
        waiters, named = [*itertools.chain.from_iterable(self.waiters.values())], names_any(self.waiters)

        def wants(body: bytes) -> bool:
            # Once an end was found, the next ones are for `later_ends`.
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


#: A coroutine function that runs with the client's one watch, in its event loop: what `Client.watch` takes.
Question = Callable[[JournalWatch], Coroutine[Any, Any, T]]
