"""Storing messages: declared once, published on one channel, confirmed, and published again where that helps.

A message that is due later goes to the queue of its stretch of time (later.py), any other to its job queue.
"""

import asyncio
import time
from collections import deque
from collections.abc import Iterable

from palermo.broker import Session
from palermo.brokers.rabbitmq.declarer import CLASSIC, Declarer
from palermo.brokers.rabbitmq.later import Later, queue_of
from palermo.brokers.rabbitmq.link import Link
from palermo.brokers.rabbitmq.publisher import Publisher, Unroutable
from palermo.brokers.rabbitmq.wire import to_properties
from palermo.core.delay import Stretch, stretch
from palermo.core.message import Message
from palermo.errors import BrokerUnavailable

#: Unconfirmed messages, and bytes of their bodies, in flight at once when many are published.
_WINDOW = 1_000
_WINDOW_BYTES = 16 * 1024 * 1024

#: Where a message goes: a job queue by its name, or a stretch of time.
Place = str | Stretch


class Outbox:
    """What one session publishes."""

    def __init__(self, session: Session, link: Link, declarer: Declarer) -> None:
        self._session = session
        self._link = link
        self._declarer = declarer
        self._opening = asyncio.Lock()
        self._publisher: Publisher | None = None
        #: Where jobs wait for their time.
        self.later = Later(session.exchange, link, self.open, {"x-queue-type": CLASSIC})

    async def publish_many(self, messages: Iterable[Message]) -> int:
        """Store these messages; see palermo.broker.Broker.publish_many."""
        window: deque[tuple[asyncio.Future[None], Message, Place]] = deque()
        flying = count = 0
        for message in messages:
            place = _place(message, message.queue)
            if not self._has(place):
                await self._ensure(place)
            publisher = self._publisher
            if publisher is None or not publisher.is_open:
                publisher = await self.open()
            window.append((self._send(publisher, message, place), message, place))
            count += 1
            flying += len(message.body)
            while len(window) >= _WINDOW or flying > _WINDOW_BYTES:
                future, oldest, there = window.popleft()
                flying -= len(oldest.body)
                if not _is_stored(future):
                    await self._confirmed(future, oldest, there)
            if not self._link.raw.writable.is_set():
                await self._link.raw.writable.wait()
        for future, oldest, there in window:
            if not _is_stored(future):
                await self._confirmed(future, oldest, there)
        return count

    async def publish(self, message: Message, queue: str) -> None:
        """Store the message in this queue, or where it waits to be put there; see palermo.broker.Broker.publish."""
        place = _place(message, queue)
        try:
            await self._store(message, place)
        except Unroutable:
            try:
                async with asyncio.timeout(self._session.timeout):
                    await self._publish_again(message, place)
            except TimeoutError:
                raise self._late(message) from None

    async def open(self) -> Publisher:
        """The channel to publish on now."""
        async with self._opening:
            if self._publisher is None or not self._publisher.is_open:
                self._publisher = await Publisher.open(self._link)
            return self._publisher

    async def _store(self, message: Message, place: Place) -> None:
        publisher = self._publisher
        if publisher is None or not publisher.is_open or not self._has(place):
            try:
                async with asyncio.timeout(self._session.timeout):
                    await self._ensure(place)
                    publisher = await self.open()
            except TimeoutError:
                raise self._late(message) from None
        future = self._send(publisher, message, place)
        self._link.raw.flush()
        # A timer of the loop's own: asyncio.timeout costs several times as much, at every enqueue.
        alarm = asyncio.get_running_loop().call_later(self._session.timeout, self._overdue, future, message)
        try:
            await future
        finally:
            alarm.cancel()

    def _overdue(self, future: "asyncio.Future[None]", message: Message) -> None:
        if not future.done():
            future.set_exception(self._late(message))

    def _late(self, message: Message) -> BrokerUnavailable:
        why = "its memory or disk alarm blocks publishers" if self._link.blocked else "it is too busy, or away"
        return BrokerUnavailable(
            f"RabbitMQ at {self._link.where} did not confirm job {message.id} within"
            f" {self._session.timeout:g} s: {why}."
        )

    def _has(self, place: Place) -> bool:
        return self._declarer.has(place) if isinstance(place, str) else self.later.has(place)

    async def _ensure(self, place: Place) -> None:
        if isinstance(place, str):
            await self._declarer.ensure(place)
        else:
            await self.later.ensure(place)

    def _send(self, publisher: Publisher, message: Message, place: Place) -> "asyncio.Future[None]":
        exchange = self._session.exchange
        if isinstance(place, str):
            return publisher.send(exchange, place, to_properties(message), message.body)
        return publisher.send("", queue_of(exchange, place), to_properties(message), message.body)

    async def _publish_again(self, message: Message, place: Place) -> None:
        """The queue was deleted since it was declared: make it again, and publish once more."""
        if isinstance(place, str):
            self._declarer.forget(place)
        else:
            self.later.forget(place)
        await self._ensure(place)
        await self._send(await self.open(), message, place)

    async def _confirmed(self, future: "asyncio.Future[None]", message: Message, place: Place) -> None:
        """Wait for one confirm of many."""
        try:
            await future
        except Unroutable:
            await self._publish_again(message, place)


def _place(message: Message, queue: str) -> Place:
    """Where a message for this queue is to be stored now. A failed job is not for its job queue, and goes at once."""
    if message.run_at is None or queue != message.queue:
        return queue
    return stretch(message.run_at, time.time()) or queue


def _is_stored(future: "asyncio.Future[None]") -> bool:
    """Whether a publish is confirmed already: then awaiting it would only cost."""
    return future.done() and not future.cancelled() and future.exception() is None
