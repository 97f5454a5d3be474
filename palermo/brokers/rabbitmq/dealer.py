"""The dealer: whoever leads, as it gives every tenant of a queue its turn (line.py), and tells who they are."""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import Any

from palermo.brokers.rabbitmq.declarer import Declarer
from palermo.brokers.rabbitmq.later import Roll
from palermo.brokers.rabbitmq.leader import Part, Send
from palermo.brokers.rabbitmq.line import Client, Line
from palermo.brokers.rabbitmq.link import Channel, Link
from palermo.brokers.rabbitmq.looking import turn
from palermo.brokers.rabbitmq.publisher import Publisher
from palermo.brokers.rabbitmq.seats import LINGER, Seat, Seats, list_queue, seat_queue
from palermo.errors import PalermoError
from palermo.tenants import Tenant

log = logging.getLogger("palermo.rabbitmq")

#: Seconds between two looks at which tenants are gone.
_LOOK_EVERY = 1.0

#: A job that is held for so many seconds goes back and comes again: RabbitMQ takes back what is held for half an hour.
_STALE = 600.0

#: Queues that are deleted before jobs are dealt again.
_AT_ONCE = 50

#: Channels on which queues are counted at once, and how often that is done: what it told holds for so many times as
#: long as it took.
_CHANNELS, _RESTS = 8, 10.0

#: Rows in one part of an answer.
_ROWS = 1_000


