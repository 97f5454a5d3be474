"""Waits for jobs: one subscription to the journal serves all callers that wait through one client.

A record that is stored in the journal is handed to the callers that wait for its job; nobody asks again and again. The
subscription lasts as long as a caller waits, and a while longer. It remembers the latest ends, and goes on where
it was when the session was lost. Ends from before it began are looked for in the journal once, for all
callers that ask at that time together.

All of it belongs to the client's event loop.
"""

import asyncio
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import contextmanager, suppress

from palermo.client.session_keeper import SessionKeeper
from palermo.contract import clock
from palermo.contract.broker import Broker
from palermo.contract.journal import FROM_START, JournalReader, ReadFrom, Wants
from palermo.core.journal_records import RUN_ENDS, Record, RecordBatch, RecordKind, names_any
from palermo.errors import BrokerError, BrokerUnavailable, PalermoError


async def wait_first(*events: asyncio.Event) -> None:
    """Wait until one of these is set."""
    waits = [asyncio.ensure_future(event.wait()) for event in events]
    try:
        await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for wait in waits:
            wait.cancel()


#: The most ends that are kept, and the most bytes of results with them.
MAX_ENDS, MAX_BYTES = 20_000, 32 * 1024 * 1024


#: Actions of people after which no worker runs the job any more, and the kind of end that each of them is.
_ENDS_BY_ACTION: Mapping[str, RecordKind] = {
    "cancel scheduled": RecordKind.CANCELLED,
    "give up": RecordKind.FAILED,
    "discard": RecordKind.DISCARDED,
}


