"""One session's part in keeping the time: standing by, leading, and asking whoever leads."""

import asyncio
import logging
import random
from collections.abc import Awaitable, Callable, Mapping
from typing import TYPE_CHECKING, Any, TypeVar

from palermo.broker import Session
from palermo.brokers.rabbitmq.asking import Asking
from palermo.brokers.rabbitmq.declarer import Declarer
from palermo.brokers.rabbitmq.leader import Part, ask_leader, is_vacant
from palermo.brokers.rabbitmq.link import Link
from palermo.brokers.rabbitmq.wire import to_message
from palermo.core.topology import internal
from palermo.entries import Change, Entry
from palermo.errors import BrokerUnavailable, NotFound, PalermoError
from palermo.timetable import Altered, Chosen, Scheduled, Tell, nobody

if TYPE_CHECKING:
    from palermo.brokers.rabbitmq.clock import Clock

log = logging.getLogger("palermo.rabbitmq")

T = TypeVar("T")

#: Seconds between two looks at whether somebody leads, at least and at most.
_LOOK_EVERY = (1.0, 2.0)

#: Seconds until a leader whose connection broke tries again.
_AGAIN = 1.0

#: How often the leader is asked, when one that was asked went away.
_ATTEMPTS = 5

#: And by a session that stands by, and must not take the lease from itself.
_PATIENT = 30


#: Seconds after the last question about keys for which a session leads that did so since nobody else did.
_LINGER = 3.0

#: Seconds that an answer about keys is waited for at least: another leader is there by then.
_LEAST_PATIENCE = 10.0

#: Seconds until a question that nobody answered is asked again.
_SOON = 0.1


