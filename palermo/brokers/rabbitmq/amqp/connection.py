"""A connection to RabbitMQ and its channels: awaitable calls, and each failure as one of Palermo's errors."""

import asyncio
import logging
import ssl
import uuid
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from typing import Any

from pika import exceptions, spec

from palermo.brokers.rabbitmq.amqp import versions
from palermo.brokers.rabbitmq.amqp.frames import Counted
from palermo.brokers.rabbitmq.amqp.messages import Got, Properties, delivered, unread
from palermo.brokers.rabbitmq.amqp.parameters import connection_parameters
from palermo.brokers.rabbitmq.amqp.replies import (
    PRECONDITION_FAILED,
    RESOURCE_LOCKED,
    Difference,
    Probe,
    reply_code,
    translate,
)
from palermo.brokers.rabbitmq.amqp.transport import AsyncioConnection, connect
from palermo.brokers.rabbitmq.amqp.unreadable import Unreadable
from palermo.brokers.rabbitmq.seconds import ANSWERED_WITHIN
from palermo.contract.broker import SessionParameters
from palermo.core.address import Address
from palermo.core.topology import CLASSIC, internal
from palermo.errors import BrokerRefused, BrokerUnavailable, NotFound, PalermoError

log = logging.getLogger("palermo.rabbitmq")

#: Maximum number of channels that a connection keeps open for reuse.
_MOST_SPARE = 2

#: Seconds that one call on an open channel may take before the session counts as lost. The slowest calls purge or
#: delete a queue of millions.
CALL_TIMEOUT = 60.0

#: Seconds without an answer to the simplest request after which a session without a worker is lost.
_FROZEN_AFTER = 3.0

#: Maximum bytes that Erlang's disk_log buffers in memory, and bytes of a frame around the argument.
_DISK_LOG_BUFFER, _FRAME_REST = 66_000, 1_000


def fulfil(future: "asyncio.Future[Any]", result: object) -> None:
    """Set the future's result, unless it is already done or cancelled."""
    if not future.done():
        future.set_result(result)


