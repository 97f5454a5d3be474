"""One session's part in keys of unique jobs: it asks the arbiter, and tells it how runs of jobs have ended."""

import asyncio
import json
import logging
import time
import uuid
from collections import deque
from collections.abc import Awaitable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

from pika import spec

from palermo.admission import Told
from palermo.broker import Delivery, Session
from palermo.brokers.rabbitmq import strays as looking
from palermo.brokers.rabbitmq import versions
from palermo.brokers.rabbitmq.batches import Ending
from palermo.brokers.rabbitmq.door import answer_from_plain, start_from_plain, to_start
from palermo.brokers.rabbitmq.keylog import make, queue_of
from palermo.brokers.rabbitmq.link import Link
from palermo.brokers.rabbitmq.outbox import Outbox
from palermo.brokers.rabbitmq.publisher import Nacked, Unroutable
from palermo.brokers.rabbitmq.seats import Seat, seat_queue
from palermo.brokers.rabbitmq.sweep import Reader
from palermo.brokers.rabbitmq.timekeeper import Timekeeper
from palermo.brokers.rabbitmq.wire import PERSISTENT
from palermo.core.keys import Claim, Key, lock_of, message_to_plain
from palermo.core.message import Message
from palermo.core.topology import is_failed
from palermo.core.unique import Answer, Start
from palermo.errors import BrokerUnavailable, NotFound, PublishRefused
from palermo.timetable import Chosen
from palermo.uniqueness import MAX_KEYED_BODY, Stray

if TYPE_CHECKING:
    from palermo.brokers.rabbitmq.clock import Clock

log = logging.getLogger("palermo.rabbitmq")

#: Claims, and bytes of their bodies, in one question, and how many questions of one call are under way at once.
_AT_ONCE, _BYTES, _UNDER_WAY = 200, 4 * 1024 * 1024, 3

#: Seconds between two attempts to write down an end that was refused.
_AGAIN = 0.5

#: Seconds between the two looks of somebody who asks for strays.
_LOOK_AGAIN = 1.0

_STATE = spec.BasicProperties(delivery_mode=PERSISTENT, content_type="application/json")


