"""Requests and replies between processes over the broker: JSON values to a queue or an exchange, replies by reply-to.

Law, for who asks: no reply is promised. A request expires after the time that its caller waits for the first sign of
the other process. The other process may die after it has acted and before its reply is sent: so a caller that asks
again must ask for something that may be done twice.

A reply to `ask` comes in parts, and the last one has the header `~end`. A process that needs long for its reply sends
a sign of life every second. Replies to `ask_all` are single messages.
"""

import asyncio
import itertools
import json
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any

from msgspec import Struct

from palermo.brokers.rabbitmq.amqp.connection import Channel, Connection, fulfil
from palermo.brokers.rabbitmq.amqp.messages import REPLY_TO, Got, Properties, read_json, read_object, request_properties
from palermo.brokers.rabbitmq.amqp.publisher import Publisher
from palermo.errors import BrokerRefused, PalermoError

#: Seconds between two signs of life while a reply is worked on.
_ALIVE_EVERY = 1.0

#: The header, and the key of the values, that mark the last part; and the header of a part with values.
END, _VALUES = "~end", "~values"

#: The errors of reading a request that is not Palermo's: every program that may publish can send one.
_UNREADABLE = (TypeError, ValueError, LookupError, AttributeError, OverflowError, RecursionError)

log = logging.getLogger("palermo.rabbitmq")


class Part(Struct, frozen=True):
    """One part of a reply: values, or a message as it is stored on the broker."""

    values: Mapping[str, Any] | None
    properties: Properties | None = None
    body: bytes = b""


Send = Callable[[Part], None]

#: Answers a request, at once, or later and by sending parts: returns the values of the last part. None: nobody waits
#: for a reply.
Answering = Callable[[Mapping[str, Any], Send], Awaitable[Mapping[str, Any]] | Mapping[str, Any] | None]


# -- the process that asks


class _Request:
    """A request that waits for its reply."""

    __slots__ = ("_alarm", "_heard_at", "_loop", "_parts", "_silence", "future")

    def __init__(self, silence: float) -> None:
        self._loop = asyncio.get_running_loop()
        #: The parts of the reply; None if no process takes the request, or it is silent for `silence` seconds.
        self.future: asyncio.Future[list[Part] | None] = self._loop.create_future()
        self._parts: list[Part] = []
        self._silence = silence
        self._heard_at = self._loop.time()
        self._alarm = self._loop.call_later(silence, self._look)

    def add(self, got: Got) -> None:
        """Take note of a part that has come."""
        self._heard_at = self._loop.time()
        part = _read_part(got)
        self._parts.append(part)
        if part.values is not None and part.values.get(END):
            fulfil(self.future, self._parts)

    def fail(self, error: PalermoError | None) -> None:
        """End the wait, with this error or without a reply."""
        if self.future.done():
            return
        if error is None:
            self.future.set_result(None)
        else:
            self.future.set_exception(error)

    def close(self) -> None:
        """Stop the timer, since nobody waits for the reply any more."""
        self._alarm.cancel()

    def _look(self) -> None:
        left = self._heard_at + self._silence - self._loop.time()
        if left <= 0:
            self.fail(None)
        else:
            self._alarm = self._loop.call_later(left, self._look)


class Rpc:
    """The requests of one session to the process that consumes one queue: many at the same time, on one channel."""

    def __init__(self, connection: Connection, queue: str, *, silence: float) -> None:
        """A request without a reply or a sign of life for `silence` seconds counts as lost."""
        self._connection = connection
        self._queue = queue
        self._silence = silence
        self._opening = asyncio.Lock()
        self._channel: Channel | None = None
        self._requests: dict[str, _Request] = {}
        self._numbers = itertools.count()

    async def tell(self, values: Mapping[str, Any]) -> None:
        """Send something that needs no reply; it may be lost. Raises the session's error."""
        channel = await self._open()
        self._publish(channel, values, request_properties(seconds=self._silence, reply=False), mandatory=False)

    async def ask(self, values: Mapping[str, Any]) -> Mapping[str, Any] | None:
        """The values of the reply's last part; None if no process takes the request, or it was silent: then ask again.

        Raises the session's error if the session is lost, and BrokerRefused.
        """
        channel = await self._open()
        name, request = str(next(self._numbers)), _Request(self._silence)
        self._requests[name] = request
        try:
            properties = request_properties(seconds=self._silence, correlation_id=name)
            self._publish(channel, values, properties, mandatory=True)
            parts = await request.future
        finally:
            request.close()
            self._requests.pop(name, None)
        return parts[-1].values if parts else None

    def _publish(self, channel: Channel, values: Mapping[str, Any], properties: Properties, *, mandatory: bool) -> None:
        body = json.dumps(values, separators=(",", ":")).encode()
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


async def ask(connection: Connection, queue: str, values: Mapping[str, Any], *, silence: float) -> list[Part] | None:
    """All parts of the reply, the last one with values; None if no process takes the request, or it went silent.

    On a channel of its own: a part that is a stored message has that message's correlation id. Raises BrokerRefused.
    """
    request = _Request(silence)
    try:
        async with _replies(connection, request.add, request.fail) as channel:
            properties = request_properties(seconds=silence)
            channel.publish("", queue, properties, json.dumps(values).encode(), mandatory=True)
            return await request.future
    finally:
        request.close()