def job_records(batch: RecordBatch) -> Iterator[tuple[Record, bool]]:
    """The records of a batch that are about one job, each with whether it says that the job has ended.

    A record that ends a job names its writer. An action on many jobs becomes one record for each.
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
    """The jobs that somebody cancelled by the action in this record: they may run all the same, or end only later."""
    if record["kind"] != RecordKind.ACTION or record.get("action") != "cancel" or record.get("outcome") != "done":
        return []
    ids = record.get("ids")
    return [id for id in ids if isinstance(id, str)] if isinstance(ids, list) else []


def is_about(record: Record, created: int | None) -> bool:
    """Whether a record is about the job that was enqueued at that instant (Unix seconds): ids may be used again."""
    if created is None:
        return True
    return bool(record["at"] >= created) if "by_hand" in record else record.get("created") in (None, created)


class RecentEnds:
    """The last end of each job. When there is no more room, the oldest ends are dropped."""

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
        """Whether one more end would push out another."""
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

#: Seconds before now from which it begins for a job of which no instant, or an older one, is known. It decodes all, and
#: a journal may hold millions of older ends: these are searched for by the ids of their jobs.
_LATELY = 60.0

#: How many batches of the journal's end are searched first for jobs of which no instant is known.
_RECENT = 1_000

#: Seconds between attempts to read a journal that is away, doubled from the first to the last.
_FIRST_PAUSE, _LAST_PAUSE = 0.1, 5.0

#: The records about a job that say nothing of where it is.
_NO_STEPS = (RecordKind.LOG, RecordKind.PROGRESS)

#: Gets what the journal tells of a job.
OnRecord = Callable[[Record], None]

#: Looks at a job. Gets the end that is known, None for none, and whether somebody cancelled the job; returns its end,
#: None if it is to be waited for.
Check = Callable[[Record | None, bool], Awaitable[Record | None]]


class Waiter:
    """A caller that waits for a job to end."""

    __slots__ = ("cancelled", "check", "created", "end", "future", "id", "on_record")

    def __init__(self, id: str, created: int | None, on_record: OnRecord | None) -> None:
        self.id = id
        self.created = created
        self.on_record = on_record
        #: Whether somebody cancelled the job; and what looks at it if somebody does so from now on.
        self.cancelled = False
        self.check: Check | None = None
        #: The end that was heard while the past was being read; more may follow.
        self.end: Record | None = None
        self.future: asyncio.Future[Record] = asyncio.get_running_loop().create_future()


class JournalWatch:
    """The subscription of one client to the journal."""

    def __init__(self, keeper: SessionKeeper) -> None:
        self._keeper = keeper
        self._waiters: dict[str, set[Waiter]] = {}
        self._users = 0
        self._counting: dict[asyncio.Event, tuple[str, str]] = {}
        self._reading: asyncio.Task[None] | None = None
        self._stop_timer: asyncio.TimerHandle | None = None
        self._ends = RecentEnds(clock.now())
        #: Ends after the ones last searched for: a caller that asks for one job of many asks for the next ones too.
        self._later_ends = RecentEnds(clock.now())
        #: The ids of jobs that were cancelled since the subscription began, the latest last.
        self._cancelled: dict[str, None] = {}
        #: The looks at such jobs.
        self._looks: set[asyncio.Task[None]] = set()
        #: Set once all that was stored when the subscription began has been read.
        self._caught_up = asyncio.Event()
        #: The error that ended the subscription.
        self._error: BaseException | None = None
        #: The first position that was read, and the last; -1 for none yet.
        self._first = self._last = -1
        #: Why the journal cannot be read now; "" if it can.
        self.read_error = ""
        self._searches: list[tuple[Waiter, float, asyncio.Future[Record | None]]] = []
        self._searching: asyncio.Task[None] | None = None
        #: How often reading was begun, for tests.
        self.subscriptions = 0

    async def session(self) -> Broker:
        """The client's session. Raises BrokerUnavailable within its timeout, BrokerRefused."""
        return await self._keeper.get_within_timeout()

    async def find_end(self, id: str, created: int | None, since: float) -> Record | None:
        """The record of the job's end, if the journal tells it by now; None if it does not.

        `created` is when the job was enqueued, in Unix seconds, None if unknown. `since` is the instant from which the
        journal is read, 0 for all of it. Raises BrokerRefused, StoreInvalid; waits for a journal that is away.
        """
        waiter = self._join(id, created, None, since)
        try:
            return await self._find_past_end(waiter, since)
        finally:
            self._leave(waiter)

    async def last_step(self, id: str, created: int | None, since: float) -> Record | None:
        """The last record of a step in the job's life, if there is one. Arguments and errors as of `find_end`."""
        found: list[Record] = []

        def on_batch(batch: RecordBatch) -> None:
            for record, _ in job_records(batch):
                if record["id"] == id and record["kind"] not in _NO_STEPS and is_about(record, created):
                    found[:] = [record]

        await self._read_once(on_batch, ReadFrom(since=since) if since else FROM_START, names_any([id]))
        return found[0] if found else None

    async def end(
        self,
        id: str,
        created: int | None,
        since: float,
        *,
        check: Check | None = None,
        on_record: OnRecord | None = None,
    ) -> Record:
        """Wait until the job has ended; returns the record of its end. Arguments and errors as of `find_end`.

        `check` is called at the beginning, and may raise then; and again when somebody cancels the job. `on_record`
        gets all that the journal tells of the job meanwhile.
        """
        waiter = self._join(id, created, on_record, since)
        try:
            found = await self._find_past_end(waiter, since)
            if check is not None and not waiter.future.done():
                waiter.check = check
                found = await check(found, waiter.cancelled)
            return found or await waiter.future
        finally:
            self._leave(waiter)

    def recent_end(self, id: str, created: int | None) -> Record | None:
        """The record of the job's end, if it was heard lately; asks nobody."""
        return self._ends.find(id, created)

    @contextmanager
    def counting(self, queue: str, job: str) -> Iterator[asyncio.Event]:
        """An event that is set when the journal counts successes of jobs of this name in this queue."""
        counted = asyncio.Event()
        self._counting[counted] = queue, job
        try:
            yield counted
        finally:
            del self._counting[counted]

    # The callers.

    def _join(self, id: str, created: int | None, on_record: OnRecord | None, since: float) -> Waiter:
        waiter = Waiter(id, created, on_record)
        waiter.cancelled = id in self._cancelled
        self._waiters.setdefault(id, set()).add(waiter)
        self._users += 1
        if self._stop_timer is not None:
            self._stop_timer.cancel()
            self._stop_timer = None
        if self._reading is None:
            start = max(since, clock.now() - _LATELY) - _HEAD_START
            self._ends = RecentEnds(start)
            self._cancelled = {}
            self._caught_up.clear()
            self._error = None
            self._first = self._last = -1
            self._reading = asyncio.ensure_future(self._follow(ReadFrom(since=start)))
            self._reading.add_done_callback(self._on_failure)
        return waiter

    def _leave(self, waiter: Waiter) -> None:
        waiters = self._waiters[waiter.id]
        waiters.discard(waiter)
        if not waiters:
            del self._waiters[waiter.id]
        waiter.future.cancel()
        self._users -= 1
        if not self._users and self._reading is not None:
            self._stop_timer = asyncio.get_running_loop().call_later(LINGER, self._stop)

    def _stop(self) -> None:
        self._stop_timer = None
        following, self._reading = self._reading, None
        if following is not None:
            following.cancel()

    # The past.

    async def _find_past_end(self, waiter: Waiter, since: float) -> Record | None:
        await self._wait_until_caught_up()
        found = (
            waiter.end or self._ends.find(waiter.id, waiter.created) or self._later_ends.find(waiter.id, waiter.created)
        )
        if found is None and since < self._ends.since:
            asked: asyncio.Future[Record | None] = asyncio.get_running_loop().create_future()
            self._searches.append((waiter, since, asked))
            if self._searching is None or self._searching.done():
                self._searching = asyncio.ensure_future(self._search())
            found = await asked
        return waiter.end or found

    async def _wait_until_caught_up(self) -> None:
        """Wait until the subscription has caught up; raise the error that ended it."""
        await self._caught_up.wait()
        if self._error is not None:
            raise type(self._error)(*self._error.args) from self._error

    def _on_failure(self, following: "asyncio.Task[None]") -> None:
        """The subscription cannot go on: give the error to all who wait."""
        error = None if following.cancelled() else following.exception()
        if error is None:
            return
        self._reading, self._error = None, error
        self._caught_up.set()
        for waiters in self._waiters.values():
            for waiter in waiters:
                if not waiter.future.done():
                    waiter.future.set_exception(type(error)(*error.args))

    async def _search(self) -> None:
        """Read what was before the subscription, once for all callers so far, and again for later ones."""
        while self._searches:
            asked, self._searches = self._searches, []
            search = _Search([waiter for waiter, _, _ in asked], before=self._first)
            self._later_ends = search.later_ends
            since = min(since for _, since, _ in asked)
            error: PalermoError | None = None
            try:
                if not since and all(waiter.on_record is None for waiter, _, _ in asked):
                    await self._read_once(search.on_batch, ReadFrom(last=_RECENT), search.wants)
                if len(search.found) < len(asked):
                    await self._read_once(search.on_batch, ReadFrom(since=since) if since else FROM_START, search.wants)
            except PalermoError as raised:
                error = raised
            for waiter, _, future in asked:
                if future.done():
                    continue
                if error is not None:
                    future.set_exception(type(error)(*error.args))
                else:
                    future.set_result(search.found.get(waiter))

    async def _read_once(self, on_batch: Callable[[RecordBatch], None], start: ReadFrom, wants: Wants) -> None:
        """Read from `start` to the present end of the journal. If the journal is away meanwhile, read again."""
        pause = _FIRST_PAUSE
        while True:
            session = await self._keeper.get()
            try:
                reader = await session.journal.read(on_batch, start, wants)
            except BrokerUnavailable:
                pass
            else:
                try:
                    await wait_first(reader.caught_up, reader.ended)
                    if reader.caught_up.is_set() or reader.deleted:
                        return
                finally:
                    await reader.close()
            await self._replace_if_lost(session)
            await asyncio.sleep(pause)
            pause = min(2 * pause, _LAST_PAUSE)

    # The journal as it grows.

    async def _follow(self, start: ReadFrom) -> None:
        """Read on for ever, over lost sessions and deleted journals. Raises BrokerRefused, StoreInvalid."""
        pause = _FIRST_PAUSE
        while True:
            try:
                session = await self._keeper.get()
            except BrokerUnavailable as error:
                self.read_error = str(error)
                await asyncio.sleep(pause)
                pause = min(2 * pause, _LAST_PAUSE)
                continue
            try:
                reader = await session.journal.read(self._on_batch, start)
            except BrokerUnavailable as error:
                self.read_error = str(error)
                await self._replace_if_lost(session)
                await asyncio.sleep(pause)
                pause = min(2 * pause, _LAST_PAUSE)
                continue
            self.subscriptions += 1
            self.read_error, pause = "", _FIRST_PAUSE
            start = await self._read_on(reader, start)
            await self._replace_if_lost(session)

    async def _read_on(self, reader: JournalReader, start: ReadFrom) -> ReadFrom:
        """Read until the reader ends; returns where to go on."""
        try:
            await wait_first(reader.caught_up, reader.ended)
            if reader.caught_up.is_set():
                self._catch_up(reader)
            await reader.ended.wait()
        finally:
            await reader.close()
        if reader.deleted:
            # A new journal counts anew, and nothing of it has been read.
            self._first = self._last = -1
            return FROM_START
        return ReadFrom(position=self._last + 1) if self._last >= 0 else start

    def _catch_up(self, reader: JournalReader) -> None:
        self._last = max(self._last, reader.end)
        self._caught_up.set()
        for waiters in self._waiters.values():
            for waiter in waiters:
                if waiter.end is not None and not waiter.future.done():
                    waiter.future.set_result(waiter.end)

    async def _replace_if_lost(self, session: Broker) -> None:
        """Let the keeper open another session if this one is lost, and not only the journal away."""
        lost = asyncio.ensure_future(session.lost())
        try:
            done, _ = await asyncio.wait({lost}, timeout=_FIRST_PAUSE)
        finally:
            lost.cancel()
        if not done:
            return
        with suppress(BrokerError):
            lost.result()
        self._keeper.give_up(session)

    def _on_batch(self, batch: RecordBatch) -> None:
        if self._first < 0:
            self._first = batch.position
        self._last = batch.position
        for record in batch.records if self._counting else ():
            if record["kind"] == RecordKind.COUNTS and RecordKind.SUCCEEDED in record:
                for counted, (queue, job) in self._counting.items():
                    if record.get("queue") == queue and record.get("job") == job:
                        counted.set()
        for record in batch.records:
            for id in cancelled_ids(record):
                self._note_cancel(id)
        for record, ended in job_records(batch):
            if ended:
                self._ends.add(record)
            for waiter in list(self._waiters.get(record["id"], ())):
                if is_about(record, waiter.created):
                    self._tell(waiter, record, ended=ended)

    def _note_cancel(self, id: str) -> None:
        self._cancelled.pop(id, None)
        self._cancelled[id] = None
        if len(self._cancelled) > MAX_ENDS:
            del self._cancelled[next(iter(self._cancelled))]
        for waiter in self._waiters.get(id, ()):
            waiter.cancelled = True
            if waiter.check is not None:
                look = asyncio.ensure_future(_look(waiter, waiter.check))
                self._looks.add(look)
                look.add_done_callback(self._looks.discard)

    def _tell(self, waiter: Waiter, record: Record, *, ended: bool) -> None:
        if waiter.on_record is not None:
            waiter.on_record(record)
        if ended:
            waiter.end = record
            if self._caught_up.is_set() and not waiter.future.done():
                waiter.future.set_result(record)


