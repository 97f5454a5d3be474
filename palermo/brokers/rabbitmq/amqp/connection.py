"""A connection to RabbitMQ and its channels: awaitable calls, and each failure as one of Palermo's errors."""

import asyncio
import logging
import ssl
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any, TypeVar

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
from palermo.contract.broker import SessionParameters
from palermo.core.address import Address
from palermo.core.topology import CLASSIC, internal
from palermo.errors import BrokerRefused, BrokerUnavailable, NotFound, PalermoError

T = TypeVar("T")


async def together(*works: Awaitable[Any]) -> list[Any]:
    """The results of all of these, awaited at the same time. Raises the first failure, after the others have ended."""
    tasks = [asyncio.ensure_future(work) for work in works]
    try:
        return await asyncio.gather(*tasks)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)


async def finish(work: Awaitable[None]) -> None:
    """Run this to its end, even if the caller is cancelled again; ignore that its session may be gone already."""
    await uninterrupted(quietly(work))


async def uninterrupted(work: Coroutine[Any, Any, T]) -> T:
    """Await this, and let it finish even if the caller is cancelled."""
    task = asyncio.ensure_future(work)
    task.add_done_callback(lambda done: done.cancelled() or done.exception())  # the caller may be gone
    return await asyncio.shield(task)


async def quietly(closing: Awaitable[None]) -> None:
    """Await the end of something, and ignore that its session may be gone already."""
    try:
        await closing
    except PalermoError:
        return


log = logging.getLogger("palermo.rabbitmq")

#: The most channels that a connection keeps open for its next use.
_MOST_SPARE = 2

#: Seconds that one call on an open channel may take before the session counts as lost. The slowest call is to
#: purge or delete a queue of millions.
CALL_TIMEOUT = 60.0

#: Seconds between two attempts at what RabbitMQ cannot do yet, such as reading a stream that is down.
RETRY_EVERY = 0.1

#: Seconds that a worker waits until a record about its jobs is stored or read, before it continues without that.
STORED_WITHIN = 3.0

#: Bytes that Erlang's disk_log keeps in memory at most, and bytes of a frame that are not the argument's.
_DISK_LOG_BUFFER, _FRAME_REST = 66_000, 1_000


def fulfil(future: "asyncio.Future[Any]", result: object) -> None:
    """Give the future its result, unless it is done already, as when its waiter was cancelled."""
    if not future.done():
        future.set_result(result)


