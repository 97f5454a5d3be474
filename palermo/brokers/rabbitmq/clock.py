"""The clock: the one among all sessions that decides about delayed jobs, and publishes them when they are due.

It leads as long as it holds the exclusive queue `~leader`, which the broker frees the moment its
connection ends. It consumes and publishes on that same connection, so that a leader which is
cut off can do nothing at all: what it held has gone back to the stretches' queues.

The jobs of the near stretches are held (held.py); those of farther ones are spread over shorter
stretches when these come near (reading.py). Each is published and confirmed before it is acknowledged, so a kill
at any instant loses none, and doubles at most what was being confirmed.
"""

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager, suppress
from typing import Any

from palermo.broker import Session
from palermo.brokers.rabbitmq import strays, versions
from palermo.brokers.rabbitmq.arbiter import Arbiter
from palermo.brokers.rabbitmq.dealer import Dealer
from palermo.brokers.rabbitmq.declarer import Declarer
from palermo.brokers.rabbitmq.door import Door
from palermo.brokers.rabbitmq.held import Due
from palermo.brokers.rabbitmq.later import Later, Roll
from palermo.brokers.rabbitmq.leader import Lease, Part, Send
from palermo.brokers.rabbitmq.limiting import Limiting
from palermo.brokers.rabbitmq.link import Link, open_link
from palermo.brokers.rabbitmq.outbox import Outbox
from palermo.brokers.rabbitmq.publisher import Publisher
from palermo.brokers.rabbitmq.reading import Holding, Reader, Spreading
from palermo.brokers.rabbitmq.sheets import Sheets
from palermo.brokers.rabbitmq.ticker import Ticker
from palermo.brokers.rabbitmq.wire import to_properties
from palermo.core.delay import KEPT, Stretch
from palermo.core.keys import lock_of
from palermo.core.message import Message
from palermo.core.topology import internal
from palermo.entries import Change
from palermo.errors import NotFound
from palermo.timetable import RUN, Altered, Chosen, Scheduled, Tell, nobody

#: Seconds between two looks at which stretches come near or are over.
_LOOK_EVERY = 0.5

#: Stretches that begin within so many seconds are opened before anybody looks at the others, which may take as long.
_AHEAD = 60.0

#: Jobs in one part of an answer.
_ROWS = 1_000

#: A leader that is cut off is noticed by the broker in two or three of these, in seconds: then another takes over.
_HEARTBEAT = 5


