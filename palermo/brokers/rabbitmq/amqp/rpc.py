"""Requests and replies between processes over the broker. A request is bytes sent to a queue or an exchange.

A reply is sent to the request's reply-to.

Law: a request may get no reply. It expires after the time that its caller waits for a first sign of life, and the
responder may die between acting and replying. So a caller repeats only requests that can safely be executed twice.

A reply to `Rpc.ask` may have several parts, of which the last has the header `~end`. While a responder prepares a
reply, it sends an empty part every second. Replies to `ask_all` are single messages.
"""

import asyncio
import itertools
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any

from palermo.brokers.rabbitmq.amqp.connection import Channel, Connection
from palermo.brokers.rabbitmq.amqp.messages import (
    REPLY_TO,
    Got,
    Properties,
    read_object,
    request_properties,
    write_record,
)
from palermo.brokers.rabbitmq.amqp.publisher import Publisher
from palermo.contract.tasks import spawn, wait_for_any
from palermo.errors import BrokerRefused, PalermoError

#: Seconds between two signs of life while a reply is being prepared.
_ALIVE_EVERY = 1.0

#: The header of the last part, and maximum bytes of a part: RabbitMQ 4 refuses messages above 16 MB.
_END, _PART = "~end", 1024 * 1024

#: Answers a request, immediately or later.
Answering = Callable[[bytes], Awaitable[bytes] | bytes]


# -- the requester


class _Request:
    """A request that waits for its reply."""

    __slots__ = ("_parts", "_silence", "future", "limit")

    def __init__(self, silence: float) -> None:
        #: The reply; None if no process takes the request.
        self.future: asyncio.Future[bytes | None] = asyncio.get_running_loop().create_future()
        self._parts: list[bytes] = []
        self._silence = silence
        #: Ends the wait `silence` seconds after the last part.
        self.limit = asyncio.timeout(silence)

    def add(self, got: Got) -> None:
        """Record a received part."""
        if self.future.done():
            return  # late
        self.limit.reschedule(asyncio.get_running_loop().time() + self._silence)
        self._parts.append(got.body)
        if (got.properties.headers or {}).get(_END):
            self.future.set_result(b"".join(self._parts))

    def fail(self, error: PalermoError | None) -> None:
        """Stop waiting, with this error or without a reply."""
        if self.future.done():
            return
        if error is None:
            self.future.set_result(None)
        else:
            self.future.set_exception(error)


class Rpc:
    """One session's requests to the consumer of one queue: any number at the same time, on one channel."""

    def __init__(self, connection: Connection, queue: str) -> None:
        self._connection = connection
        self._queue = queue
        self._opening = asyncio.Lock()
        self._channel: Channel | None = None
        self._requests: dict[str, _Request] = {}
        self._numbers = itertools.count()

    async def notify(self, body: bytes, *, within: float) -> None:
        """Send a request without a reply. It expires after `within` seconds, and may get lost.

        Raises the session's error.
        """
        self._publish(await self._open(), request_properties(seconds=within, reply=False), body, mandatory=False)

    async def ask(self, body: bytes, *, silence: float) -> bytes | None:
        """Send a request and return the reply; None if the caller should ask again.

        Returns None if no process takes the request, or after `silence` seconds without a sign of life. Raises the
        session's error, and BrokerRefused.
        """
        channel = await self._open()
        name, request = str(next(self._numbers)), _Request(silence)
        self._requests[name] = request
        try:
            async with request.limit:
                properties = request_properties(seconds=silence, correlation_id=name)
                self._publish(channel, properties, body, mandatory=True)
                return await request.future
        except TimeoutError:
            return None
        finally:
            del self._requests[name]

    def _publish(self, channel: Channel, properties: Properties, body: bytes, *, mandatory: bool) -> None:
        channel.publish("", self._queue, properties, body, mandatory=mandatory)
        self._connection.raw.flush()

    async def _open(self) -> Channel:
        if self._channel is not None and self._channel.is_open:
            return self._channel
        async with self._opening:
            if self._channel is None or not self._channel.is_open:
                self._channel = await _reply_channel(self._connection, self._on_reply, self._on_return, self._on_close)
            return self._channel

    def _on_reply(self, got: Got) -> None:
        if request := self._requests.get(str(got.properties.correlation_id)):
            request.add(got)

    def _on_return(self, properties: Properties) -> None:
        if request := self._requests.get(str(properties.correlation_id)):
            request.fail(None)

    def _on_close(self, refusal: BrokerRefused | None) -> None:
        for request in self._requests.values():
            request.fail(refusal or self._connection.error)


