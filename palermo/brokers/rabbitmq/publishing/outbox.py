"""Publishes a session's messages on one channel, with confirms and retries, and declares each queue once.

A delayed message goes to an intake, one with a tenant to the tenant's queue, and any other to its job queue
(job_destinations.py).
"""

import asyncio
import struct
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from itertools import islice

from palermo.brokers.rabbitmq.amqp import versions
from palermo.brokers.rabbitmq.amqp.alarms import confirmed, log_blocked, unconfirmed
from palermo.brokers.rabbitmq.amqp.connection import Connection
from palermo.brokers.rabbitmq.amqp.messages import written
from palermo.brokers.rabbitmq.amqp.publisher import OwnPublisher, Publisher, PublishFuture, RecordQueue, unfit
from palermo.brokers.rabbitmq.browsing.failed_log import FailedLog
from palermo.brokers.rabbitmq.publishing.declarer import Declarer
from palermo.brokers.rabbitmq.publishing.job_destinations import (
    JobDestinations,
    Place,
    TenantQueue,
    TenantQueues,
    delay_queue_name,
)
from palermo.brokers.rabbitmq.seconds import LOOK_EVERY, SOON
from palermo.contract.broker import OnPublished, SessionParameters, ignore_count
from palermo.contract.clock import wall_clock
from palermo.core.due_times import Intake, intake_of
from palermo.core.message import Message
from palermo.core.topology import CLASSIC, QUORUM, is_failed
from palermo.errors import BrokerUnavailable, NotFound, PalermoError, PublishRefused

#: Number of messages sent together in `publish_many`: the broker stores them while the next are prepared. Their
#: tenants' queues are created together too.
_TOGETHER = 100


