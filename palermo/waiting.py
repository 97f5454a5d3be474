"""Waiting for jobs: one subscription to the journal for all who wait through one client.

What is stored in the journal is handed to whoever waits for its job; nobody asks again and again. The
subscription is there as long as somebody waits and a while longer, remembers the latest ends, and goes on where
it was when the session was lost. What ended before it began is looked for in the journal once, for all
who ask at that time together.

All of it belongs to the client's event loop.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager, suppress

from palermo.broker import Broker
from palermo.core.journal import Batch, Kind, Record
from palermo.ends import Ends, is_of, told
from palermo.errors import BrokerError, BrokerUnavailable
from palermo.first_of import first_of
from palermo.journal import FIRST, Reader, Start
from palermo.session_keeper import SessionKeeper

#: Seconds that the subscription lasts when nobody waits any more.
LINGER = 10.0

#: Seconds before the first job that somebody waits for: others that were enqueued shortly before may be next.
_HEAD_START = 10.0

#: Seconds between attempts to read a journal that is away, doubled from the first to the last.
_FIRST_PAUSE, _LAST_PAUSE = 0.1, 5.0

#: Is given what the journal tells of a job.
OnRecord = Callable[[Record], None]


class Waiter:
    """Somebody who waits for a job to end."""

    __slots__ = ("created", "end", "future", "id", "on_record")

    def __init__(self, id: str, created: int | None, on_record: OnRecord | None) -> None:
        self.id = id
        self.created = created
        self.on_record = on_record
        #: What was heard of its end while the past was being read: more may follow.
        self.end: Record | None = None
        self.future: asyncio.Future[Record] = asyncio.get_running_loop().create_future()


class Watch:
    """The subscription of one client."""

    def __init__(self, keeper: SessionKeeper, *, now: Callable[[], float] = time.time) -> None:
        self._keeper = keeper
        self._now = now
        self._waiters: dict[str, set[Waiter]] = {}
        self._users = 0
        self._counting: dict[asyncio.Event, tuple[str, str]] = {}
        self._following: asyncio.Task[None] | None = None
        self._lingering: asyncio.TimerHandle | None = None
        self._ends = Ends(now())
        #: What ended after what was searched for last: who asks for one job of many asks for the next ones too.
        self._nearby = Ends(now())
        #: Set once all that was stored when the subscription began has been read.
        self._caught_up = asyncio.Event()
        #: What ended it.
        self._error: BaseException | None = None
        #: Where it began and how far it is; -1 for nowhere yet.
        self._first = self._last = -1
        #: Why the journal cannot be read now; "" if it can.
        self.trouble = ""
        self._asked: list[tuple[Waiter, float, asyncio.Future[Record | None]]] = []
        self._searching: asyncio.Task[None] | None = None
        #: How often reading was begun, for those who doubt.
        self.subscriptions = 0

    async def session(self) -> Broker:
        """The client's session. Raises BrokerUnavailable within its timeout, BrokerRefused."""
        return await self._keeper.get_in_time()

    async def known(self, id: str, created: int | None, since: float) -> Record | None:
        """How the job ended, if the journal tells that by now; None if it does not.

        `created` are the Unix seconds of its enqueuing, None if unknown; `since` those from which the journal is
        asked, 0 for all of it. Raises BrokerRefused, StoreInvalid; waits for a journal that is away.
        """
        waiter = self._join(id, created, None, since)
        try:
            return await self._past(waiter, since)
        finally:
            self._leave(waiter)

    async def end(
        self,
        id: str,
        created: int | None,
        since: float,
        *,
        doubt: Callable[[Record | None], Awaitable[Record | None]] | None = None,
        on_record: OnRecord | None = None,
    ) -> Record:
        """How the job ended, as soon as it has; arguments and errors as of `known`.

        `doubt` is asked about what is known at the beginning, None for nothing, and gives what to make of it: the
        end, or None to wait for it. It may raise. `on_record` gets all that the journal tells of the job meanwhile.
        """
        waiter = self._join(id, created, on_record, since)
        try:
            found = await self._past(waiter, since)
            if doubt is not None and not waiter.future.done():
                found = await doubt(found)
            return found or await waiter.future
        finally:
            self._leave(waiter)

    def remembered(self, id: str, created: int | None) -> Record | None:
        """How the job ended, if that was heard lately; asks nobody."""
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

    # Who waits.

    def _join(self, id: str, created: int | None, on_record: OnRecord | None, since: float) -> Waiter:
        waiter = Waiter(id, created, on_record)
        self._waiters.setdefault(id, set()).add(waiter)
        self._users += 1
        if self._lingering is not None:
            self._lingering.cancel()
            self._lingering = None
        if self._following is None:
            start = max(0.0, since - _HEAD_START)
            self._ends = Ends(start, now=self._now)
            self._caught_up.clear()
            self._error = None
            self._first = self._last = -1
            self._following = asyncio.ensure_future(self._follow(Start(since=start) if start else FIRST))
            self._following.add_done_callback(self._failed)
        return waiter

    def _leave(self, waiter: Waiter) -> None:
        waiters = self._waiters[waiter.id]
        waiters.discard(waiter)
        if not waiters:
            del self._waiters[waiter.id]
        waiter.future.cancel()
        self._users -= 1
        if not self._users and self._following is not None:
            self._lingering = asyncio.get_running_loop().call_later(LINGER, self._rest)

    def _rest(self) -> None:
        self._lingering = None
        following, self._following = self._following, None
        if following is not None:
            following.cancel()

    # What has been.

    async def _past(self, waiter: Waiter, since: float) -> Record | None:
        await self._ready()
        found = waiter.end or self._ends.find(waiter.id, waiter.created) or self._nearby.find(waiter.id, waiter.created)
        if found is None and since < self._ends.since:
            asked: asyncio.Future[Record | None] = asyncio.get_running_loop().create_future()
            self._asked.append((waiter, since, asked))
            if self._searching is None or self._searching.done():
                self._searching = asyncio.ensure_future(self._search())
            found = await asked
        return waiter.end or found

    async def _ready(self) -> None:
        """Wait until the subscription is caught up; raise what ended it."""
        await self._caught_up.wait()
        if self._error is not None:
            raise type(self._error)(*self._error.args) from self._error

    def _failed(self, following: "asyncio.Task[None]") -> None:
        """It cannot go on: tell all who wait."""
        error = None if following.cancelled() else following.exception()
        if error is None:
            return
        self._following, self._error = None, error
        self._caught_up.set()
        for waiters in self._waiters.values():
            for waiter in waiters:
                if not waiter.future.done():
                    waiter.future.set_exception(type(error)(*error.args))

    async def _search(self) -> None:
        """Read what was before the subscription, once for all who have asked by then, and again for those who come."""
        while self._asked:
            asked, self._asked = self._asked, []
            search = _Search([waiter for waiter, _, _ in asked], before=self._first)
            self._nearby = search.nearby
            since = min(since for _, since, _ in asked)
            error: BrokerError | None = None
            try:
                await self._read_once(search.on_batch, Start(since=since) if since else FIRST)
            except BrokerError as raised:
                error = raised
            for waiter, _, future in asked:
                if future.done():
                    continue
                if error is not None:
                    future.set_exception(type(error)(*error.args))
                else:
                    future.set_result(search.found.get(waiter))

    async def _read_once(self, on_batch: Callable[[Batch], None], start: Start) -> None:
        """Read from there to what is the end now. A journal that is away meanwhile is read again."""
        pause = _FIRST_PAUSE
        while True:
            session = await self._keeper.get()
            try:
                reader = await session.journal.read(on_batch, start)
            except BrokerUnavailable:
                pass
            else:
                try:
                    await first_of(reader.caught_up, reader.ended)
                    if reader.caught_up.is_set() or reader.deleted:
                        return
                finally:
                    await reader.close()
            await self._replace_if_lost(session)
            await asyncio.sleep(pause)
            pause = min(2 * pause, _LAST_PAUSE)

    # What comes.

    async def _follow(self, start: Start) -> None:
        """Read on for ever, whatever becomes of sessions and of the journal. Raises BrokerRefused, StoreInvalid."""
        pause = _FIRST_PAUSE
        while True:
            try:
                session = await self._keeper.get()
            except BrokerUnavailable as error:
                self.trouble = str(error)
                await asyncio.sleep(pause)
                pause = min(2 * pause, _LAST_PAUSE)
                continue
            try:
                reader = await session.journal.read(self._on_batch, start)
            except BrokerUnavailable as error:
                self.trouble = str(error)
                await self._replace_if_lost(session)
                await asyncio.sleep(pause)
                pause = min(2 * pause, _LAST_PAUSE)
                continue
            self.subscriptions += 1
            self.trouble, pause = "", _FIRST_PAUSE
            start = await self._read_on(reader, start)
            await self._replace_if_lost(session)

    async def _read_on(self, reader: Reader, start: Start) -> Start:
        """Read until the reader ends; where to go on."""
        try:
            await first_of(reader.caught_up, reader.ended)
            if reader.caught_up.is_set():
                self._catch_up(reader)
            await reader.ended.wait()
        finally:
            await reader.close()
        if reader.deleted:
            # A new one counts anew, and what it will hold has not been read.
            self._first = self._last = -1
            return FIRST
        return Start(position=self._last + 1) if self._last >= 0 else start

    def _catch_up(self, reader: Reader) -> None:
        self._last = max(self._last, reader.end)
        self._caught_up.set()
        for waiters in self._waiters.values():
            for waiter in waiters:
                if waiter.end is not None and not waiter.future.done():
                    waiter.future.set_result(waiter.end)

    async def _replace_if_lost(self, session: Broker) -> None:
        """Have the keeper open another session if this one is lost, and not only the journal away."""
        lost = asyncio.ensure_future(session.lost())
        done, _ = await asyncio.wait({lost}, timeout=_FIRST_PAUSE)
        if not done:
            lost.cancel()
            return
        with suppress(BrokerError):
            lost.result()
        self._keeper.lose(session)

    def _on_batch(self, batch: Batch) -> None:
        if self._first < 0:
            self._first = batch.position
        self._last = batch.position
        for record in batch.records if self._counting else ():
            if record["kind"] == Kind.COUNTS and Kind.SUCCEEDED in record:
                for counted, (queue, job) in self._counting.items():
                    if record.get("queue") == queue and record.get("job") == job:
                        counted.set()
        for record, ended in told(batch):
            if ended:
                self._ends.add(record)
            for waiter in list(self._waiters.get(record["id"], ())):
                if is_of(record, waiter.created):
                    self._hear(waiter, record, ended=ended)

    def _hear(self, waiter: Waiter, record: Record, *, ended: bool) -> None:
        if waiter.on_record is not None:
            waiter.on_record(record)
        if ended:
            waiter.end = record
            if self._caught_up.is_set() and not waiter.future.done():
                waiter.future.set_result(record)


class _Search:
    """Looks for the ends of some jobs in what is read."""

    def __init__(self, waiters: list[Waiter], *, before: int) -> None:
        """What is stored before the position `before` is given to the waiters: from there on they hear it anyway."""
        self.found: dict[Waiter, Record] = {}
        self.nearby = Ends(0.0)
        self._before = before
        self._waiters: dict[str, list[Waiter]] = {}
        for waiter in waiters:
            self._waiters.setdefault(waiter.id, []).append(waiter)

    def on_batch(self, batch: Batch) -> None:
        unheard = self._before < 0 or batch.position < self._before
        for record, ended in told(batch):
            for waiter in self._waiters.get(record["id"], ()):
                if not is_of(record, waiter.created):
                    continue
                if ended:
                    self.found[waiter] = record
                if unheard and waiter.on_record is not None:
                    waiter.on_record(record)
            if ended and self.found and not self.nearby.full:
                self.nearby.add(record)