class Channel:
    """One AMQP channel. All its calls raise Palermo's errors, and an error may close it."""

    def __init__(self, connection: "Connection", raw: Any) -> None:
        self.connection = connection
        #: pika's own channel.
        self.raw = raw
        #: Why it ended; None while it is open.
        self.error: PalermoError | None = None
        #: The broker's reply code when it closed the channel, else 0.
        self.code = 0
        #: Whether the broker has requeued its deliveries, with or without closing it.
        self.is_taken_back = False
        self._waiting: set[asyncio.Future[Any]] = set()
        self._closers: list[Callable[[], object]] = []
        raw.add_on_close_callback(self._on_close)

    @property
    def is_open(self) -> bool:
        """Whether it is usable. False for all channels of a lost connection, which pika closes one by one."""
        return bool(self.raw.is_open and not self.connection.raw.is_closed)

    @property
    def missing(self) -> bool:
        """Whether it was closed because a call named an object that doesn't exist."""
        return isinstance(self.error, NotFound)

    def on_close(self, callback: Callable[[], object]) -> None:
        """Call `callback` once when the channel ends, for any reason."""
        self._closers.append(callback)

    async def call(self, method: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """Call a pika method that takes a callback. Returns the broker's answer."""
        future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self.send(method, *args, callback=lambda frame: fulfil(future, frame), **kwargs)
        return await self._answer(future)

    async def _answer(self, future: "asyncio.Future[Any]") -> Any:
        """Wait for an answer, or for the end of the channel."""
        self._waiting.add(future)
        try:
            await self.connection.wait_for(future)
            return future.result()
        except TimeoutError as error:
            raise self.error or self.connection.translated(error) from error
        finally:
            self._waiting.discard(future)

    def send(self, method: Callable[..., Any], *args: Any, **kwargs: Any) -> None:
        """Call a method that gets no answer. An error closes the channel, so that the next `call` raises it."""
        try:
            method(*args, **kwargs)
        except (exceptions.AMQPError, exceptions.ChannelError) as error:
            raise self.error or self.connection.translated(error) from error

    async def consume(
        self,
        queue: str,
        on_message: Callable[[Got], None],
        *,
        auto_ack: bool = False,
        arguments: Mapping[str, Any] | None = None,
        late: bool = False,
    ) -> str:
        """Subscribe to a queue, and call `on_message` with each message. Returns the consumer tag.

        With `late`, most messages' properties are parsed on demand. Such a subscription must be the only one of its
        channel, and must end by `unsubscribe` or with the channel.
        """
        tag = f"late.{uuid.uuid4().hex}" if late else ""
        if late:
            # Fast path. benchmarks.growth one: requeueing one of 50,000 failed jobs takes 5.3 s, 16.2 without it.
            self.connection.raw.deliver_to(self.raw, tag, lambda found, data: on_message(unread(found, data)))
        frame = await self.call(
            self.raw.basic_consume,
            queue,
            lambda _, method, properties, body: on_message(delivered(method, properties, body)),
            auto_ack=auto_ack,
            arguments=arguments,
            consumer_tag=tag,
        )
        return str(frame.method.consumer_tag)

    async def unsubscribe(self, tag: str) -> None:
        """End a subscription. Messages that arrive before its end are requeued."""
        self.connection.raw.deliver_no_more(self.raw)
        await self.call(self.raw.basic_cancel, tag)

    async def prefetch(self, count: int) -> None:
        """Set how many unacknowledged messages RabbitMQ may deliver to each consumer; 0 is no limit."""
        await self.call(self.raw.basic_qos, prefetch_count=count)

    def on_cancel(self, callback: Callable[[], None]) -> None:
        """Call `callback` when RabbitMQ cancels a consumer of the channel (queue deleted or node down)."""
        self.raw.add_on_cancel_callback(lambda _: callback())

    def on_return(self, callback: Callable[[Properties], None]) -> None:
        """Call `callback` with the properties of each unroutable mandatory message."""
        self.raw.add_on_return_callback(lambda _, method, properties, body: callback(properties))

    def ack(self, tag: int, *, multiple: bool = False) -> None:
        """Acknowledge a message, or with `multiple` all up to this tag."""
        self.raw.basic_ack(tag, multiple)

    def requeue(self, tag: int, *, multiple: bool = False) -> None:
        """Requeue a message, or with `multiple` all up to this tag; tag 0 means all of the channel."""
        self.raw.basic_nack(tag, multiple, requeue=True)

    def publish(
        self, exchange: str, routing_key: str, properties: Properties, body: bytes, *, mandatory: bool = False
    ) -> None:
        """Send a message without a confirm. Use Publisher for messages that must not be lost."""
        self.send(self.raw.basic_publish, exchange, routing_key, body, properties, mandatory=mandatory)

    async def bind(self, queue: str, exchange: str, routing_key: str = "") -> None:
        """Bind the queue to the exchange."""
        await self.call(self.raw.queue_bind, queue, exchange, routing_key=routing_key)

    async def unbind(self, queue: str, exchange: str, routing_key: str = "") -> None:
        """End the binding."""
        await self.call(self.raw.queue_unbind, queue, exchange, routing_key=routing_key)

    def on_get_empty(self, callback: Callable[[], None]) -> None:
        """Call `callback` whenever RabbitMQ answers a basic.get of this channel without a message."""
        self.raw.add_callback(lambda _: callback(), [spec.Basic.GetEmpty], False)

    async def get(self, queue: str) -> Got | None:
        """The first message of the queue, unacknowledged; None if it is empty. See `get_each`. One call at a time."""
        return (await self.get_each([queue]))[0]

    async def get_each(self, queues: Sequence[str]) -> list[Got | None]:
        """Request the next message of each of these queues in one write; None for an empty queue.

        The messages are unacknowledged. If the call is cancelled, it waits for the answers and requeues the messages.
        If the answers take too long, the call closes the channel.
        """
        if not queues:
            return []
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        found: list[Got | None] = []

        def take(got: Got | None) -> None:
            found.append(got)
            if len(found) == len(queues):
                fulfil(future, None)

        raw = self.connection.raw
        raw.answers_to(self.raw, lambda answer, data: take(unread(answer, data) if answer.tag else None))
        self._waiting.add(future)
        try:
            raw.get_each(self.raw, queues, lambda _, *answer: take(delivered(*answer, left=answer[0].message_count)))
            await self.connection.wait_for(future)
            future.result()
            return found
        except (exceptions.AMQPError, exceptions.ChannelError, TimeoutError) as error:
            self.abandon()
            raise self.error or self.connection.translated(error) from error
        except asyncio.CancelledError:
            with suppress(TimeoutError):
                await self.connection.wait_for(future)
            if not future.done():
                self.abandon()
            for got in filter(None, found if self.is_open else ()):
                self.requeue(got.tag)
            raise
        finally:
            self._waiting.discard(future)
            raw.deliver_no_more(self.raw)

    def _on_close(self, _: object, reason: BaseException) -> None:
        self.code = reply_code(reason) if isinstance(reason, exceptions.ChannelClosedByBroker) else 0
        self.is_taken_back |= bool(self.code)
        self.error = self.connection.error or self.error or self.connection.translated(reason)
        for future in self._waiting:
            if not future.done():
                future.set_exception(self.error)
                future.exception()  # a cancelled get only waits for the future's end, so its result is never read
        self._waiting.clear()
        self.connection.raw.deliver_no_more(self.raw)
        closers, self._closers = self._closers, []
        for closer in closers:
            closer()

    async def close(self) -> None:
        """Close the channel; RabbitMQ requeues its unsettled deliveries. Idempotent.

        Raises BrokerUnavailable if RabbitMQ does not answer in time.
        """
        if not self.is_open:
            return
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.on_close(lambda: fulfil(future, None))
        try:
            self.raw.close()
        except exceptions.AMQPError:
            return
        try:
            await self.connection.wait_for(future)
        except TimeoutError as error:
            raise self.connection.translated(error) from error

    def abandon(self) -> None:
        """Close the channel without waiting for the answer. Idempotent."""
        if self.is_open:
            self.raw.close()

    def take_back(self, error: PalermoError) -> None:
        """Close the channel after RabbitMQ has requeued its deliveries. Its calls then raise `error`."""
        if self.is_open:
            self.error, self.is_taken_back = error, True
            self.raw.close()

    # -- declarations. RabbitMQ closes the channel when it refuses one.

    async def probe(self, queue: str) -> Probe:
        """Query a queue without creating it. Closes the channel if the queue is missing or locked.

        Raises BrokerUnavailable if the queue's node is down.
        """
        try:
            frame = await self.call(self.raw.queue_declare, queue, passive=True)
        except PalermoError as error:
            return self.unanswered(error)
        return Probe(exists=True, ready=int(frame.method.message_count), subscribed=int(frame.method.consumer_count))

    def unanswered(self, error: PalermoError) -> Probe:
        """The state of a queue for which RabbitMQ returned this error.

        Raises an error that doesn't describe a queue's state.
        """
        if self.missing:
            return Probe(exists=False, error=error)
        if self.code == RESOURCE_LOCKED:
            return Probe(exists=True, locked=True, error=error)
        raise error

    async def counted(self, count: int, ask: Callable[[], None]) -> tuple[list[Probe], PalermoError | None]:
        """The answers to the `count` declarations sent by `ask`, and the error if one of them closes the channel."""
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        found: list[Probe] = []

        def on_counted(counted: Counted, _: bytes) -> None:
            found.append(Probe(exists=True, ready=counted.messages, subscribed=counted.consumers))
            if len(found) == count:
                fulfil(future, None)

        raw = self.connection.raw
        raw.counts_to(self.raw, on_counted)
        try:
            ask()
            await self._answer(future)
        except PalermoError as error:
            if self.error is None:
                raise
            return found, error
        finally:
            raw.deliver_no_more(self.raw)
        return found, None

    async def declare(self, queue: str, arguments: Mapping[str, Any] | None = None) -> Difference | None:
        """Create a durable queue. If a different queue exists, returns the difference, and the channel is closed."""
        return await self._declare(self.raw.queue_declare, queue, durable=True, arguments=dict(arguments or {}))

    async def declare_exchange(self, exchange: str, kind: str) -> Difference | None:
        """The same for a durable exchange."""
        return await self._declare(self.raw.exchange_declare, exchange, kind, durable=True)

    async def _declare(self, method: Callable[..., Any], *args: Any, **kwargs: Any) -> Difference | None:
        try:
            await self.call(method, *args, **kwargs)
        except PalermoError as error:
            difference = Difference.parse(str(error)) if self.code == PRECONDITION_FAILED else None
            if difference is None:
                raise
            return difference
        return None


class Connection:
    """One connection to RabbitMQ. Once lost, it never reconnects: `error` has the reason, and all calls raise it."""

    def __init__(self, session: SessionParameters, host: tuple[str, int]) -> None:
        self._session = session
        self.address: Address = session.address
        #: The host and port that it is connected to, and both as text.
        self.host = host
        self.where = f"{host[0]}:{host[1]}"
        self.error: PalermoError | None = None
        self.raw: AsyncioConnection
        #: The server's version, such as `3.10.8`, kept after the connection is lost; "" if the server doesn't report
        #: it.
        self.version = ""
        self.lost = asyncio.Event()
        self.unreadable = Unreadable()
        #: RabbitMQ's reason for not reading from it now, such as "low on memory"; "" for none.
        self.blocked = ""
        self._spare: list[Channel] = []  #: Open channels that are not in use.

    async def wait_for(self, answer: "asyncio.Future[Any]") -> None:
        """Wait until RabbitMQ's answer has arrived. Raises TimeoutError after CALL_TIMEOUT.

        A worker waits for a frozen RabbitMQ to continue. Any other session is lost within five seconds: if nothing at
        all arrives, not even the answer to a request that RabbitMQ answers during the slowest of calls.
        """
        async with asyncio.timeout(CALL_TIMEOUT):
            while not (await asyncio.wait({answer}, timeout=None if self._session.takes else ANSWERED_WITHIN))[0]:
                received = self.raw.bytes_received
                try:
                    self.raw.channel(on_open_callback=lambda opened: opened.close())
                except exceptions.AMQPError:  # no more channels, or the connection is closing
                    continue
                await asyncio.wait({answer}, timeout=_FROZEN_AFTER)
                if self.raw.bytes_received == received and not self.blocked:
                    self.error = BrokerUnavailable(f"RabbitMQ at {self.where} stopped answering.")
                    self.raw.abort()

    async def another(self, purpose: str) -> "Connection":
        """Another connection to the same broker, for calls that may make RabbitMQ close the connection."""
        return await open_connection(self._session, purpose)

    def translated(self, error: BaseException) -> PalermoError:
        return translate(error, self.where, user=self.address.username, vhost=self.address.vhost)

    async def channel(self) -> Channel:
        """A new channel. Raises BrokerUnavailable if the connection is lost; if it is closing, once it has closed."""
        if self.error is not None:
            raise self.error.with_traceback(None)  # otherwise each raise would keep the callers' objects alive
        opened: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        try:
            raw = self.raw.channel(on_open_callback=lambda _: fulfil(opened, None))
        except exceptions.AMQPError as error:
            if isinstance(error, exceptions.ConnectionWrongStateError):
                # It is closing. A caller that retries until `error` is set must not busy-wait.
                await self.lost.wait()
            raise self.error or self.translated(error) from error
        raw.add_on_close_callback(lambda *_: fulfil(opened, None))
        try:
            await self.wait_for(opened)
        except TimeoutError as error:
            raise self.translated(error) from error
        if self.error is not None:
            raise self.error.with_traceback(None)
        return Channel(self, raw)

    @asynccontextmanager
    async def spare_channel(self) -> AsyncIterator[Channel]:
        """A channel for calls that leave no state behind. It is reused later if it is still open.

        No other task uses it in the meantime, so an error that closes it affects no other call.
        """
        self._spare = [channel for channel in self._spare if channel.is_open]
        channel = self._spare.pop() if self._spare else await self.channel()
        try:
            yield channel
        except BaseException:
            # The next user must not receive an answer that arrives late.
            channel.abandon()
            raise
        if channel.is_open and len(self._spare) < _MOST_SPARE:
            self._spare.append(channel)
        else:
            await channel.close()

    async def probe(self, queue: str) -> Probe:
        """Query a queue without creating it. Raises BrokerUnavailable if the queue's node is down."""
        async with self.spare_channel() as channel:
            return await channel.probe(queue)

    async def declare(self, queue: str, arguments: Mapping[str, Any] | None = None) -> Difference | None:
        """Create a durable queue if it doesn't exist. Returns how an existing one differs, or None."""
        async with self.spare_channel() as channel:
            return await channel.declare(queue, arguments)

    async def declare_exchange(self, exchange: str, kind: str) -> Difference | None:
        """The same for a durable exchange."""
        async with self.spare_channel() as channel:
            return await channel.declare_exchange(exchange, kind)

    async def persist_queues(self) -> None:
        """Return once all queues, exchanges and bindings made so far would survive a kill of RabbitMQ.

        Before 4.3 RabbitMQ buffers such changes in memory for up to two seconds, or 64 kB (Erlang's disk_log). If a
        queue is lost, so are its confirmed messages. To flush the buffer, this creates and deletes an exchange with a
        large argument, in about five milliseconds.
        """
        if not versions.forgets_new_queues(self.version):
            return
        try:
            await self._overflow_disk_log()
        except PalermoError as error:
            if self.error is not None:
                raise
            # This user may create queues but not exchanges. The queue exists anyway.
            log.warning("a new queue may be lost if RabbitMQ is killed within two seconds error=%r", str(error))

    async def _overflow_disk_log(self) -> None:
        most = self.raw.params.frame_max - _FRAME_REST
        for _ in range(-(-_DISK_LOG_BUFFER // most)):
            name = f"{internal(self._session.exchange, 'persist')}.{uuid.uuid4().hex}"
            async with self.spare_channel() as channel:
                large = {"x-palermo": "x" * min(most, _DISK_LOG_BUFFER)}
                await channel.call(channel.raw.exchange_declare, name, "direct", durable=True, arguments=large)
                await channel.call(channel.raw.exchange_delete, name)

    async def has_exchange(self, exchange: str) -> bool:
        """Whether the exchange exists."""
        async with self.spare_channel() as channel:
            return await self._found(channel, channel.raw.exchange_declare, exchange, passive=True) is not None

    async def purge(self, queue: str) -> int | None:
        """Remove all waiting messages from the queue. Returns their number; None if the queue doesn't exist."""
        async with self.spare_channel() as channel:
            frame = await self._found(channel, channel.raw.queue_purge, queue)
            return None if frame is None else int(frame.method.message_count)

    async def delete(self, queue: str) -> int | None:
        """Delete the queue. Returns the number of messages in it; None if it doesn't exist."""
        async with self.spare_channel() as channel:
            frame = await self._found(channel, channel.raw.queue_delete, queue)
            return None if frame is None else int(frame.method.message_count)

    async def delete_unused(self, queue: str) -> bool:
        """Delete the queue unless it has a message or a consumer. Returns whether it no longer exists.

        RabbitMQ offers this for classic queues; for a quorum queue it would close the connection (540). So a quorum
        queue is checked first, and a message that arrives between check and deletion is lost.
        """
        difference = await self.declare(queue, versions.arguments(CLASSIC, self.version))
        if difference is not None and difference.argument == "x-queue-type":
            return await self._delete_empty(queue)
        async with self.spare_channel() as channel:
            try:
                await self._found(channel, channel.raw.queue_delete, queue, if_empty=True, if_unused=True)
            except PalermoError:
                if self.error is not None:
                    raise
                return False
            return True

    async def _delete_empty(self, queue: str) -> bool:
        channel = await self.channel()
        # A get is the only reliable check that a slow quorum queue is empty (browsing/sweep.py).
        unused = await channel.get(queue) is None and not (await channel.probe(queue)).consumers
        await channel.close()
        if unused:
            await self.delete(queue)
        return unused

    async def _found(self, channel: Channel, method: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """The answer to a call; None if its object doesn't exist."""
        try:
            return await channel.call(method, *args, **kwargs)
        except PalermoError:
            if not channel.missing:
                raise
            return None

    async def close(self) -> None:
        """Close with AMQP's handshake, if RabbitMQ reads and answers within a second, and this isn't cancelled."""
        if self.error is not None:
            return
        try:
            self.raw.close()
            async with asyncio.timeout(0.0 if self.blocked else ANSWERED_WITHIN):
                await self.lost.wait()
        except (exceptions.AMQPError, TimeoutError):
            self.raw.abort()
        except asyncio.CancelledError:
            # Pending calls must get an error.
            self.raw.abort()
            raise

    def give_up(self, missing: str) -> None:
        """End the connection because one of Palermo's own objects was deleted. The next session recreates it."""
        if self.raw.is_open:
            self.raw.close(reply_text=f"{missing} was deleted; a new session will create it again")

    def _on_close(self, error: Exception) -> None:
        self.error = self.error or self.translated(error)
        if isinstance(error, exceptions.ConnectionClosedByClient):
            self.error = BrokerUnavailable(
                f"the session with RabbitMQ at {self.where} has been closed: {error.reply_text}."
            )
        self.lost.set()


async def open_connection(session: SessionParameters, purpose: str, *, heartbeat: int | None = None) -> Connection:
    """Connect to the first host of the address that accepts it, within the session's timeout for all hosts.

    `heartbeat`, in seconds, applies if the address sets none. Raises UrlInvalid for an invalid query. Raises
    BrokerRefused if a host refuses our credentials or virtual host, since the cluster's other hosts would refuse them
    too, or if TLS fails with every host. If no host accepts the connection for another reason, raises
    BrokerUnavailable, which names all tried hosts.
    """
    deadline = asyncio.get_running_loop().time() + session.timeout
    tried: list[PalermoError] = []
    hosts = session.address.hosts
    for number, (host, port) in enumerate(hosts):
        left = deadline - asyncio.get_running_loop().time()
        if left <= 0:
            break
        connection = Connection(session, (host, port))
        try:
            connection.raw = await connect(
                connection_parameters(session, host, port, purpose, heartbeat),
                timeout=left / (len(hosts) - number),
                on_close=connection._on_close,
            )
        except (exceptions.AMQPError, OSError, TimeoutError) as error:
            refused = connection.translated(error)
            # Each host has its own certificate, and the next one's may be valid.
            if not isinstance(refused, BrokerUnavailable) and not isinstance(error, ssl.SSLError):
                raise refused from error
            tried.append(refused)
            continue
        connection.version = str((connection.raw.server_properties or {}).get("version", ""))
        connection.raw.add_on_connection_blocked_callback(
            lambda _, it, me=connection: setattr(me, "blocked", it.method.reason)
        )
        connection.raw.add_on_connection_unblocked_callback(lambda *_, me=connection: setattr(me, "blocked", ""))
        return connection
    text = " ".join(map(str, tried)) or f"RabbitMQ at {hosts[0][0]} did not answer in time."
    if len(tried) == len(hosts) and all(isinstance(error, BrokerRefused) for error in tried):
        raise BrokerRefused(text)
    raise BrokerUnavailable(text)