class RabbitmqKeys:
    """See palermo.uniqueness.Keys; the rest is what the session's other parts need of it."""

    def __init__(self, session: Session, link: Link, outbox: Outbox, timekeeper: Timekeeper) -> None:
        self._session = session
        self._exchange = session.exchange
        self._link = link
        self._outbox = outbox
        self._timekeeper = timekeeper
        self._there = False

    async def enqueue(self, claims: Sequence[Claim]) -> list[Answer]:
        for claim in claims:
            if len(claim.message.body) > MAX_KEYED_BODY:
                raise PublishRefused(
                    f"job {claim.message.id} has a body of {len(claim.message.body):,} bytes; one with a key may have"
                    f" {MAX_KEYED_BODY:,}. Put the data elsewhere and name the place."
                )
        # While one portion is being stored the next is on its way.
        under_way, answers = deque[asyncio.Task[list[Answer]]](), list[Answer]()
        try:
            for some in _portions(claims):
                under_way.append(asyncio.ensure_future(self._enqueue(some)))
                while len(under_way) >= _UNDER_WAY:
                    answers += await under_way.popleft()
            while under_way:
                answers += await under_way.popleft()
        finally:
            for task in under_way:
                task.cancel()
            if under_way:
                await asyncio.wait(under_way)
        self._there = True
        return answers

    async def _enqueue(self, claims: Sequence[Claim]) -> list[Answer]:
        told = await self._ask({"do": "enqueue", "claims": [claim.to_plain() for claim in claims]})
        return [answer_from_plain(one) for one in told["answers"]]

    async def known(self) -> list[Key]:
        if not await self.exist():
            return []
        return [Key.from_plain(key) for key in (await self._ask({"do": "known"}))["keys"]]

    async def free(self, names: Iterable[str]) -> list[str]:
        if not await self.exist():
            return []
        return list((await self._ask({"do": "free", "names": list(names)}))["freed"])

    async def strays(self) -> list[Stray]:
        first = await self._suspects()
        if not first:
            return []
        await asyncio.sleep(_LOOK_AGAIN)
        second = await self._suspects()
        return sorted((second[one] for one in second if one in first), key=lambda stray: stray.key)

    async def exist(self) -> bool:
        """Whether anybody has ever needed keys here: else nobody need be asked."""
        if not self._there:
            channel = await self._link.channel()
            try:
                await channel.call(channel.raw.queue_declare, queue_of(self._exchange), passive=True)
            except NotFound:
                return False
            await channel.close()
            self._there = True
        return True

    async def start(self, delivery: Delivery, *, worker: str) -> Start:
        """Whether a job may be started; waits for an answer as long as the session lasts."""
        question = {
            "do": "start",
            "message": to_start(delivery.message),
            "worker": worker,
            "run": uuid.uuid4().hex,
            "again": delivery.redelivered and not delivery.running_at,
        }
        while True:
            try:
                return start_from_plain((await self._ask(question))["start"])
            except BrokerUnavailable as error:
                if self._link.error is not None:
                    raise
                log.warning(
                    "a job waits to be told that it has its key id=%s error=%r", delivery.message.id, str(error)
                )

    async def tell(self, message: Message, told: Told) -> None:
        """Write down how a run ended; returns once that is stored, however long an alarm lasts."""
        await (await self.send_end(message, told))

    async def send_end(self, message: Message, told: Told) -> Awaitable[None]:
        """Send how a run ended; what is returned is to be awaited until that is stored. Raises BrokerUnavailable."""
        lock = lock_of(message)
        assert lock is not None
        end = Ending(
            key=lock.key,
            id=message.id,
            how=told.how,
            serial=told.serial,
            starts=told.starts,
            run_at=told.run_at,
            at=time.time(),
        )
        body = json.dumps({"end": end.to_plain()}, separators=(",", ":")).encode()
        return self._stored(message.id, body, await self._send(body))

    async def _send(self, body: bytes) -> "asyncio.Future[None]":
        publisher = await self._outbox.open()
        future = publisher.send("", queue_of(self._exchange), _STATE, body)
        self._link.raw.flush()
        return future

    async def _stored(self, id: str, body: bytes, future: "asyncio.Future[None]") -> None:
        while True:
            # A timer of the loop's own: asyncio.timeout costs several times as much, at every job.
            alarm = asyncio.get_running_loop().call_later(self._session.timeout, self._overdue, future, id)
            try:
                await future
                return
            except Unroutable:
                arguments = versions.arguments(self._session.queue_type, self._link.version)
                await make(self._link, queue_of(self._exchange), arguments)
            except Nacked:
                await asyncio.sleep(_AGAIN)
            finally:
                alarm.cancel()
            future = await self._send(body)

    def _overdue(self, end: "asyncio.Future[None]", id: str) -> None:
        if end.done():
            return
        if self._link.blocked:
            log.warning("the end of a job waits to be stored, an alarm blocks it id=%s", id)
            asyncio.get_running_loop().call_later(self._session.timeout, self._overdue, end, id)
            return
        end.set_exception(
            BrokerUnavailable(
                f"RabbitMQ at {self._link.where} did not confirm within {self._session.timeout:g} s that"
                f" job {id} has ended: it is too busy, or away."
            )
        )

    async def gate(self, queue: str, jobs: list[tuple[Message, Message | None]]) -> list[bool]:
        """Which of these jobs, each with what takes its place, may leave the queue; their keys go or come with them."""
        away = [
            (lock.key, there.id)
            for there, put in jobs
            if put is None and not is_failed(queue) and (lock := lock_of(there)) is not None
        ]
        back = [put for _, put in jobs if put is not None and not is_failed(put.queue) and lock_of(put) is not None]
        if away and await self.exist():
            await self._ask({"do": "gone", "jobs": away})
        if not back:
            return [True] * len(jobs)
        may = (await self._ask({"do": "readmit", "messages": [_bare(one) for one in back]}))["may"]
        refused = {id(one) for one, allowed in zip(back, may, strict=True) if not allowed}
        return [put is None or id(put) not in refused for _, put in jobs]

    async def cancelled(self, ids: Iterable[str]) -> None:
        """These jobs, if they wait, are not going to run."""
        if await self.exist():
            await self._ask({"do": "cancelled", "ids": list(ids)})

    async def emptied(self, queue: str, *, delete: bool) -> int | None:
        """Have a queue purged or deleted, and the keys of what waits in it freed; how many, None if it is not there."""
        told = await self._ask({"do": "empty", "queue": queue, "delete": delete})
        return None if told.get("missing") else int(told["count"])

    async def _ask(self, question: Mapping[str, Any]) -> Mapping[str, Any]:
        told = await self._timekeeper.ask_arbiter({"ask": "keys", **question})
        if "refused" in told:
            raise PublishRefused(str(told["refused"]))
        return told

    async def _suspects(self) -> looking.Suspects:
        """What the one who leads would suspect, and what is found by going through the queues that may be."""
        now, keys = time.time(), await self.known()
        found = dict(await looking.suspects(self._exchange, self._link, keys, now=now, apart=None, patience=0.0))
        left = {
            key.name: key.holder
            for key in keys
            if key.holder is not None and key.holder.until is None and (key.name, key.holder.serial) not in found
        }
        seen: set[str] = set()
        for queue in {holder.queue for holder in left.values()}:
            if await self._outbox.kind(queue) != "classic":
                left = {name: holder for name, holder in left.items() if holder.queue != queue}
            else:
                seats = {Seat(queue, one.tenant) for one in left.values() if one.queue == queue and one.tenant}
                if seats:
                    hold = {"ask": "tenants", "queue": queue, "hold": True}
                    await self._timekeeper.decide(hold, lambda _: None, partial(_let_go, queue=queue))
                # What is dealt meanwhile is in its queue by the time that is looked into.
                for seat in sorted(seats):
                    seen |= await self._waiting(
                        Reader(self._link, self._exchange, name=seat_queue(self._exchange, seat))
                    )
                seen |= await self._waiting(Reader(self._link, self._exchange, queue))
        left = {name: holder for name, holder in left.items() if holder.id not in seen}
        if left:
            ids = frozenset(holder.id for holder in left.values())
            later = await self._timekeeper.show(Chosen(ids=ids), offset=0, limit=len(ids))
            seen |= {message.id for message in later.messages}
            running = await looking.running(self._exchange, self._link)
            found.update(looking.without(left, None if running is None else running | seen))
        return found

    async def _waiting(self, reader: Reader) -> set[str]:
        """The ids of what waits in a queue."""
        try:
            found: set[str] = set()
            async for _, page in reader.pages(await reader.count(), only_look=True):
                found |= {str(got.properties.message_id) for got in page}
            return found
        except NotFound:
            return set()
        finally:
            await reader.close()


async def _let_go(clock: "Clock", *, queue: str) -> None:
    await clock.dealer.let_go(queue)


def _bare(message: Message) -> dict[str, Any]:
    """A message as it travels, without its body: all that deciding about its key needs."""
    return message_to_plain(replace(message, body=b"", failure=None, attempts=()))


def _portions(claims: Sequence[Claim]) -> Iterator[list[Claim]]:
    some: list[Claim] = []
    size = 0
    for claim in claims:
        some.append(claim)
        size += len(claim.message.body)
        if len(some) >= _AT_ONCE or size >= _BYTES:
            yield some
            some, size = [], 0
    if some:
        yield some