class Outbox:
    """Publishes the messages of one session."""

    def __init__(self, session: SessionParameters, connection: Connection, declarer: Declarer) -> None:
        self._session = session
        self._connection = connection
        #: Declares queues on the connection for publishing.
        self.declarer = declarer
        self._own_publisher = OwnPublisher(connection)
        self._publisher: Publisher | None = None
        #: The log that lists the failed jobs of quorum queues.
        self.failed_log = FailedLog(session.exchange, connection, patience=session.timeout)
        #: The queues in which tenants' jobs wait for their turns.
        self.tenant_queues = TenantQueues(session.exchange, connection, self.open)
        arguments = versions.arguments(session.queue_type, connection.version)
        intakes = {
            one: RecordQueue(delay_queue_name(session.exchange, one), connection, self.open, arguments)
            for one in Intake
        }
        #: All destinations of jobs.
        self.destinations = JobDestinations(session, declarer, self.tenant_queues, intakes, self.open, self.failed_log)

    def try_publish(self, message: Message, ended: OnPublished) -> bool:
        """Send the message now, if no queue or channel must be created first. See palermo.contract.broker.Broker."""
        publisher, place = self._publisher, _place(message, message.queue)
        if publisher is None or not publisher.is_open or not self.destinations.has(place):
            return False
        try:
            return self._post(publisher, message, place, ended)
        except (ValueError, struct.error):
            return False  # `publish` raises the error

    async def publish_many(
        self,
        messages: Iterable[Message],
        into: Callable[[Message], str] | None = None,
        stored: Callable[[int], None] = ignore_count,
    ) -> int:
        """Store these messages, each in its own queue, or in the one returned by `into`.

        See palermo.contract.broker.Broker.
        """
        window = ConfirmWindow()
        try:
            return await self._publish_through(window, messages, into)
        finally:
            stored(window.stored)

    async def _publish_through(
        self,
        window: "ConfirmWindow",
        messages: Iterable[Message],
        into: Callable[[Message], str] | None,
    ) -> int:
        failed: dict[str, list[Message]] = {}
        count = 0
        for some in _by(_TOGETHER, messages):
            if into is None:
                await self._ensure_tenant_queues(some)
            for message in some:
                queue = message.queue if into is None else into(message)
                place = _place(message, queue)
                if into is not None and is_failed(queue):
                    failed.setdefault(queue, []).append(message)
                if not self.destinations.has(place):
                    await self.destinations.ensure(place, message.priority)
                publisher = self._publisher
                if publisher is None or not publisher.is_open:
                    publisher = await self.open()
                self._send(publisher, message, place, window.add(message, place))
                if window.full:
                    self._connection.raw.flush()
                    await window.wait_for_capacity()
                    await self._again(window)
            count += len(some)
            self._connection.raw.flush()
            if not self._connection.raw.writable.is_set():
                await self._connection.raw.writable.wait()
        await window.wait_for_confirms()
        await self._again(window)
        for queue, put in failed.items():
            await self.destinations.note_failed(queue, put)
        return count

    async def _again(self, window: "ConfirmWindow") -> None:
        """Publish the refused messages again."""
        refused, window.refused = window.refused, []
        for message, place, error in refused:
            await self._publish_again(message, place, error)
            window.stored += 1

    async def _ensure_tenant_queues(self, messages: list[Message]) -> None:
        """Create the queues of these messages' tenants together.

        If one message has a priority, all new queues get priorities.
        """
        missing: dict[TenantQueue, int] = {}
        for message in messages:
            if message.tenant:
                place = _place(message, message.queue)
                if isinstance(place, TenantQueue) and not self.tenant_queues.has(place):
                    missing[place] = max(missing.get(place, 0), message.priority)
        if missing:
            await self.tenant_queues.ensure(*missing, priority=max(missing.values()))

    async def publish(self, message: Message, queue: str, *, patient: bool = False) -> None:
        """Store the message in this queue, or in the place where it first has to wait.

        See palermo.contract.broker.Broker.publish. With `patient`, the call waits while an alarm lasts, because giving
        up would only cause the job to run again.
        """
        place = _place(message, queue)
        try:
            await self._store(message, place, patient=patient)
        except (PublishRefused, NotFound) as error:
            await self._publish_again(message, place, error)
        await self.destinations.note_failed(place, [message])

    async def _store(self, message: Message, place: Place, *, patient: bool) -> None:
        publisher = self._publisher
        if publisher is None or not publisher.is_open or not self.destinations.has(place):
            while True:
                try:
                    async with asyncio.timeout(self._session.timeout):
                        await self.destinations.ensure(place, message.priority)
                        publisher = await self.open()
                    break
                except TimeoutError:
                    if not (patient and self._connection.blocked):
                        raise self._late(message) from None
                    await self._alarm_over(message)
        future = self._sent(publisher, message, place)
        self._connection.raw.flush()
        await confirmed(future, self._connection, f"job {message.id}", self._session.timeout, patient=patient)

    async def _alarm_over(self, message: Message) -> None:
        log_blocked(f"job {message.id}")
        while self._connection.blocked and self._connection.error is None:  # noqa: ASYNC110 - seldom, and pika has no event for it
            await asyncio.sleep(LOOK_EVERY)

    def _late(self, message: Message) -> BrokerUnavailable:
        return unconfirmed(self._connection, f"job {message.id}", self._session.timeout)

    def _post(self, publisher: Publisher, message: Message, place: Place, ended: OnPublished) -> bool:
        """See Publisher.post. Raises ValueError or struct.error for a message that can't be encoded."""
        if message.properties and message.priority and isinstance(place, str) and not is_failed(place):
            self.declarer.warn_of_priority(place)
        properties = written(message, publisher.room)
        return publisher.post(*self.destinations.route(place), properties, message.body, ended, message.id)

    def _send(self, publisher: Publisher, message: Message, place: Place, ended: OnPublished) -> None:
        try:
            self._post(publisher, message, place, ended)
        except (ValueError, struct.error) as error:
            ended(unfit(message.id, error))

    def _sent(self, publisher: Publisher, message: Message, place: Place) -> "asyncio.Future[None]":
        ended = PublishFuture()
        self._send(publisher, message, place, ended)
        return ended.future

    async def _publish_again(self, message: Message, place: Place, error: PublishRefused | NotFound) -> None:
        """Retry until the session's timeout, because a quorum queue may be waiting for a leader or a majority.

        Raises the second nack of a classic queue. The first may come from a quorum queue that a migration has just
        replaced (4.3). Raises the nack of a quorum queue if RabbitMQ reports jobs in it, because it is then full.
        RabbitMQ reports no jobs for a queue without a leader.
        """
        self.destinations.forget(place)
        pause, is_first, has_leader = SOON, True, False
        try:
            async with asyncio.timeout(self._session.timeout):
                while True:
                    kind = await self.destinations.ensure(place, message.priority)
                    if (kind == CLASSIC or has_leader) and isinstance(error, PublishRefused) and not is_first:
                        raise error
                    is_first = False
                    has_leader = kind == QUORUM and isinstance(place, str) and await self._holds_jobs(place)
                    try:
                        await self._sent(await self.open(), message, place)
                        return
                    except (PublishRefused, NotFound) as again:
                        error = again
                    if isinstance(error, NotFound):
                        self.destinations.forget(place)
                    await asyncio.sleep(pause)
                    pause = min(2 * pause, LOOK_EVERY)
        except TimeoutError:
            raise (error if isinstance(error, PublishRefused) else self._late(message)) from None

    async def _holds_jobs(self, queue: str) -> bool:
        counted = await self.declarer.count(queue)
        return counted is not None and counted[0] > 0

    async def open(self) -> Publisher:
        """The channel for publishing, opened if necessary."""
        self._publisher = await self._own_publisher.open()
        return self._publisher