async def ask_all(
    connection: Connection,
    exchange: str,
    values: Mapping[str, Any],
    *,
    count: int,
    timeout: float,
    enough: Callable[[Sequence[dict[str, Any]]], bool] = lambda replies: False,
) -> list[dict[str, Any]]:
    """Collect replies from the processes behind a fanout exchange.

    Stops after `count` replies, when `enough` is satisfied, or after `timeout` seconds. Returns nothing while RabbitMQ
    doesn't read from the connection. Raises BrokerRefused.
    """
    replies: list[dict[str, Any]] = []
    if connection.blocked:
        return replies
    done = asyncio.Event()

    def on_reply(got: Got) -> None:
        replies.append(read_object(got.body))
        if len(replies) >= count or enough(replies):
            done.set()

    refused: BrokerRefused | None = None

    def on_end(refusal: BrokerRefused | None) -> None:
        nonlocal refused
        refused = refusal
        done.set()

    channel = await _reply_channel(connection, on_reply, lambda _: on_end(None), on_end)
    try:
        channel.publish(exchange, "", request_properties(seconds=timeout), write_record(values))
        await wait_for_any(done, timeout=timeout)
        if refused is not None:
            raise refused
        return replies
    finally:
        if connection.blocked:
            channel.abandon()  # RabbitMQ doesn't read from the connection, so a close would get no answer
        else:
            await channel.close()


async def _reply_channel(
    connection: Connection,
    on_reply: Callable[[Got], None],
    on_return: Callable[[Properties], None],
    on_close: Callable[[BrokerRefused | None], None],
) -> Channel:
    channel = await connection.channel()
    channel.on_close(lambda: on_close(channel.error if isinstance(channel.error, BrokerRefused) else None))
    channel.on_return(on_return)
    try:
        await channel.consume(REPLY_TO, on_reply, auto_ack=True)
    except BaseException:
        channel.abandon()
        raise
    return channel


# -- the responder


class Responder:
    """Answers the requests to one queue, as long as its channels for requests and replies last."""

    def __init__(self, channel: Channel, queue: str, publisher: Publisher) -> None:
        """`publisher` sends the replies that take time, and is used for nothing else."""
        self._channel = channel
        self._queue = queue
        self._publisher = publisher
        self._answering: Answering
        self._tasks: set[asyncio.Task[None]] = set()
        #: Set once no more requests arrive (queue deleted or channel closed), or replies can't be sent.
        self.ended = asyncio.Event()

    @property
    def error(self) -> PalermoError | None:
        """The reason why replies can't be sent any more; None if they can."""
        return self._publisher.channel.error

    async def start(self, answering: Answering) -> None:
        """Start answering requests with `answering`."""
        self._answering = answering
        self._channel.on_cancel(self._channel.abandon)
        self._channel.on_close(self.ended.set)
        # RabbitMQ closes this channel if the user has lost the permission to publish.
        self._publisher.channel.on_close(self.ended.set)
        await self._channel.consume(self._queue, self._on_request, auto_ack=True)

    def close(self) -> None:
        """Abandon the replies in preparation."""
        for task in self._tasks:
            task.cancel()

    def _on_request(self, got: Got) -> None:
        if not got.body:
            return  # an empty message is only a check that the queue exists (Publisher.finds)
        answer = self._answering(got.body)
        if isinstance(answer, bytes):
            if got.properties.reply_to and self._channel.is_open:
                self._channel.publish("", got.properties.reply_to, _reply_properties(got.properties), answer)
                self._channel.connection.raw.flush()
        else:
            spawn(self._tasks, self._finish(got.properties, answer))

    async def _finish(self, asked: Properties, answer: Awaitable[bytes]) -> None:
        loop = asyncio.get_running_loop()
        alarm: asyncio.TimerHandle

        def alive() -> None:
            nonlocal alarm
            self._send_part(asked, b"", end=False)
            alarm = loop.call_later(_ALIVE_EVERY, alive)

        alarm = loop.call_later(_ALIVE_EVERY, alive)
        try:
            body = await answer
        finally:
            alarm.cancel()
        for start in range(0, len(body), _PART):
            self._send_part(asked, body[start : start + _PART], end=start + _PART >= len(body))

    def _send_part(self, asked: Properties, part: bytes, *, end: bool) -> None:
        if asked.reply_to:
            properties = _reply_properties(asked, end=end)
            sent = self._publisher.send("", str(asked.reply_to), properties, part)
            sent.add_done_callback(lambda done: done.cancelled() or done.exception())  # the requester may have ended


def _reply_properties(asked: Properties, *, end: bool = True) -> Properties:
    return Properties(content_type="application/json", headers={_END: end}, correlation_id=asked.correlation_id)