class Channel:
    """One AMQP channel. All its calls raise Palermo's errors; after any of them it may be closed."""

    def __init__(self, connection: "Connection", raw: Any) -> None:
        self.connection = connection
        #: pika's own channel.
        self.raw = raw
        #: Why it ended; None while it is open.
        self.error: PalermoError | None = None
        #: The broker's reply code when it closed the channel, else 0.
        self.code = 0
        #: Whether the broker ended it, or has taken back what it had delivered on it.
        self.is_taken_back = False
        self._waiting: set[asyncio.Future[Any]] = set()
        self._closers: list[Callable[[], None]] = []
        raw.add_on_close_callback(self._on_close)

    @property
    def is_open(self) -> bool:
        """Whether it can be used. When the connection is lost no channel can, though pika tells one after another."""
        return bool(self.raw.is_open and not self.connection.raw.is_closed)

    @property
    def missing(self) -> bool:
        """Whether it ended because what it asked about does not exist."""
        return isinstance(self.error, NotFound)

    def on_close(self, callback: Callable[[], None]) -> None:
        """Call `callback` once when the channel ends, for whatever reason."""
        self._closers.append(callback)

    async def call(self, method: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """Call one of pika's methods that take a callback. Returns the broker's answer."""
        future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self.send(method, *args, callback=lambda frame: fulfil(future, frame), **kwargs)
        return await self._answer(future)

    async def _answer(self, future: "asyncio.Future[Any]") -> Any:
        """Wait for an answer, which does not come if the channel ends."""
        self._waiting.add(future)
        try:
            async with asyncio.timeout(CALL_TIMEOUT):
                return await future
        except TimeoutError as error:
            raise self.error or self.connection.translated(error) from error
        finally:
            self._waiting.discard(future)

    def send(self, method: Callable[..., Any], *args: Any, **kwargs: Any) -> None:
        """Call a method that the broker does not answer; if the broker fails to do it, the next `call` raises."""
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

        With `late` the properties of most messages are read only on demand. Such a subscription is
        the only one of its channel, and ends with `unsubscribe` or with the channel.
        """
        tag = f"late.{uuid.uuid4().hex}" if late else ""
        if late:
            # Fast path. benchmarks.growth one: to requeue one of 50,000 failed jobs takes 5.3 s, 16.2 without.
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
        """End a subscription. Messages that arrive before it has ended return to their queue."""
        self.connection.raw.deliver_no_more(self.raw)
        await self.call(self.raw.basic_cancel, tag)

    async def prefetch(self, count: int) -> None:
        """Let RabbitMQ send each consumer up to `count` messages ahead of their acks; 0 is no limit."""
        await self.call(self.raw.basic_qos, prefetch_count=count)

    def on_cancel(self, callback: Callable[[], None]) -> None:
        """Call `callback` when RabbitMQ cancels a consumer of the channel: its queue is deleted, or its node away."""
        self.raw.add_on_cancel_callback(lambda _: callback())

    def on_return(self, callback: Callable[[Properties], None]) -> None:
        """Call `callback` with the properties of each mandatory message that no queue takes."""
        self.raw.add_on_return_callback(lambda _, method, properties, body: callback(properties))

    def ack(self, tag: int, *, multiple: bool = False) -> None:
        """Acknowledge a message, or with `multiple` all up to this tag."""
        self.raw.basic_ack(tag, multiple)

    def requeue(self, tag: int, *, multiple: bool = False) -> None:
        """Give a message back to its queue, or with `multiple` all up to this tag; tag 0 means all of the channel."""
        self.raw.basic_nack(tag, multiple, requeue=True)

    def publish(
        self, exchange: str, routing_key: str, properties: Properties, body: bytes, *, mandatory: bool = False
    ) -> None:
        """Send a message without a confirm. Publisher sends those that must not be lost."""
        self.send(self.raw.basic_publish, exchange, routing_key, body, properties, mandatory=mandatory)

    async def bind(self, queue: str, exchange: str, routing_key: str = "") -> None:
        """Bind the queue to the exchange."""
        await self.call(self.raw.queue_bind, queue, exchange, routing_key=routing_key)

    async def unbind(self, queue: str, exchange: str, routing_key: str = "") -> None:
        """End the binding."""
        await self.call(self.raw.queue_unbind, queue, exchange, routing_key=routing_key)

    def on_get_empty(self, callback: Callable[[], None]) -> None:
        """Call `callback` whenever RabbitMQ answers a basic.get of this channel with no message."""
        self.raw.add_callback(lambda _: callback(), [spec.Basic.GetEmpty], False)

    async def get(self, queue: str) -> Got | None:
        """The first message of the queue, unacknowledged; None if none waits. See `get_each`. One call at a time."""
        return (await self.get_each([queue]))[0]

    async def get_each(self, queues: Sequence[str]) -> list[Got | None]:
        """For each of these queues, asked in one write, its next message, unacknowledged; None where none waits.

        A cancelled call waits for the answers, and gives back what came. Without answers in time the channel is closed.
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
            async with asyncio.timeout(CALL_TIMEOUT):
                await asyncio.shield(future)
            return found
        except (exceptions.AMQPError, exceptions.ChannelError, TimeoutError) as error:
            self.abandon()
            raise self.error or self.connection.translated(error) from error
        except asyncio.CancelledError:
            await asyncio.wait({future}, timeout=CALL_TIMEOUT)
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
                future.exception()  # a get that was cancelled only waits for its end: no other code reads it
        self._waiting.clear()
        self.connection.raw.deliver_no_more(self.raw)
        closers, self._closers = self._closers, []
        for closer in closers:
            closer()

    async def close(self) -> None:
        """Close the channel; RabbitMQ takes back its unsettled deliveries. May be called again.

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
            async with asyncio.timeout(CALL_TIMEOUT):
                await future
        except TimeoutError as error:
            raise self.connection.translated(error) from error

    def abandon(self) -> None:
        """Close the channel without waiting for the answer: its caller gives up. May be called again."""
        if self.is_open:
            self.raw.close()

    def take_back(self, error: PalermoError) -> None:
        """Close the channel because RabbitMQ has taken back what it delivered on it, and says no more than `error`."""
        if self.is_open:
            self.error, self.is_taken_back = error, True
            self.raw.close()

    # -- declarations. If RabbitMQ refuses one, it closes the channel.

    async def probe(self, queue: str) -> Probe:
        """Ask RabbitMQ about a queue without creating it. Closes the channel if it is missing or locked.

        Raises BrokerUnavailable if the queue's node is down.
        """
        try:
            frame = await self.call(self.raw.queue_declare, queue, passive=True)
        except PalermoError as error:
            return self.unanswered(error)
        return Probe(exists=True, ready=int(frame.method.message_count), subscribed=int(frame.method.consumer_count))

    def unanswered(self, error: PalermoError) -> Probe:
        """The state of a queue as the error describes it. Raises the error if it is about something else."""
        if self.missing:
            return Probe(exists=False, error=error)
        if self.code == RESOURCE_LOCKED:
            return Probe(exists=True, locked=True, error=error)
        raise error

    async def counted(self, count: int, ask: Callable[[], None]) -> tuple[list[Probe], PalermoError | None]:
        """The answers to the `count` declarations that `ask` sends, and the error that ended the channel before."""
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
        """Make a durable queue unless it exists. Returns how an existing queue differs; then the channel is closed."""
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
    """One connection to RabbitMQ. It never reconnects: when it is lost, `error` says why and all calls raise it."""

    def __init__(self, session: SessionParameters, host: tuple[str, int]) -> None:
        self._session = session
        self.address: Address = session.address
        #: The host of the address that it is connected to, with its port; and both as text.
        self.host = host
        self.where = f"{host[0]}:{host[1]}"
        self.error: PalermoError | None = None
        self.raw: AsyncioConnection
        #: The server's version, such as `3.10.8`, kept when the connection is lost; "" if the server does not tell it.
        self.version = ""
        self.lost = asyncio.Event()
        self.unreadable = Unreadable()
        #: Why RabbitMQ reads nothing from it, in its words such as "low on memory"; "" while it reads.
        self.blocked = ""
        self._spare: list[Channel] = []  #: Open channels that are not in use.

    async def another(self, purpose: str) -> "Connection":
        """Another connection to the same broker, for what RabbitMQ may answer by closing the connection."""
        return await open_connection(self._session, purpose)

    def translated(self, error: BaseException) -> PalermoError:
        return translate(error, self.where, user=self.address.username, vhost=self.address.vhost)

    async def channel(self) -> Channel:
        """A new channel. Raises BrokerUnavailable when the connection is lost; if it is closing, once it is."""
        if self.error is not None:
            raise self.error.with_traceback(None)  # else each raise adds to it, and holds all that the callers held
        opened: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        try:
            raw = self.raw.channel(on_open_callback=lambda made: fulfil(opened, made))
        except exceptions.AMQPError as error:
            if isinstance(error, exceptions.ConnectionWrongStateError):
                # It is closing. A caller that asks again until `error` is set must not hold the loop.
                await self.lost.wait()
            raise self.error or self.translated(error) from error
        lost = asyncio.ensure_future(self.lost.wait())
        try:
            await asyncio.wait({opened, lost}, return_when=asyncio.FIRST_COMPLETED, timeout=CALL_TIMEOUT)
        finally:
            lost.cancel()
        if not opened.done():
            raise self.error or BrokerUnavailable(f"RabbitMQ at {self.where} did not open a channel in time.")
        return Channel(self, raw)

    @asynccontextmanager
    async def spare_channel(self) -> AsyncIterator[Channel]:
        """A channel for calls that leave nothing behind. It is used again afterwards, if it is still open.

        No other task uses it in the meantime, so an answer that closes the channel fails no other call.
        """
        self._spare = [channel for channel in self._spare if channel.is_open]
        channel = self._spare.pop() if self._spare else await self.channel()
        try:
            yield channel
        except BaseException:
            # An answer may still come, which the next user must not get.
            channel.abandon()
            raise
        if channel.is_open and len(self._spare) < _MOST_SPARE:
            self._spare.append(channel)
        else:
            await channel.close()

    async def probe(self, queue: str) -> Probe:
        """Ask RabbitMQ about a queue without creating it. Raises BrokerUnavailable if the queue's node is down."""
        async with self.spare_channel() as channel:
            return await channel.probe(queue)

    async def declare(self, queue: str, arguments: Mapping[str, Any] | None = None) -> Difference | None:
        """Make a durable queue unless it exists. Returns how an existing queue differs, None if it does not."""
        async with self.spare_channel() as channel:
            return await channel.declare(queue, arguments)

    async def declare_exchange(self, exchange: str, kind: str) -> Difference | None:
        """The same for a durable exchange."""
        async with self.spare_channel() as channel:
            return await channel.declare_exchange(exchange, kind)

    async def persist_queues(self) -> None:
        """Return once RabbitMQ would still know after a kill all queues, exchanges and bindings made before this call.

        Before 4.3 it keeps what it writes about them in memory for up to two seconds, or until that is 64 kB (Erlang's
        disk_log): the confirmed messages in a queue that it forgets are lost. So an exchange with so large an argument
        is made and deleted, which takes about five milliseconds.
        """
        if not versions.forgets_new_queues(self.version):
            return
        try:
            await self._overflow_disk_log()
        except PalermoError as error:
            if self.error is not None:
                raise
            # This user may create the queue but no exchange; the queue exists anyway.
            log.warning("a new queue is forgotten if RabbitMQ is killed within two seconds error=%r", str(error))

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
        """Remove all messages that wait in the queue. Returns how many; None if the queue does not exist."""
        async with self.spare_channel() as channel:
            frame = await self._found(channel, channel.raw.queue_purge, queue)
            return None if frame is None else int(frame.method.message_count)

    async def delete(self, queue: str) -> int | None:
        """Delete the queue. Returns how many messages waited in it; None if it does not exist."""
        async with self.spare_channel() as channel:
            frame = await self._found(channel, channel.raw.queue_delete, queue)
            return None if frame is None else int(frame.method.message_count)

    async def delete_unused(self, queue: str) -> bool:
        """Delete the queue unless it has a message or a consumer. Returns whether it is gone.

        RabbitMQ does so for classic queues alone: to whom asks it of a quorum queue it closes the connection (540).
        That one is looked into and then deleted, so a message that comes into it between the two is lost.
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
        # Only a get tells that a slow quorum queue is empty (browsing/sweep.py).
        unused = await channel.get(queue) is None and not (await channel.probe(queue)).consumers
        await channel.close()
        if unused:
            await self.delete(queue)
        return unused

    async def _found(self, channel: Channel, method: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """The answer to a call; None if what it names does not exist."""
        try:
            return await channel.call(method, *args, **kwargs)
        except PalermoError:
            if not channel.missing:
                raise
            return None

    async def close(self) -> None:
        """Close by AMQP's handshake; without it if it takes a second or RabbitMQ reads nothing, or if cancelled."""
        if self.error is not None:
            return
        try:
            self.raw.close()
            async with asyncio.timeout(0.0 if self.blocked else 1.0):
                await self.lost.wait()
        except (exceptions.AMQPError, TimeoutError):
            self.raw.abort()
        except asyncio.CancelledError:
            # A call that still waits for an answer must be told that none will come.
            self.raw.abort()
            raise

    def give_up(self, missing: str) -> None:
        """End the connection because something of Palermo's own was deleted: the next session makes it again."""
        if self.raw.is_open:
            self.raw.close(reply_text=f"{missing} was deleted, and a new session makes it again")

    def _on_close(self, error: Exception) -> None:
        self.error = self.translated(error)
        if isinstance(error, exceptions.ConnectionClosedByClient):
            self.error = BrokerUnavailable(
                f"the session with RabbitMQ at {self.where} has been closed: {error.reply_text}."
            )
        self.lost.set()


async def open_connection(session: SessionParameters, purpose: str, *, heartbeat: int | None = None) -> Connection:
    """A connection to the first host of the address that accepts it, within the session's timeout over all hosts.

    `heartbeat`, in seconds, is asked for if the address sets none.

    Raises BrokerRefused when a host refuses our credentials or virtual host (another host of the
    same cluster would too), or when TLS fails with every host, else BrokerUnavailable naming every host that was tried.
    Raises UrlInvalid for a query that cannot be used.
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
            # Each host has a certificate of its own: the next one may be good.
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