class Dealer:
    """All tenants of one exchange, in the hands of the one who leads."""

    def __init__(
        self,
        exchange: str,
        link: Link,
        declarer: Declarer,
        publisher: Callable[[], Awaitable[Publisher]],
        *,
        order: str,
    ) -> None:
        """`declarer` is asked how many jobs a queue holds, on a channel that nobody else needs."""
        self._exchange = exchange
        self._link = link
        self._declarer = declarer
        self._publisher = publisher
        self._order = order
        self._lines: dict[str, Line] = {}
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._running = False
        self._failed: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._counts: dict[str, tuple[float, float, list[Tenant]]] = {}
        self._counting = asyncio.Lock()
        self._reading = asyncio.Lock()
        self._seats = Seats(exchange, link, publisher)
        self._roll: Roll[tuple[str, str]] = Roll(
            list_queue(exchange), link, self._seats, parse=_seat, plain=list, news=self._on_seats
        )

    async def run(self) -> None:
        """Deal until the link is lost, which is raised, or the call is cancelled."""
        self._running = True
        try:
            while True:
                # Nothing is made where nobody has tenants.
                if self._roll.names or await self._seats.are_there():
                    await self._read()
                    await self._roll.tidy()
                for line in list(self._lines.values()):
                    self._start(line)
                    try:
                        await self._tidy(line)
                    except PalermoError:
                        if self._link.error is not None:
                            raise
                        log.debug("tenants cannot be tidied now queue=%s", line.queue, exc_info=True)
                await asyncio.wait({self._failed}, timeout=_LOOK_EVERY)
                if self._failed.done():
                    self._failed.result()
        finally:
            for task in self._tasks.values():
                task.cancel()

    async def learn(self) -> None:
        """Know who there is; who has just begun to lead may be asked before it has looked."""
        if await self._seats.are_there():
            await self._read()

    async def _read(self) -> None:
        async with self._reading:
            await self._roll.read()

    def _on_seats(self, seats: set[tuple[str, str]]) -> None:
        for queue, tenant in seats:
            line = self._lines.get(queue)
            if line is None:
                line = self._lines[queue] = Line(
                    self._exchange, queue, self._link, self._declarer, self._publisher, order=self._order
                )
                self._start(line)
            line.know(tenant)

    def _start(self, line: Line) -> None:
        task = self._tasks.get(line.queue)
        if self._running and (task is None or task.done()):
            task = self._tasks[line.queue] = asyncio.ensure_future(line.run())
            task.add_done_callback(self._on_end)

    def _on_end(self, task: "asyncio.Task[None]") -> None:
        if not task.cancelled() and (error := task.exception()) is not None and not self._failed.done():
            self._failed.set_exception(error)
            self._failed.exception()  # nobody may be left to be told

    # -- those that are gone

    async def _tidy(self, line: Line) -> None:
        now = asyncio.get_running_loop().time()
        stale = [one for one in line.clients.values() if one.in_hand is not None and now - one.heard > _STALE]
        if stale:
            async with line.turn:
                await line.let_go(stale)
        idle = [one for one in line.clients.values() if line.is_idle(one) and now - one.heard > LINGER]
        if not idle:
            return
        async with turn(self._link, self._exchange) as alone:
            if not alone:
                return
            for start in range(0, len(idle), _AT_ONCE):
                async with line.turn:
                    chosen = [one for one in idle[start : start + _AT_ONCE] if line.is_idle(one)]
                    # Otherwise what was on its way to us may just be going back, and the queue be taken for empty.
                    if await line.let_go(chosen):
                        await self._delete(line, chosen)

    async def _delete(self, line: Line, clients: Iterable[Client]) -> None:
        """Delete the queues of these unless something came into them."""
        channel: Channel | None = None
        for client in clients:
            if channel is None or not channel.is_open:
                channel = await self._link.channel()
            try:
                await channel.call(channel.raw.queue_delete, client.queue, if_empty=True, if_unused=True)
            except PalermoError:
                if self._link.error is not None:
                    raise
                if not channel.missing:
                    continue
            line.forget(client)
            self._roll.names.discard((line.queue, client.name))
        if channel is not None:
            await channel.close()

    # -- what others ask

    def answer(self, question: Mapping[str, Any], send: Send) -> Awaitable[Mapping[str, Any]] | None:
        """What answers a question about tenants; None if it is about something else."""
        match question:
            case {"ask": "tenants", "queue": None}:
                return self._totals()
            case {"ask": "tenants", "queue": str(queue), "hold": False}:
                return self._rows(queue, send)
            case {"ask": "tenants", "queue": str(queue), "hold": True}:
                return self._let_go(queue, still=question.get("still") is True)
        return None

    async def _totals(self) -> Mapping[str, Any]:
        await self.learn()
        return {"totals": await self.totals()}

    async def _rows(self, queue: str, send: Send) -> Mapping[str, Any]:
        await self.learn()
        rows = [one.to_plain() for one in await self.tenants(queue)]
        for start in range(0, len(rows), _ROWS):
            send(Part({"rows": rows[start : start + _ROWS]}))
        return {}

    async def _let_go(self, queue: str, *, still: bool) -> Mapping[str, Any]:
        await self.learn()
        await self.let_go(queue, still=still)
        return {}

    async def totals(self) -> dict[str, int]:
        """By queue, how many jobs of tenants wait apart from it."""
        return {queue: sum(one.pending for one in await self.tenants(queue)) for queue in sorted(self._lines)}

    async def tenants(self, queue: str) -> list[Tenant]:
        """Those of a queue that have jobs waiting, or had some a moment ago; those with most jobs first."""
        loop = asyncio.get_running_loop()
        async with self._counting:
            known, line = self._counts.get(queue), self._lines.get(queue)
            if line is None:
                return []
            if known is None or loop.time() > known[0] + _RESTS * known[1] or known[1] < 0.02:
                began = loop.time()
                found = await self._count(line)
                self._counts[queue] = known = (loop.time(), loop.time() - began, found)
            return known[2]

    async def _count(self, line: Line) -> list[Tenant]:
        waiting = list(line.clients.values())
        found: list[Tenant] = []

        async def some() -> None:
            channel: Channel | None = None
            while waiting:
                client = waiting.pop()
                if channel is None or not channel.is_open:
                    channel = await self._link.channel()
                try:
                    frame = await channel.call(channel.raw.queue_declare, client.queue, passive=True)
                except PalermoError:
                    if not channel.missing:
                        raise
                    continue
                pending = int(frame.method.message_count) + (client.in_hand is not None)
                if pending:
                    found.append(Tenant(name=client.name, pending=pending, share=client.share))
            if channel is not None:
                await channel.close()

        await asyncio.gather(*(some() for _ in range(min(_CHANNELS, len(waiting)))))
        return sorted(found, key=lambda one: (-one.pending, one.name))

    async def let_go(self, queue: str, *, still: bool = False) -> None:
        """Hold none of the jobs of this queue's tenants, since somebody wants to look at all of them.

        With `still` none is dealt, either, until whoever looks has done.
        """
        line = self._lines.get(queue)
        if line is not None:
            async with line.turn:
                await line.let_go([one for one in line.clients.values() if one.tag or one.in_hand])
                line.still = line.still or still

    async def has(self, seat: Seat) -> bool:
        """Whether jobs of this tenant wait apart from their queue, or may do so."""
        line = self._lines.get(seat.queue)
        client = None if line is None else line.clients.get(seat.tenant)
        if line is not None and client is not None and (client.in_hand is not None or seat.tenant in line):
            return True
        channel = await self._link.channel()
        try:
            frame = await channel.call(channel.raw.queue_declare, seat_queue(self._exchange, seat), passive=True)
        except PalermoError:
            if channel.missing:
                return False
            raise
        await channel.close()
        return bool(frame.method.message_count)

    async def clear(self, queue: str, tenant: str | None) -> int:
        """Remove the waiting jobs of one tenant, or of all; how many there were."""
        line = self._lines.get(queue)
        return 0 if line is None else await self._emptied(line, tenant)

    async def _emptied(self, line: Line, tenant: str | None) -> int:
        async with line.turn:
            chosen = [one for one in line.clients.values() if tenant is None or one.name == tenant]
            removed = await line.drop(chosen)
            channel: Channel | None = None
            for client in chosen:
                if channel is None or not channel.is_open:
                    channel = await self._link.channel()
                try:
                    frame = await channel.call(channel.raw.queue_purge, client.queue)
                except PalermoError:
                    if not channel.missing:
                        raise
                    continue
                removed += int(frame.method.message_count)
            self._counts.pop(line.queue, None)
        return removed


def _seat(name: Any) -> tuple[str, str]:
    queue, tenant = name
    if not isinstance(queue, str) or not isinstance(tenant, str):
        raise ValueError(name)
    return Seat(queue, tenant)
