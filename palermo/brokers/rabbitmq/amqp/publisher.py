"""Publish messages, each mandatory and confirmed, and recreate missing destinations."""

import asyncio
import struct
import threading
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, NamedTuple

from msgspec import Struct
from pika import exceptions, spec

from palermo.brokers.rabbitmq.amqp import frames
from palermo.brokers.rabbitmq.amqp.connection import Channel, Connection
from palermo.brokers.rabbitmq.amqp.messages import PERSISTENT_JSON, Got, Properties, to_message, write_record, written
from palermo.brokers.rabbitmq.amqp.replies import Probe
from palermo.brokers.rabbitmq.seconds import ANSWERED_WITHIN, PATIENCE, RETRY_EVERY
from palermo.contract.broker import OnPublished
from palermo.core.message import Message
from palermo.core.topology import QUORUM
from palermo.errors import BrokerRefused, HeadersTooLarge, NotFound, PalermoError, PublishRefused

#: Properties of a message that is dropped unless a consumer takes it immediately.
_EMPTY = Properties(delivery_mode=1, expiration="0")


class Unroutable(NotFound):
    """No queue is bound for the message: the queue was deleted since its declaration."""


class PublishFuture:
    """A callback of type OnPublished that sets a future."""

    __slots__ = ("future",)

    def __init__(self) -> None:
        self.future: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def __call__(self, error: PalermoError | None) -> None:
        if self.future.done():
            return
        if error is None:
            self.future.set_result(None)
        else:
            self.future.set_exception(error)
            # Mark the error as retrieved: many publishes may fail with the same error, of which only one is awaited.
            self.future.exception()


class _Pending(NamedTuple):
    """A publish that the broker hasn't answered yet."""

    ended: OnPublished
    routing_key: str
    id: str | None