async def ask_all(
    connection: Connection,
    exchange: str,
    values: Mapping[str, Any],
    *,
    count: int,
    timeout: float,
    enough: Callable[[Sequence[dict[str, Any]]], bool] = lambda replies: False,
) -> list[dict[str, Any]]:
    """The replies of the processes behind a fanout exchange: until there are `count`, or enough, or the time is up.

    None while RabbitMQ reads nothing from the connection. Raises BrokerRefused.
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

    async with _replies(connection, on_reply, on_end) as channel:
        channel.publish(exchange, "", request_properties(seconds=timeout), json.dumps(values).encode())
        try:
            async with asyncio.timeout(timeout):
                await done.wait()
        except TimeoutError:
            pass
        if refused is not None:
            raise refused
        return replies


@asynccontextmanager
async def _replies(
    connection: Connection, on_reply: Callable[[Got], None], on_end: Callable[[BrokerRefused | None], None]
) -> AsyncIterator[Channel]:
    """A channel for one request. `on_end` is called if no queue takes the request, or the channel ends."""
    channel = await _reply_channel(connection, on_reply, lambda _: on_end(None), on_end)
    try:
        yield channel
    finally:
        if connection.blocked:
            channel.abandon()  # RabbitMQ reads nothing from the connection, and so answers no close
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


def _read_part(got: Got) -> Part:
    if _VALUES in (got.properties.headers or {}):
        return Part(read_object(got.body))
    return Part(None, got.properties, got.body)


# -- the process that answers


class Responder:
    """Answers the requests that come to one queue, as long as the channels last by which they come and replies go."""

    def __init__(self, channel: Channel, queue: str, publisher: Publisher) -> None:
        """`publisher` sends the replies that are not known at once; it has no other use."""
        self._channel = channel
        self._queue = queue
        self._publisher = publisher
        self._answering: Answering
        self._tasks: set[asyncio.Task[None]] = set()
        #: Set once no request comes any more, since the queue was deleted or the channel has ended; or no reply leaves.
        self.ended = asyncio.Event()

    @property
    def error(self) -> PalermoError | None:
        """Why no reply can be sent any more; None if one can."""
        return self._publisher.channel.error

    async def start(self, answering: Answering) -> None:
        """Answer requests with `answering` from now on."""
        self._answering = answering
        self._channel.on_cancel(self._channel.abandon)
        self._channel.on_close(self.ended.set)
        # RabbitMQ ends the channel of a user who has lost the permission to publish.
        self._publisher.channel.on_close(self.ended.set)
        await self._channel.consume(self._queue, self._on_request, auto_ack=True)

    def close(self) -> None:
        """Give up the replies that are worked on."""
        for task in self._tasks:
            task.cancel()

    def _on_request(self, got: Got) -> None:
        try:
            request = read_json(got.body)
        except ValueError:
            return
        if not isinstance(request, dict):
            return
        asked = got.properties

        def send(part: Part) -> None:
            if asked.reply_to:
                self._reply(str(asked.reply_to), part, asked.correlation_id)

        try:
            answer = self._answering(request, send)
        except (*_UNREADABLE, PalermoError) as error:
            answer = _unread(request, error)
        if isinstance(answer, Mapping):
            self._reply_now(asked, answer)
        elif answer is not None:
            task = asyncio.ensure_future(self._finish(request, answer, send))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    def _reply_now(self, asked: Properties, values: Mapping[str, Any]) -> None:
        if asked.reply_to and self._channel.is_open:
            body = json.dumps({END: True, **values}, separators=(",", ":")).encode()
            self._channel.publish("", asked.reply_to, _reply_properties(asked.correlation_id), body)
            self._channel.connection.raw.flush()

    async def _finish(self, request: Mapping[str, Any], answer: Awaitable[Mapping[str, Any]], send: Send) -> None:
        loop = asyncio.get_running_loop()

        alarm: asyncio.TimerHandle

        def alive() -> None:
            nonlocal alarm
            send(Part({}))
            alarm = loop.call_later(_ALIVE_EVERY, alive)

        alarm = loop.call_later(_ALIVE_EVERY, alive)
        try:
            send(Part({END: True, **await answer}))
        except PalermoError as error:
            send(Part({END: True, "error": str(error)}))
        except _UNREADABLE as error:
            send(Part({END: True, **_unread(request, error)}))
        finally:
            alarm.cancel()

    def _reply(self, reply_to: str, part: Part, asked: str | None) -> None:
        properties = part.properties
        if part.values is not None:
            properties = _reply_properties(asked, end=bool(part.values.get(END)))
        body = part.body if part.values is None else json.dumps(part.values).encode()
        sent = self._publisher.send("", reply_to, properties or Properties(), body)
        sent.add_done_callback(lambda done: done.cancelled() or done.exception())  # the session that asked may be gone


def _unread(request: Mapping[str, Any], error: Exception) -> Mapping[str, Any]:
    """The answer to a request that cannot be read. The connection stays open, and with it the leader's lock."""
    log.warning("a question to the leader cannot be read question=%.200r error=%.200r", request, error)
    return {"error": f"the leader cannot read the question: {error!r:.200}"}


def _reply_properties(asked: str | None, *, end: bool = True) -> Properties:
    headers = {END: end, _VALUES: True}
    return Properties(content_type="application/json", headers=headers, correlation_id=asked)
