"""One session's view of the tenants of queues: it asks whoever leads who they are, and looks into their queues."""

from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import replace

from palermo.broker import Page, Stop, Swept, Verdict
from palermo.brokers.rabbitmq import sweep as sweeping
from palermo.brokers.rabbitmq.leader import Part
from palermo.brokers.rabbitmq.link import Link
from palermo.brokers.rabbitmq.looking import turn
from palermo.brokers.rabbitmq.outbox import Outbox
from palermo.brokers.rabbitmq.seats import Seat, seat_queue
from palermo.brokers.rabbitmq.sweep import Gate, Reader
from palermo.brokers.rabbitmq.timekeeper import Timekeeper
from palermo.core.message import Message
from palermo.errors import BrokerUnavailable, NotFound
from palermo.tenants import Tenant

#: Seconds that a look waits for another one.
_PATIENCE = 30.0


class Tenancy:
    """See palermo.tenants.Tenants."""

    def __init__(self, exchange: str, link: Link, outbox: Outbox, timekeeper: Timekeeper) -> None:
        self._exchange = exchange
        self._link = link
        self._outbox = outbox
        self._timekeeper = timekeeper

    async def of(self, queue: str) -> list[Tenant]:
        if not await self._outbox.seats.are_there():
            return []

        def read(parts: list[Part]) -> list[Tenant]:
            rows = [row for part in parts for row in (part.values or {}).get("rows", ())]
            return [Tenant.from_plain(row) for row in rows]

        question = {"ask": "tenants", "queue": queue, "hold": False}
        return await self._timekeeper.decide(question, read, lambda clock: clock.dealer.tenants(queue))

    async def totals(self) -> Mapping[str, int]:
        if not await self._outbox.seats.are_there():
            return {}

        def read(parts: list[Part]) -> Mapping[str, int]:
            found: Mapping[str, int] = (parts[-1].values or {})["totals"]
            return found

        question = {"ask": "tenants", "queue": None}
        return await self._timekeeper.decide(question, read, lambda clock: clock.dealer.totals())

    async def clear(self, queue: str, tenant: str) -> int:
        found = await self._clear(queue, tenant) if await self._outbox.seats.are_there() else 0
        if not found:
            raise NotFound(
                f"no jobs of tenant {tenant!r} wait in queue {queue!r}; `palermo clients` lists those that do."
            )
        return found

    async def clear_all(self, queue: str) -> int:
        """Remove the waiting jobs of all tenants of the queue; returns how many."""
        return await self._clear(queue, None) if await self._outbox.seats.are_there() else 0

    async def browse(self, reader: Reader, queue: str, *, offset: int, limit: int, newest: bool) -> Page:
        """A page of the queue: first what lies in it, then what its tenants have, tenant by tenant."""
        if not await self.of(queue):
            return await sweeping.browse(reader, queue, offset=offset, limit=limit, newest=newest)
        async with self._alone(reader.link, queue) as names:
            readers = [reader, *(Reader(reader.link, self._exchange, name=name) for name in names)]
            found: list[Message] = []
            total = 0
            for one in reversed(readers) if newest else readers:
                left = limit - len(found)
                try:
                    held = await one.count()
                    if left <= 0 or total + held <= offset:
                        total += held
                        continue
                    page = await sweeping.browse(one, queue, offset=max(0, offset - total), limit=left, newest=newest)
                except NotFound:
                    if one is reader:
                        raise
                    continue
                found += page.messages
                total += page.total
            return Page(messages=tuple(found), total=total)

    async def sweep(
        self,
        reader: Reader,
        queue: str,
        decide: Callable[[Message], Verdict],
        store: Callable[[list[Message]], Awaitable[object]],
        tell: Callable[[Swept], None],
        gate: Gate,
    ) -> Swept:
        """Go through the queue and then through what its tenants have; see palermo.broker.Broker.sweep."""
        tenants = await self.of(queue)
        if not tenants:
            return await sweeping.sweep(reader, queue, decide, store, tell, gate=gate)
        stopped = False

        def judge(message: Message) -> Verdict:
            nonlocal stopped
            verdict = decide(message)
            stopped = stopped or isinstance(verdict, Stop)
            return verdict

        async with self._alone(reader.link, queue, still=True) as names:
            done = Swept(total=0)
            total = await reader.count() + sum(one.pending for one in tenants)
            for one in [reader, *(Reader(reader.link, self._exchange, name=name) for name in names)]:
                before = done

                def add(swept: Swept, before: Swept = before) -> Swept:
                    return replace(
                        before,
                        total=max(total, before.seen + swept.seen),
                        seen=before.seen + swept.seen,
                        removed=before.removed + swept.removed,
                        moved=before.moved + swept.moved,
                    )

                try:
                    swept = await sweeping.sweep(one, queue, judge, store, lambda each: tell(add(each)), gate=gate)
                except NotFound:
                    if one is reader:
                        raise
                    continue
                done = add(swept)
                if stopped:
                    break
            return done if stopped else replace(done, total=done.seen)

    @asynccontextmanager
    async def _alone(self, link: Link, queue: str, *, still: bool = False) -> AsyncIterator[list[str]]:
        """The AMQP queues of the tenants, of which none is deleted and nothing is held by whoever leads.

        With `still` nothing is dealt from them meanwhile, which would be missed by who has been through the job queue.
        """
        async with turn(link, self._exchange, patience=_PATIENCE) as alone:
            if not alone:
                raise BrokerUnavailable("somebody else looks into the queues of tenants. Try again.")
            question = {"ask": "tenants", "queue": queue, "hold": True, "still": still}
            await self._timekeeper.decide(
                question, lambda _: None, lambda clock: clock.dealer.let_go(queue, still=still)
            )
            tenants = sorted(one.name for one in await self.of(queue))
            yield [seat_queue(self._exchange, Seat(queue, name)) for name in tenants]

    async def _clear(self, queue: str, tenant: str | None) -> int:
        def read(parts: list[Part]) -> int:
            return int((parts[-1].values or {})["removed"])

        question = {"ask": "clear tenants", "queue": queue, "tenant": tenant}
        return await self._timekeeper.decide(question, read, lambda clock: clock.door.clear(queue, tenant))