class Publisher:
    """Publishes on a channel in confirm mode. If the channel closes, the owner opens another Publisher.

    A Publisher also counts as closed after its first nack. If a quorum queue's leader dies during a publish, the
    channel keeps refusing messages for that queue long after there is a new leader (3.10.8).
    """

    def __init__(self, channel: Channel) -> None:
        self.channel = channel
        self._raw = channel.raw
        self._number: int = channel.raw.channel_number
        self._wire = channel.connection.raw
        self._frame_max: int = self._wire.params.frame_max
        #: Maximum size of a message's properties in one frame, in bytes.
        self.room = self._wire.room
        self._own_thread = threading.get_ident()
        #: Pending publishes by delivery tag, which increases from 1 by one with each message.
        self._pending: dict[int, _Pending] = {}
        #: By delivery tag, why messages were returned whose confirm is still pending.
        self._returned: dict[int, str] = {}
        self._published = 0
        #: No tag below this is pending.
        self._first = 1
        self._nacked = False
        self.is_open = True
        channel.on_close(self._on_close)
        channel.raw.add_on_return_callback(self._on_return)

    @classmethod
    async def open(cls, connection: Connection) -> "Publisher":
        channel = await connection.channel()
        publisher = cls(channel)
        await channel.call(channel.raw.confirm_delivery, publisher._on_confirm)
        publisher._wire.acks_to(channel.raw, publisher._settle)
        return publisher

    async def finds(self, queue: str, body: bytes = b"") -> bool:
        """Whether a queue of this name exists. Raises the session's error.

        Publishes a message with this body: if there is no queue, RabbitMQ returns it; otherwise it expires or a
        consumer takes it. A passive declare of a missing or locked queue would close the channel and take RabbitMQ a
        millisecond, and RabbitMQ would log it as an error. For a queue that may have messages but no consumer, use
        Connection.probe, because the message would not expire.
        """
        try:
            await self.send("", queue, _EMPTY, body)
        except Unroutable:
            return False
        except PublishRefused:
            pass  # it exists but refuses the message
        return True

    def send(self, exchange: str, routing_key: str, properties: Properties, body: bytes) -> asyncio.Future[None]:
        """Send a message. The future is done when the broker has stored it.

        The future raises Unroutable if no queue is bound, HeadersTooLarge if the message can't be encoded,
        PublishRefused if RabbitMQ doesn't store it (the queue is full, or a quorum queue has no leader or majority), or
        the session's error.
        """
        ended = PublishFuture()
        try:
            self.post(exchange, routing_key, b"".join(properties.encode()), body, ended, properties.message_id)
        except (ValueError, struct.error) as error:
            ended(unfit(properties.message_id, error))
        return ended.future

    def send_job(self, exchange: str, routing_key: str, message: Message) -> asyncio.Future[None]:
        """Send a job; returns the future of `send`. A failed job's errors are cut to fit a frame (`written`)."""
        ended = PublishFuture()
        try:
            self.post(exchange, routing_key, written(message, self.room), message.body, ended, message.id)
        except (ValueError, struct.error) as error:
            ended(unfit(message.id, error))
        return ended.future

    def forward(self, exchange: str, routing_key: str, got: Got, ended: OnPublished) -> None:
        """Send a job that was received from a queue. `ended` is called with the outcome, as for `send_job`."""
        try:
            self.post(exchange, routing_key, self._properties(got), got.body, ended, got.id)
        except (ValueError, struct.error) as error:
            ended(unfit(got.id, error))

    def _properties(self, got: Got) -> bytes:
        """The properties of a job that was received from a queue, with its errors cut to fit a frame."""
        encoded = got.encoded
        if len(encoded) > self.room:
            encoded = written(to_message(got.properties, got.body, taken_from=None), self.room)
        return encoded

    def post(
        self, exchange: str, routing_key: str, properties: bytes, body: bytes, ended: OnPublished, id: str | None
    ) -> bool:
        """Send a message; the connection's thread calls `ended` with the outcome, as for `send`.

        `properties` are encoded; `id` is the message's id. Any thread may call this. Outside of the connection's
        thread, it returns False, with nothing started, if another write is in progress or the channel ends. `ended` may
        be called before this returns. Raises ValueError or struct.error, with nothing sent, for a message that can't be
        encoded.
        """
        pieces = frames.message(self._number, exchange, routing_key, properties, body, frame_max=self._frame_max)
        wire, own = self._wire, threading.get_ident() == self._own_thread
        # If an exception interrupts the following lines, the lock stays taken and the connection ends (SocketLock).
        held = wire.socket_lock.take() if own else wire.socket_lock.borrow()
        if held and self._raw.is_open and (own or wire.idle):
            self._published += 1
            self._pending[self._published] = _Pending(ended, routing_key, id)
            if own:
                wire.send(pieces)
            else:
                # Fast path: the thread that waits for the confirm writes. IoThread.send has the measurement.
                wire.send_now(b"".join(pieces))
            wire.socket_lock.release()
            return True
        if held:
            wire.socket_lock.release()
        elif own:
            wire.abort()
        if own:
            ended(self._closed())
        return own

    def check(self, got: Got) -> None:
        """Raise HeadersTooLarge if `forward` can't send this job."""
        try:
            frames.message(self._number, "", "", self._properties(got), b"", frame_max=self._frame_max)
        except (ValueError, struct.error) as error:
            raise unfit(got.id, error) from error

    def _closed(self) -> PalermoError:
        return self.channel.error or self.channel.connection.translated(exceptions.ChannelWrongStateError())

    def _on_confirm(self, frame: Any) -> None:
        """Handle an ack or a nack that pika has read."""
        nacked = isinstance(frame.method, spec.Basic.Nack)
        if nacked:
            self._nacked, self.is_open = True, False
        self._settle(frame.method.delivery_tag, frame.method.multiple, nacked=nacked)

    def _settle(self, last: int, multiple: bool, *, nacked: bool = False) -> None:
        first = self._first if multiple else last
        if first <= self._first:
            self._first = last + 1
        for tag in range(first, last + 1):
            pending = self._pending.pop(tag, None)
            returned = self._returned.pop(tag, "") if self._returned else ""
            if pending is not None:
                pending.ended(_error(pending, returned) if nacked or returned else None)
        if self._nacked and not self._pending and self.channel.is_open:
            self.channel.abandon()

    def _on_return(self, _: object, method: Any, properties: Properties, body: bytes) -> None:
        # RabbitMQ sends returns before confirms, in the order of publishing. It returns both or neither of two copies
        # with one id for one queue, so it doesn't matter which of them is found here.
        for tag, pending in list(self._pending.items()):
            if (
                pending.id == properties.message_id
                and pending.routing_key == method.routing_key
                and tag not in self._returned
            ):
                self._returned[tag] = str(method.reply_text or "no route")
                return

    def _on_close(self) -> None:
        self.is_open = False
        self._wire.acks_no_more(self.channel.raw)
        error: PalermoError = self.channel.error or PublishRefused("the channel was closed")
        held = self._wire.socket_lock.take()
        pending, self._pending = self._pending, {}
        if held:
            self._wire.socket_lock.release()
        for one in pending.values():
            one.ended(error)


class OwnPublisher:
    """A publisher for one kind of messages, reopened after it has closed.

    Each user has its own, because a refusal closes the channel, and with it every unconfirmed publish.
    """

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._opening = asyncio.Lock()
        self._opened: Publisher | None = None

    async def open(self) -> Publisher:
        """The publisher, opened if necessary."""
        async with self._opening:
            if self._opened is None or not self._opened.is_open:
                self._opened = await Publisher.open(self._connection)
            return self._opened

    def give_up(self) -> None:
        """Close the channel, before unconfirmed messages accumulate and RabbitMQ stops reading from the connection."""
        publisher, self._opened = self._opened, None
        if publisher is not None and publisher.channel.is_open:
            publisher.channel.abandon()


def unfit(id: str | None, error: Exception) -> HeadersTooLarge:
    """The error for a message that can't be encoded. None of it has been sent, because encoding comes first."""
    return HeadersTooLarge(f"job {id} has a header that AMQP cannot hold: {error}.")


