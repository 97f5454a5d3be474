"""Storing messages: declared once, published on one channel, confirmed, and published again where that helps."""

import asyncio
import logging
from collections import deque
from collections.abc import Iterable

from palermo.broker import Session
from palermo.brokers.rabbitmq.declarer import Declarer
from palermo.brokers.rabbitmq.link import Link
from palermo.brokers.rabbitmq.publisher import Nacked, Publisher, Unroutable
from palermo.brokers.rabbitmq.wire import to_properties
from palermo.core.message import Message
from palermo.core.topology import CLASSIC
from palermo.errors import BrokerUnavailable, NotFound, PublishRefused

log = logging.getLogger("palermo.rabbitmq")

#: Unconfirmed messages, and bytes of their bodies, in flight at once when many are published.
_WINDOW = 1_000
_WINDOW_BYTES = 16 * 1024 * 1024

#: Seconds between two attempts to publish to a queue without a leader: doubled from the first to the last.
_FIRST_PAUSE, _LAST_PAUSE = 0.02, 0.5

#: Seconds between two looks at whether an alarm is over.
_ALARM_EVERY = 0.2


class Outbox:
    """What one session publishes."""

    def __init__(self, session: Session, link: Link, declarer: Declarer) -> None:
        self._session = session
        self._link = link
        self._declarer = declarer
        self._opening = asyncio.Lock()
        self._publisher: Publisher | None = None

    async def publish_many(self, messages: Iterable[Message]) -> int:
        window: deque[tuple[asyncio.Future[None], Message]] = deque()
        flying = count = 0
        for message in messages:
            if not self._declarer.has(message.queue):
                await self._declarer.ensure(message.queue)
            publisher = self._publisher
            if publisher is None or not publisher.is_open:
                publisher = await self.open()
            window.append((self._send(publisher, message, message.queue), message))
            count += 1
            flying += len(message.body)
            while len(window) >= _WINDOW or flying > _WINDOW_BYTES:
                future, oldest = window.popleft()
                flying -= len(oldest.body)
                if not _is_stored(future):
                    await self._confirmed(future, oldest)
            if not self._link.raw.writable.is_set():
                await self._link.raw.writable.wait()
        for future, oldest in window:
            if not _is_stored(future):
                await self._confirmed(future, oldest)
        return count

    async def publish(self, message: Message, queue: str, *, patient: bool = False) -> None:
        """Store the message in this queue; see palermo.broker.Broker.publish.

        `patient` waits as long as an alarm lasts: giving up would run the job again, and get no further.
        """
        try:
            await self._store(message, queue, patient=patient)
        except (Unroutable, Nacked, NotFound) as error:
            await self._publish_again(message, queue, error)

    async def _store(self, message: Message, queue: str, *, patient: bool) -> None:
        publisher = self._publisher
        if publisher is None or not publisher.is_open or not self._declarer.has(queue):
            while True:
                try:
                    async with asyncio.timeout(self._session.timeout):
                        await self._declarer.ensure(queue)
                        publisher = await self.open()
                    break
                except TimeoutError:
                    if not (patient and self._link.blocked):
                        raise self._late(message) from None
                    await self._alarm_over(message)
        future = self._send(publisher, message, queue)
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

    def _send(self, publisher: Publisher, message: Message, queue: str) -> "asyncio.Future[None]":
        return publisher.send(self._session.exchange, queue, to_properties(message), message.body)

    async def _publish_again(self, message: Message, queue: str, error: PublishRefused | NotFound) -> None:
        """Publish once more, and on until the time is over where a new leader or a majority is to be waited for."""
        pause = _FIRST_PAUSE
        try:
            async with asyncio.timeout(self._session.timeout):
                while True:
                    if isinstance(error, (Unroutable, NotFound)):
                        # The queue or the exchange was deleted since it was declared: make it again.
                        self._declarer.forget(queue)
                    if await self._declarer.ensure(queue) == CLASSIC and isinstance(error, Nacked):
                        raise error
                    try:
                        await self._send(await self.open(), message, queue)
                        return
                    except (Unroutable, Nacked, NotFound) as again:
                        error = again
                    await asyncio.sleep(pause)
                    pause = min(2 * pause, _LAST_PAUSE)
        except TimeoutError:
            raise (error if isinstance(error, Nacked) else self._late(message)) from None

    async def _confirmed(self, future: "asyncio.Future[None]", message: Message) -> None:
        """Wait for one confirm of many."""
        try:
            await future
        except (Unroutable, Nacked, NotFound) as error:
            await self._publish_again(message, message.queue, error)

    async def open(self) -> Publisher:
        """The channel to publish on now."""
        async with self._opening:
            if self._publisher is None or not self._publisher.is_open:
                self._publisher = await Publisher.open(self._link)
            return self._publisher


def _is_stored(future: "asyncio.Future[None]") -> bool:
    """Whether a publish is confirmed already: then awaiting it would only cost."""
    return future.done() and not future.cancelled() and future.exception() is None
