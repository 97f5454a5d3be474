"""Storing messages: declared once, published on one channel, confirmed, and published again where that helps.

A message that is due later goes to the queue of its stretch of time (later.py), any other to its job queue.
"""

import asyncio
import logging
import struct
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from itertools import islice

from palermo.broker import Session
from palermo.brokers.rabbitmq import versions
from palermo.brokers.rabbitmq.declarer import Declarer
from palermo.brokers.rabbitmq.failed_log import FailedLog
from palermo.brokers.rabbitmq.later import Later, queue_of
from palermo.brokers.rabbitmq.link import Link
from palermo.brokers.rabbitmq.publisher import Nacked, Publisher, Told, Unroutable, unfit
from palermo.brokers.rabbitmq.seats import Seat, Seats, seat_queue
from palermo.brokers.rabbitmq.window import Place, Window
from palermo.brokers.rabbitmq.wire import written
from palermo.core.delay import stretch
from palermo.core.message import Message
from palermo.core.topology import CLASSIC, QUORUM, is_failed
from palermo.errors import BrokerUnavailable, NotFound, PalermoError, PublishRefused
from palermo.posting import Ended

log = logging.getLogger("palermo.rabbitmq")

#: Messages that leave together when many are published: the broker stores them while more are made ready. The places of
#: their tenants are made together too.
_TOGETHER = 100

#: Seconds between two attempts to publish to a queue without a leader: doubled from the first to the last.
_FIRST_PAUSE, _LAST_PAUSE = 0.02, 0.5

#: Seconds between two looks at whether an alarm is over.
_ALARM_EVERY = 0.2

#: Seconds that asking for the type of a queue may take once the job is stored in it.
_ASK_WITHIN = 5.0