def _error(pending: _Pending, returned: str) -> PalermoError:
    if returned:
        return Unroutable(f"RabbitMQ has no queue for {pending.routing_key!r}: {returned}.")
    what = f"job {pending.id}" if pending.id else "a record"
    return PublishRefused(
        f"RabbitMQ refused {what} for queue {pending.routing_key!r}: the queue is full, or most of its nodes are down."
    )


class Destination(Struct, frozen=True):
    """A queue or an exchange. It is created before its first use on a connection, and again when found missing.

    Law: a connection creates a destination once, and then publishes without further checks. A destination is found
    missing (NotFound) when RabbitMQ returns a message (Unroutable) or reports that the exchange doesn't exist. Then it
    is created, and the message published again.

    Promise:

    * `publish` returns once the message is stored in a queue that existed at that moment.
    * It raises if the message is refused (PublishRefused), if the destination is missing twice in a row, or if the
      session is lost. After a missing exchange or a lost session the message may be stored anyway; a second copy has
      the same id.
    * kill -9 of this process leaves at most an empty destination.

    Cost: nothing while the destination exists; otherwise its creation, and one more publish.
    """

    #: Creates it, unless this connection has already created or found it.
    ensure: Callable[[], Awaitable[object]]
    #: Records that it is missing, so that `ensure` creates it again.
    forget: Callable[[], None]

    async def publish(self, send: Callable[[], Awaitable[object]]) -> None:
        """Publish with `send`, which returns once the message is stored. Raises the errors named in the class."""
        await self.ensure()
        try:
            await send()
        except NotFound:
            self.forget()
            await self.ensure()
            await send()


class MissingQueues:
    """Queues that one session has found missing. Checks them again with Publisher.finds, which RabbitMQ doesn't log.

    Law: a queue is checked in this way only after RabbitMQ has answered a query of it with an error, and until it is
    found. So each session puts at most one empty message into the queue, which the queue's readers must ignore.
    """

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._publisher = OwnPublisher(connection)
        self._missing: set[str] = set()
        #: Whether this user may write to such queues. True until RabbitMQ refuses it.
        self._may_write = True

    def found(self, queue: str) -> None:
        """Record that the queue exists, so that it gets no more test messages."""
        self._missing.discard(queue)

    async def probe(self, connection: Connection, queue: str) -> Probe:
        """The same as Connection.probe."""
        if queue in self._missing and await self._is_missing(queue):
            return Probe(exists=False)
        probe = await connection.probe(queue)
        if not probe.exists:
            self._missing.add(queue)
        return probe

    async def _is_missing(self, queue: str) -> bool:
        """Whether RabbitMQ returns a message for the queue.

        Also False if an alarm or a missing permission prevents the test.
        """
        if self._connection.blocked or not self._may_write:
            return False
        try:
            async with asyncio.timeout(ANSWERED_WITHIN):
                if not await (await self._publisher.open()).finds(queue):
                    return True
        except TimeoutError:
            return False
        except BrokerRefused:
            self._may_write = False
            return False
        self.found(queue)
        return False


class RecordQueue:
    """A durable queue for records of all sessions. An existing one of another type is used unchanged."""

    def __init__(
        self,
        name: str,
        connection: Connection,
        publisher: Callable[[], Awaitable[Publisher]],
        arguments: Mapping[str, Any],
    ) -> None:
        """`arguments` are those of the queue's declaration."""
        self.name = name
        self._connection = connection
        self._publisher = publisher
        self._missing = MissingQueues(connection)
        self._arguments = dict(arguments)
        #: Whether this connection has created or found it.
        self.made = False
        self._existed = False
        self._destination = Destination(self.ensure, self.forget)

    async def exists(self, reading: Connection | None = None) -> bool:
        """Whether the queue was ever created. `reading` is a connection that never publishes, if available."""
        if not self._existed:
            self._existed = (await self._missing.probe(reading or self._connection, self.name)).exists
        return self._existed

    async def ensure(self) -> None:
        """Create the queue, unless this connection has created it."""
        if not self.made:
            is_new = not (await self._connection.probe(self.name)).exists
            await self._connection.declare(self.name, self._arguments)
            self._missing.found(self.name)
            if is_new:
                await self._connection.persist_queues()
            self.made = True

    def forget(self) -> None:
        """Record that the queue may be missing."""
        self.made = False

    async def write(self, record: Mapping[str, Any]) -> None:
        """Add a record; returns once it is stored.

        Raises PublishRefused if the queue refuses the record. A quorum queue is retried for five seconds first.
        """
        body = write_record(record)

        async def send() -> None:
            await (await self._publisher()).send("", self.name, PERSISTENT_JSON, body)

        loop = asyncio.get_running_loop()
        # A queue in creation has a name before it has a leader, and refuses messages until then (3.10.8).
        until = loop.time() + PATIENCE
        while True:
            try:
                return await self._destination.publish(send)
            except PublishRefused:
                if self._arguments.get("x-queue-type") != QUORUM or loop.time() > until:
                    raise
                await asyncio.sleep(RETRY_EVERY)