class Timekeeper:
    """See palermo.timetable.Timetable."""

    def __init__(self, session: Session, link: Link, declarer: Callable[[Link], Declarer]) -> None:
        self._session = session
        self._link = link
        self._declarer = declarer
        self._asking = Asking(link, session.exchange)
        self.leads = False
        self._keeping = False
        #: The clock, while it is ours.
        self._clock: Clock | None = None
        self._borrowing = asyncio.Lock()
        self._lingering: asyncio.Task[None] | None = None
        self._closed = False

    async def keep(self, fired: Tell) -> None:
        """Lead where nobody else does, and else stand by, until the link is lost."""
        self._keeping = True
        try:
            while self._link.error is None:
                try:
                    if await is_vacant(self._link, self._session.exchange):
                        await self._lead(fired)
                    await asyncio.sleep(random.uniform(*_LOOK_EVERY))
                except PalermoError as error:
                    if self._link.error is None:
                        log.warning("cannot keep the time error=%r", str(error))
                        await asyncio.sleep(_AGAIN)
        finally:
            self._keeping = False

    async def _lead(self, fired: Tell) -> None:
        clock = await self._take(fired)
        if clock is None:
            return
        log.info("keeping the time exchange=%s", self._session.exchange)
        self.leads = True
        self._clock = clock
        running = asyncio.ensure_future(clock.run())
        lost = asyncio.ensure_future(self._link.lost.wait())
        try:
            await asyncio.wait({running, lost}, return_when=asyncio.FIRST_COMPLETED)
            if running.done():
                await running
        finally:
            self.leads = False
            self._clock = None
            running.cancel()
            lost.cancel()
            await asyncio.wait({running, lost})
            await clock.close()

    async def _take(self, fired: Tell = nobody) -> "Clock | None":
        # What leads is as much code as what takes jobs, and most sessions never do.
        from palermo.brokers.rabbitmq.clock import Clock

        return await Clock.take(self._session, self._declarer, fired)

    async def show(self, chosen: Chosen, *, offset: int, limit: int) -> Scheduled:
        """See palermo.timetable.Timetable.scheduled."""
        question = {"ask": "list", "chosen": chosen.to_plain(), "offset": offset, "limit": limit}

        def read(parts: list[Part]) -> Scheduled:
            messages = (to_message(p.properties, p.body, taken_from=None) for p in parts if p.properties is not None)
            return Scheduled(messages=tuple(messages), total=int((parts[-1].values or {})["total"]))

        return await self.decide(question, read, lambda clock: clock.show(chosen, offset=offset, limit=limit))

    async def alter(self, chosen: Chosen, action: str, at: float | None, *, apart: bool) -> list[Altered]:
        """See palermo.timetable.Timetable.alter_scheduled."""
        question = {"ask": "alter", "chosen": chosen.to_plain(), "action": action, "at": at, "apart": apart}

        def read(parts: list[Part]) -> list[Altered]:
            rows = [row for part in parts for row in (part.values or {}).get("rows", ())]
            return [Altered(id=id, job=job, queue=queue, run_at=due) for id, job, queue, due in rows]

        return await self.decide(question, read, lambda clock: clock.alter(chosen, action, at, apart=apart))

    async def recurring(self) -> list[Entry]:
        """See palermo.entries.Entries."""
        if not self._keeping and not await self._has_recurring():
            return []

        def read(parts: list[Part]) -> list[Entry]:
            values = [part.values for part in parts if part.values and "entry" in part.values]
            return [Entry.from_plain(value["entry"]) for value in values]

        return await self.decide({"ask": "recurring", "change": None}, read, lambda clock: clock.ticker.entries())

    async def change(self, change: Change) -> None:
        """Do this to a recurring job. Raises NotFound."""

        def read(parts: list[Part]) -> None:
            if missing := (parts[-1].values or {}).get("missing"):
                raise NotFound(missing)

        question = {"ask": "recurring", "change": change.to_plain()}
        await self.decide(question, read, lambda clock: clock.ticker.change(change))

    async def ask_arbiter(self, question: Mapping[str, Any]) -> Mapping[str, Any]:
        """What whoever leads answers about keys; where nobody does, we lead for some seconds.

        The question may come to be answered twice. Raises BrokerUnavailable.
        """
        loop = asyncio.get_running_loop()
        until = loop.time() + max(self._session.timeout, _LEAST_PATIENCE)
        while self._link.error is None and loop.time() < until:
            clock = self._clock
            if clock is not None:
                # By way of the broker: an answer that has come so proves that we lead still, and what goes before it
                # has come there too. Where it is silent, the long way is to store what is decided.
                if question.get("do") == "start" and (told := await self._asking.ask(question)) and "error" not in told:
                    return told
                try:
                    return await clock.door.answer(question)
                except BrokerUnavailable as error:
                    log.debug("the arbiter did not answer error=%r", str(error))
                    await asyncio.sleep(_SOON)
                    continue
            told = await self._asking.ask(question)
            if told is not None and "error" not in told:
                return told
            if told is None and not self._keeping:
                await self._borrow()
            else:
                await asyncio.sleep(_SOON)  # we are about to lead, or another is
        raise self._link.error or BrokerUnavailable(
            "whoever keeps the time does not answer. Try again: another takes over within seconds."
        )

    async def tell_arbiter(self, news: Mapping[str, Any]) -> None:
        """Tell whoever leads something that may be lost; nothing where nobody does. Raises the session's error."""
        if self._clock is not None:
            await self._clock.door.answer(news)
        else:
            await self._asking.tell(news)

    async def _borrow(self) -> None:
        """Lead, if nobody does, until nothing has been asked for some seconds."""
        async with self._borrowing:
            if self._clock is not None or self._closed:
                return
            clock = await self._take()
            if clock is None:
                await asyncio.sleep(_SOON)
                return
            self._clock = clock
            self._lingering = asyncio.ensure_future(self._linger(clock))

    async def _linger(self, clock: "Clock") -> None:
        loop = asyncio.get_running_loop()
        running = asyncio.ensure_future(clock.run())
        try:
            while not running.done() and (
                (left := clock.arbiter.asked_at + _LINGER - loop.time()) > 0 or clock.arbiter.busy
            ):
                await asyncio.wait({running}, timeout=max(left, _SOON))
        finally:
            self._clock = None
            running.cancel()
            await asyncio.wait({running})
            if not running.cancelled() and (error := running.exception()) is not None:
                log.debug("led no longer error=%r", str(error))
            await clock.close()

    async def close(self) -> None:
        """Lead no more, where that was only for a while."""
        self._closed = True
        if self._lingering is not None and not self._lingering.done():
            self._lingering.cancel()
            await asyncio.wait({self._lingering})

    async def _has_recurring(self) -> bool:
        """Whether there may be recurring jobs: only then a leader is looked for."""
        channel = await self._link.channel()
        try:
            await channel.call(channel.raw.queue_declare, internal(self._session.exchange, "recurring"), passive=True)
        except PalermoError:
            if channel.missing:
                return False
            raise
        await channel.close()
        return True

    async def decide(
        self, question: Mapping[str, object], read: Callable[[list[Part]], T], do: Callable[["Clock"], Awaitable[T]]
    ) -> T:
        """What the leader answers; where nobody leads we take the lease for as long as it takes to do it."""
        for attempt in range(_ATTEMPTS if not self._keeping else _PATIENT):
            parts = await ask_leader(self._link, self._session.exchange, question)
            if parts:
                if error := (parts[-1].values or {}).get("error"):
                    raise BrokerUnavailable(f"who keeps the time could not do it: {error}")
                return read(parts)
            if self._keeping and attempt < _PATIENT - _ATTEMPTS:
                # We are about to lead, or another is.
                await asyncio.sleep(0.1)
                continue
            clock = await self._take()
            if clock is not None:
                try:
                    await clock.learn()
                    return await do(clock)
                finally:
                    await clock.close()
            await asyncio.sleep(0.2)
        raise BrokerUnavailable(
            "the worker that keeps the time does not answer. Try again: another takes over within seconds."
        )