class Clock:
    """One that leads, from its election to the end of its link."""

    def __init__(
        self,
        exchange: str,
        link: Link,
        lease: Lease,
        outbox: Outbox,
        due: Due,
        publisher: Publisher,
        ticker: Ticker,
        arbiter: Arbiter,
        dealer: Dealer,
    ) -> None:
        #: The recurring jobs.
        self.ticker = ticker
        #: The keys of unique jobs, and what is asked about them.
        self.arbiter = arbiter
        #: The tenants.
        self.dealer = dealer
        self._limiting = Limiting(exchange, link, due)
        self.door = Door(exchange, link, arbiter, self._limiting, dealer)
        self._exchange = exchange
        self._link = link
        self._lease = lease
        self._publisher = publisher
        self._due = due
        self._now = time.time
        self._runs = False
        self._readers: dict[str, Reader] = {}
        #: The names of those that were ever opened here.
        self._seen: set[str] = set()
        #: The names of those that are left alone, since somebody looks into them.
        self._reading: set[str] = set()
        #: Held by whoever opens stretches, and by whoever looks at or changes what is scheduled.
        self._opening = asyncio.Lock()
        self._turn = asyncio.Lock()
        self._news = asyncio.Event()
        self._sheets = Sheets(exchange, link, outbox, self._leaving)
        self._later: Later = outbox.later
        self._roll: Roll[str] = Roll(
            internal(exchange, "later"),
            link,
            self._later,
            parse=lambda name: str(Stretch.parse(name, 0.0)),
            plain=str,
            news=lambda _: self._news.set(),
        )

    @classmethod
    async def take(cls, session: Session, declarer: Callable[[Link], Declarer], fired: Tell = nobody) -> "Clock | None":
        """The clock, if nobody is it, on a connection of its own. To be closed."""
        link = await open_link(session, f"{session.name} clock", heartbeat=_HEARTBEAT)
        try:
            publisher = await Publisher.open(link)
            lease = await Lease.take(link, session.exchange, publisher)
            if lease is not None:
                declares = declarer(link)
                outbox = Outbox(session, link, declares)
                due = Due(session.exchange, publisher, declares, outbox.seats, now=time.time)
                states = versions.arguments(session.queue_type, link.version)
                ticker = Ticker(
                    session.exchange, link, publisher, declares, outbox.seats, states, now=time.time, fired=fired
                )
                arbiter = Arbiter(session.exchange, link, outbox, states, lease.channel, now=time.time)
                dealer = Dealer(session.exchange, link, declarer(link), outbox.open, order=session.tenant_order)
                return cls(session.exchange, link, lease, outbox, due, publisher, ticker, arbiter, dealer)
        except BaseException:
            await link.close()
            raise
        await link.close()
        return None

    async def close(self) -> None:
        """Lead no more."""
        await self._due.close()
        await self.arbiter.close()
        self._lease.close()
        await self._link.close()

    async def run(self) -> None:
        """Lead until the link is lost, which is raised, or the call is cancelled."""
        self._runs = True
        beside = (
            self.ticker.run(),
            self.arbiter.run(),
            self.dealer.run(),
            self._limiting.run(),
            strays.watch(self._exchange, self._link, self.arbiter, self._now, self.dealer.has),
        )
        tasks = [asyncio.ensure_future(work) for work in beside]
        for task in tasks:
            task.add_done_callback(lambda _: self._news.set())
        try:
            await self._keep(tasks)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.wait(tasks)
            for task in tasks:
                if not task.cancelled():
                    task.exception()  # the link's own, which _keep has raised

    async def _keep(self, beside: "list[asyncio.Task[None]]") -> None:
        await self._roll.read()
        await self._look(self._now())
        await self._lease.answer(self._answer)
        while self._link.error is None:
            for task in beside:
                if task.done():
                    task.result()
            self._news.clear()
            # Again where there was no list yet, or somebody deleted it.
            await self._roll.read()
            await self._look(self._now())
            await self._roll.tidy()
            with suppress(TimeoutError):
                async with asyncio.timeout(_LOOK_EVERY):
                    await self._news.wait()
        raise self._link.error

    async def learn(self) -> None:
        """Find out what there is, without leading."""
        await self._roll.read()
        await self.dealer.learn()

    # -- taking up stretches

    async def _look(self, now: float) -> None:
        async with self._opening:
            for name in sorted(self._roll.names - self._reading):
                stretch = Stretch.parse(name, now)
                reader = self._readers.get(name)
                if reader is not None and reader.closed:
                    del self._readers[name]
                    reader = None
                # Of the shortest each once, since one whose turn is to come may hold what is long overdue.
                wanted = stretch.opens <= now or (stretch.shortest and name not in self._seen)
                if reader is None and wanted:
                    await self._open(name, stretch)
                elif reader is not None and not reader.held and self._is_over(stretch, now):
                    await self._end(name, stretch, reader)

    @staticmethod
    def _is_over(stretch: Stretch, now: float) -> bool:
        # A shortest one that is over is by its name already the one that comes round next.
        return stretch.opens > now if stretch.shortest else stretch.ends + KEPT < now

    async def _open(self, name: str, stretch: Stretch) -> None:
        reader: Reader
        if stretch.shortest:
            reader = Holding(self._exchange, self._link, stretch, self._due)
        else:
            reader = Spreading(self._exchange, self._link, stretch, self._later, self._publisher)
        self._readers[name] = reader
        self._seen.add(name)
        await reader.open()
        if reader.closed:
            # Deleted by someone: whoever makes it again says so.
            self._roll.names.discard(name)
            del self._readers[name]

    async def _end(self, name: str, stretch: Stretch, reader: Reader) -> None:
        """Read a stretch that is over no longer; delete a long one, unless something came into it at last."""
        await reader.leave()
        self._readers.pop(name, None)
        if not stretch.shortest and await self._later.delete(stretch):
            self._roll.names.discard(name)
            self._seen.discard(name)

    # -- what others tell and ask

    def _answer(
        self, question: Mapping[str, Any], send: Send
    ) -> Awaitable[Mapping[str, Any]] | Mapping[str, Any] | None:
        match question:
            case {"ask": "list", "chosen": dict(chosen), "offset": int(offset), "limit": int(limit)}:
                return self._list(Chosen.from_plain(chosen), offset, limit, send)
            case {"ask": "alter", "chosen": dict(chosen), "action": str(action), "at": at}:
                return self._alter(Chosen.from_plain(chosen), action, at, send, apart=question.get("apart") is True)
            case {"ask": "recurring", "change": None}:
                return self._recurring(send)
            case {"ask": "recurring", "change": dict(change)}:
                return self._change(Change.from_plain(change))
            case {"ask": "keys"} | {"ask": "limits"}:
                known = self.door.answer_now(question)
                return self.door.answer(question) if known is None else known
            case {"ask": "clear tenants", "queue": str(queue), "tenant": tenant}:
                return self._clear(queue, tenant)
        return self.dealer.answer(question, send)

    async def _clear(self, queue: str, tenant: str | None) -> Mapping[str, Any]:
        return {"removed": await self.door.clear(queue, tenant)}

    async def _recurring(self, send: Send) -> Mapping[str, Any]:
        for entry in await self.ticker.entries():
            send(Part({"entry": entry.to_plain()}))
        return {}

    async def _change(self, change: Change) -> Mapping[str, Any]:
        try:
            await self.ticker.change(change)
        except NotFound as error:
            return {"missing": str(error)}
        return {}

    async def _list(self, chosen: Chosen, offset: int, limit: int, send: Send) -> Mapping[str, Any]:
        found = await self.show(chosen, offset=offset, limit=limit)
        for message in found.messages:
            send(Part(None, to_properties(message), message.body))
        return {"total": found.total}

    async def _alter(
        self, chosen: Chosen, action: str, at: float | None, send: Send, *, apart: bool
    ) -> Mapping[str, Any]:
        altered = await self.alter(chosen, action, at, apart=apart)
        for start in range(0, len(altered), _ROWS):
            send(Part({"rows": [[one.id, one.job, one.queue, one.run_at] for one in altered[start : start + _ROWS]]}))
        return {}

    async def _leaving(self, jobs: list[Message]) -> None:
        """These scheduled jobs are about to be taken away."""
        locks = [(lock.key, job.id) for job in jobs if (lock := lock_of(job)) is not None]
        if locks:
            await self.arbiter.gone(locks)

    async def show(self, chosen: Chosen, *, offset: int, limit: int) -> Scheduled:
        """See palermo.timetable.Timetable.scheduled."""
        async with self._turn, self._untouched() as lying:
            return await self._sheets.browse(chosen, offset=offset, limit=limit, held=self._due.jobs(), lying=lying)

    async def alter(self, chosen: Chosen, action: str, at: float | None, *, apart: bool) -> list[Altered]:
        """See palermo.timetable.Timetable.alter_scheduled; `apart` is its failed_per_queue."""
        instant = self._now() if action == RUN or at is None else at
        async with self._turn, self._untouched() as lying:
            return await self._sheets.alter(chosen, action, instant, held=self._due, lying=lying, apart=apart)

    @asynccontextmanager
    async def _untouched(self) -> AsyncIterator[Mapping[Stretch, int]]:
        """What lies in queues, and stays there: what is due soon has been taken up, and nothing is being spread."""
        now = self._now()
        async with self._opening:
            for name in sorted(self._roll.names):
                stretch, reader = Stretch.parse(name, now), self._readers.get(name)
                if isinstance(reader, Spreading):
                    await reader.leave()
                    del self._readers[name]
                elif self._runs and reader is None and stretch.shortest and stretch.opens <= now + _AHEAD:
                    await self._open(name, stretch)
            await asyncio.gather(*(reader.caught_up() for reader in self._readers.values()))
            self._reading = self._roll.names - set(self._readers)
        try:
            yield await self._later.counts(Stretch.parse(name, now) for name in sorted(self._reading))
        finally:
            self._reading = set()
            self._news.set()