async def _look(waiter: Waiter, check: Check) -> None:
    """Look at a cancelled job. What cannot be seen now, the journal tells when a worker drops the job."""
    with suppress(PalermoError):
        found = await check(None, True)
        if found is not None and not waiter.future.done():
            waiter.future.set_result(found)


class _Search:
    """Looks for the ends of some jobs in the batches that are read."""

    def __init__(self, waiters: list[Waiter], *, before: int) -> None:
        """The waiters get what is stored before the position `before`: from there on they hear it anyway."""
        self.found: dict[Waiter, Record] = {}
        self.later_ends = RecentEnds(0.0)
        self._before = before
        self._waiters: dict[str, list[Waiter]] = {}
        for waiter in waiters:
            self._waiters.setdefault(waiter.id, []).append(waiter)
        self._names_any = names_any(self._waiters)

    def wants(self, body: bytes) -> bool:
        """Whether a batch with these bytes is looked through: once an end was found, for `later_ends` too."""
        return (bool(self.found) and not self.later_ends.full) or self._names_any(body)

    def on_batch(self, batch: RecordBatch) -> None:
        untold = self._before < 0 or batch.position < self._before
        for record in batch.records:
            for id in cancelled_ids(record):
                for waiter in self._waiters.get(id, ()):
                    waiter.cancelled = True
        for record, ended in job_records(batch):
            for waiter in self._waiters.get(record["id"], ()):
                if not is_about(record, waiter.created):
                    continue
                if ended:
                    self.found[waiter] = record
                if untold and waiter.on_record is not None:
                    waiter.on_record(record)
            if ended and self.found and not self.later_ends.full:
                self.later_ends.add(record)