class Outbox:
    """What one session publishes."""

    def __init__(self, session: Session, link: Link, declarer: Declarer) -> None:
        self._session = session
        self._link = link
        self._declarer = declarer
        self._opening = asyncio.Lock()
        self._publisher: Publisher | None = None
        #: Where the failed jobs of quorum queues are seen.
        self.failed_log = FailedLog(session.exchange, link, patience=session.timeout)
        #: Where jobs of tenants wait for their turn.
        self.seats = Seats(session.exchange, link, self.open)
        #: Where jobs wait for their time.
        self.later = Later(session.exchange, link, self.open, versions.arguments(session.queue_type, link.version))

    def post(self, message: Message, ended: Ended) -> bool:
        """Send the message now if nothing is to be made or opened first; see palermo.posting.Posting."""
        place = _place(message, message.queue)
        publisher = self._publisher
        if publisher is None or not publisher.is_open or is_failed(message.queue) or not self._has(place):
            return False
        self._send(publisher, message, place, ended)
        self._link.raw.flush()
        return True

    def post_from_outside(self, message: Message, ended: Ended) -> bool:
        """The same in any other thread, for a plain job whose queue is there; see palermo.posting.Posting."""
        publisher, queue = self._publisher, message.queue
        if publisher is None or message.run_at is not None or message.tenant or message.priority:
            return False
        if is_failed(queue) or not self._declarer.has(queue):
            return False
        try:
            properties = written(message)
        except (ValueError, struct.error):
            return False
        return publisher.post_from_outside(self._session.exchange, queue, properties, message.body, ended, message.id)

    async def publish_many(
        self,
        messages: Iterable[Message],
        into: Callable[[Message], str] | None = None,
        sent: Callable[[], None] | None = None,
    ) -> int:
        """Store these messages, each in its own queue or in the one that `into` says; see palermo.broker.Broker."""
        window = Window()
        failed: dict[str, list[Message]] = {}
        count = 0
        for some in _by(_TOGETHER, messages):
            if into is None:
                await self._seat(some)
            for message in some:
                queue = message.queue if into is None else into(message)
                place = _place(message, queue)
                if into is not None and is_failed(queue):
                    failed.setdefault(queue, []).append(message)
                if not self._has(place):
                    await self._ensure(place, message.priority)
                publisher = self._publisher
                if publisher is None or not publisher.is_open:
                    publisher = await self.open()
                self._send(publisher, message, place, window.sends(message, place))
                if window.full:
                    self._link.raw.flush()
                    await window.room()
                    await self._again(window)
            count += len(some)
            self._link.raw.flush()
            if not self._link.raw.writable.is_set():
                await self._link.raw.writable.wait()
        if sent is not None:
            sent()
        await window.landed()
        await self._again(window)
        for queue, stored in failed.items():
            await self._note_failed(queue, stored)
        return count

    async def _again(self, window: Window) -> None:
        """Publish again what was refused."""
        refused, window.refused = window.refused, []
        for message, place, error in refused:
            await self._publish_again(message, place, error)

    async def _seat(self, messages: list[Message]) -> None:
        """Make the places of their tenants, all of a priority at once."""
        missing: dict[Seat, int] = {}
        for message in messages:
            if message.tenant:
                place = _place(message, message.queue)
                if isinstance(place, Seat) and not self.seats.has(place):
                    missing[place] = max(missing.get(place, 0), message.priority)
        for priority in sorted(set(missing.values()), reverse=True):
            await self.seats.ensure(
                *(seat for seat, highest in missing.items() if highest == priority), priority=priority
            )

    async def publish(self, message: Message, queue: str, *, patient: bool = False) -> None:
        """Store the message in this queue, or where it waits to be put there; see palermo.broker.Broker.publish.

        `patient` waits as long as an alarm lasts: giving up would run the job again, and get no further.
        """
        place = _place(message, queue)
        try:
            await self._store(message, place, patient=patient)
        except (Unroutable, Nacked, NotFound) as error:
            await self._publish_again(message, place, error)
        if is_failed(queue):
            await self._note_failed(queue, [message])

    async def _note_failed(self, queue: str, messages: list[Message]) -> None:
        """Where failed jobs were stored in a queue that cannot be looked into, write them into the log of it."""
        with suppress(PalermoError, TimeoutError):  # they are stored, and the log is put right by the next sweep
            async with asyncio.timeout(_ASK_WITHIN):
                kind = await self._declarer.kind(queue)
            if kind == QUORUM:
                await self.failed_log.stored(queue, messages)

    async def _store(self, message: Message, place: Place, *, patient: bool) -> None:
        publisher = self._publisher
        if publisher is None or not publisher.is_open or not self._has(place):
            while True:
                try:
                    async with asyncio.timeout(self._session.timeout):
                        await self._ensure(place, message.priority)
                        publisher = await self.open()
                    break
                except TimeoutError:
                    if not (patient and self._link.blocked):
                        raise self._late(message) from None
                    await self._alarm_over(message)
        future = self._sent(publisher, message, place)
        self._link.raw.flush()
        # A timer of the loop's own: asyncio.timeout costs several times as much, at every enqueue.
        loop = asyncio.get_running_loop()
        alarm = loop.call_later(self._session.timeout, self._overdue, future, message, patient)
        try:
            await future
        finally:
            alarm.cancel()

    def _overdue(self, future: "asyncio.Future[None]", message: Message, patient: bool) -> None:
        if future.done():
            return
        if patient and self._link.blocked:
            self._say_blocked(message)
            loop = asyncio.get_running_loop()
            loop.call_later(self._session.timeout, self._overdue, future, message, patient)
        else:
            future.set_exception(self._late(message))

    async def _alarm_over(self, message: Message) -> None:
        self._say_blocked(message)
        while self._link.blocked and self._link.error is None:  # noqa: ASYNC110 - seldom, and pika has no event for it
            await asyncio.sleep(_ALARM_EVERY)

    def _say_blocked(self, message: Message) -> None:
        log.warning("failed job waits to be stored, the broker's memory or disk alarm blocks it id=%s", message.id)

    def _late(self, message: Message) -> BrokerUnavailable:
        why = "its memory or disk alarm blocks publishers" if self._link.blocked else "it is too busy, or away"
        return BrokerUnavailable(
            f"RabbitMQ at {self._link.where} did not confirm job {message.id} within"
            f" {self._session.timeout:g} s: {why}."
        )

    def _has(self, place: Place) -> bool:
        match place:
            case str():
                return self._declarer.has(place)
            case Seat():
                return self._declarer.has(place.queue) and self.seats.has(place)
            case _:
                return self.later.has(place)

    async def _ensure(self, place: Place, priority: int) -> str:
        """See that its queue is there, made for a job with this priority; the type of it."""
        match place:
            case str():
                return await self._declarer.ensure(place, priority=0 if is_failed(place) else priority)
            case Seat():
                # The job queue as well, so that whoever lists queues sees it.
                await self._declarer.ensure(place.queue, priority=priority)
                await self.seats.ensure(place, priority=priority)
                return CLASSIC
            case _:
                await self.later.ensure(place)
                return self._session.queue_type

    def _forget(self, place: Place) -> None:
        match place:
            case str():
                self._declarer.forget(place)
            case Seat():
                self.seats.forget(place)
            case _:
                self.later.forget(place)

    def _send(self, publisher: Publisher, message: Message, place: Place, ended: Ended) -> None:
        exchange = self._session.exchange
        try:
            properties = written(message)
        except (ValueError, struct.error) as error:
            ended(unfit(message.id, error))
            return
        match place:
            case str():
                if message.priority and not is_failed(place):
                    self._declarer.mind(place)
                publisher.post(exchange, place, properties, message.body, ended, message.id)
            case Seat():
                publisher.post("", seat_queue(exchange, place), properties, message.body, ended, message.id)
            case _:
                publisher.post("", queue_of(exchange, place), properties, message.body, ended, message.id)

    def _sent(self, publisher: Publisher, message: Message, place: Place) -> "asyncio.Future[None]":
        ended = Told()
        self._send(publisher, message, place, ended)
        return ended.future

    async def _publish_again(self, message: Message, place: Place, error: PublishRefused | NotFound) -> None:
        """Publish once more, and on until the time is over where a new leader or a majority is to be waited for."""
        pause = _FIRST_PAUSE
        try:
            async with asyncio.timeout(self._session.timeout):
                while True:
                    if isinstance(error, (Unroutable, NotFound)):
                        # The queue or the exchange was deleted since it was declared: make it again.
                        self._forget(place)
                    if await self._ensure(place, message.priority) == CLASSIC and isinstance(error, Nacked):
                        raise error
                    try:
                        await self._sent(await self.open(), message, place)
                        return
                    except (Unroutable, Nacked, NotFound) as again:
                        error = again
                    await asyncio.sleep(pause)
                    pause = min(2 * pause, _LAST_PAUSE)
        except TimeoutError:
            raise (error if isinstance(error, Nacked) else self._late(message)) from None

    async def kind(self, queue: str) -> str:
        """The type of a job queue, which is made if need be."""
        return await self._declarer.ensure(queue)

    async def route(self, message: Message) -> tuple[str, str, str]:
        """Where a message is to be published now, once that is made: exchange, routing key, and the queue's type."""
        place = _place(message, message.queue)
        kind = await self._ensure(place, message.priority)
        match place:
            case str():
                return self._session.exchange, place, kind
            case Seat():
                return "", seat_queue(self._session.exchange, place), kind
            case _:
                return "", queue_of(self._session.exchange, place), kind

    async def open(self) -> Publisher:
        """The channel to publish on now."""
        async with self._opening:
            if self._publisher is None or not self._publisher.is_open:
                self._publisher = await Publisher.open(self._link)
            return self._publisher


def _place(message: Message, queue: str) -> Place:
    """Where a message for this queue is to be stored now. A failed job is not for its job queue, and goes at once."""
    if queue != message.queue:
        return queue
    later = None if message.run_at is None else stretch(message.run_at, time.time())
    return later or Seat.of(message) or queue


def _by(count: int, messages: Iterable[Message]) -> Iterator[list[Message]]:
    """So many at a time."""
    waiting = iter(messages)
    while some := list(islice(waiting, count)):
        yield some