def _place(message: Message, queue: str) -> Place:
    """The current place of a message for this queue. A failed job's place is `queue` itself."""
    if queue != message.queue or (message.run_at is None and not message.tenant):
        return queue
    intake = None if message.run_at is None else intake_of(message.run_at, wall_clock())
    return intake or TenantQueue.of(message) or queue


def _by(count: int, messages: Iterable[Message]) -> Iterator[list[Message]]:
    """Split the messages into lists of `count`."""
    waiting = iter(messages)
    while some := list(islice(waiting, count)):
        yield some


#: Maximum number of unconfirmed messages in flight, and of bytes of their bodies.
MOST, MOST_BYTES = 1_000, 16 * 1024 * 1024


class ConfirmWindow:
    """Limits the number and bytes of one call's messages in flight.

    A message is in flight until it is confirmed or refused.
    """

    def __init__(self) -> None:
        #: Refused messages that may be retried: the message, its place, and the error.
        self.refused: list[tuple[Message, Place, PublishRefused | NotFound]] = []
        #: Number of stored messages.
        self.stored = 0
        #: The first error of a message that must not be retried.
        self._error: PalermoError | None = None
        #: The number of messages in flight, and the bytes of their bodies.
        self._in_flight = self._bytes = 0
        #: Number of messages in flight at which the waiting call continues.
        self._wanted = 0
        self._waiting: asyncio.Future[None] | None = None

    def add(self, message: Message, place: Place) -> OnPublished:
        """Register the message; return the callback for its outcome."""
        self._in_flight += 1
        self._bytes += len(message.body)
        return partial(self._ended, message, place)

    @property
    def full(self) -> bool:
        """Whether no more messages may be sent now."""
        return self._in_flight >= MOST or self._bytes > MOST_BYTES or self._error is not None

    async def wait_for_capacity(self) -> None:
        """Wait until at most half of `MOST` messages are in flight.

        Raises the error of a message that must not be retried.
        """
        await self._until(MOST // 2)

    async def wait_for_confirms(self) -> None:
        """Wait until all messages are confirmed or refused. Raises the same as `wait_for_capacity`."""
        await self._until(0)

    async def _until(self, most: int) -> None:
        while self._error is None and (self._in_flight > most or self._bytes > MOST_BYTES):
            self._wanted = most
            self._waiting = asyncio.get_running_loop().create_future()
            await self._waiting
        if self._error is not None:
            raise self._error

    def _ended(self, message: Message, place: Place, error: PalermoError | None) -> None:
        self._in_flight -= 1
        self._bytes -= len(message.body)
        if error is None:
            self.stored += 1
        elif isinstance(error, PublishRefused | NotFound):
            self.refused.append((message, place, error))
        else:
            self._error = self._error or error
        waiting = self._waiting
        if waiting is not None and (self._in_flight <= self._wanted or self._error is not None) and not waiting.done():
            waiting.set_result(None)
