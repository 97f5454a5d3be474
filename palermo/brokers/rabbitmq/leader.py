"""Who leads: the lease on being the clock, and the questions that the clock is asked.

The lease is an exclusive queue, `~leader`: the broker lets one connection have it, and frees it
the moment that connection ends. What is published to it, anyone can: so the leader is asked, and told.
An answer comes in parts, the last of which bears the header `~end`.
"""

import asyncio
import json
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from pika import spec

from palermo.brokers.rabbitmq.later import lease
from palermo.brokers.rabbitmq.link import Channel, Link
from palermo.brokers.rabbitmq.publisher import Publisher
from palermo.brokers.rabbitmq.translate import RESOURCE_LOCKED
from palermo.core.values import dataclass
from palermo.errors import PalermoError

REPLY_TO = "amq.rabbitmq.reply-to"

#: Seconds between two signs of life that a leader gives while it works on an answer.
_ALIVE_EVERY = 1.0

#: Seconds without one after which it counts as gone.
_PATIENCE = 5.0

END = "~end"


@dataclass(frozen=True, slots=True)
class Part:
    """One part of an answer: values, or a message as it lies on the broker."""

    values: Mapping[str, Any] | None
    properties: spec.BasicProperties | None = None
    body: bytes = b""


Send = Callable[[Part], None]

#: What answers a question, at once, or later and by sending parts; the values of the last one are returned. None:
#: nobody waits for an answer.
Answering = Callable[[Mapping[str, Any], Send], Awaitable[Mapping[str, Any]] | Mapping[str, Any] | None]


async def is_vacant(link: Link, exchange: str) -> bool:
    """Whether nobody leads."""
    channel = await link.channel()
    try:
        await channel.call(channel.raw.queue_declare, lease(exchange), passive=True)
    except PalermoError:
        if channel.missing:
            return True
        if channel.code == RESOURCE_LOCKED:
            return False
        raise
    await channel.close()
    return False


class Lease:
    """The lease, once it is held."""

    def __init__(self, exchange: str, channel: Channel, publisher: Publisher) -> None:
        self._exchange = exchange
        #: Where answers are sent that are known at once.
        self.channel = channel
        self._publisher = publisher
        self._answer: Answering
        self._tasks: set[asyncio.Task[None]] = set()

    @classmethod
    async def take(cls, link: Link, exchange: str, publisher: Publisher) -> "Lease | None":
        """The lease, if nobody holds it."""
        channel = await link.channel()
        try:
            await channel.call(channel.raw.queue_declare, lease(exchange), exclusive=True)
        except PalermoError:
            if channel.code == RESOURCE_LOCKED:
                return None
            raise
        return cls(exchange, channel, publisher)

    async def answer(self, answering: Answering) -> None:
        """Answer questions with this from now on."""
        self._answer = answering
        raw = self.channel.raw
        await self.channel.call(raw.basic_consume, lease(self._exchange), self._on_question, auto_ack=True)

    def close(self) -> None:
        """Answer no more."""
        for task in self._tasks:
            task.cancel()

    def _on_question(self, _: object, method: Any, properties: spec.BasicProperties, body: bytes) -> None:
        try:
            question = json.loads(body)
        except ValueError:
            return
        reply_to = properties.reply_to

        def send(part: Part) -> None:
            if reply_to:
                self._reply(str(reply_to), part, properties.correlation_id)

        if not isinstance(question, dict):
            return
        answer = self._answer(question, send)
        if isinstance(answer, Mapping):
            self._reply_now(properties, answer)
        elif answer is not None:
            task = asyncio.ensure_future(self._see_to(answer, send))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    def _reply_now(self, asked: spec.BasicProperties, values: Mapping[str, Any]) -> None:
        if asked.reply_to and self.channel.is_open:
            body = json.dumps({END: True, **values}, separators=(",", ":")).encode()
            self.channel.raw.basic_publish("", asked.reply_to, body, _answer_to(asked.correlation_id))
            self.channel.link.raw.flush()

    async def _see_to(self, answer: Awaitable[Mapping[str, Any]], send: Send) -> None:
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
        finally:
            alarm.cancel()

    def _reply(self, reply_to: str, part: Part, asked: str | None) -> None:
        properties = part.properties
        if part.values is not None:
            properties = _answer_to(asked, end=bool(part.values.get(END)))
        body = part.body if part.values is None else json.dumps(part.values).encode()
        sent = self._publisher.send("", reply_to, properties or spec.BasicProperties(), body)
        sent.add_done_callback(lambda done: done.cancelled() or done.exception())  # who asked may be gone


def _answer_to(asked: str | None, *, end: bool = True) -> spec.BasicProperties:
    headers = {END: end, "~values": True}
    return spec.BasicProperties(content_type="application/json", headers=headers, correlation_id=asked)


async def ask_leader(link: Link, exchange: str, question: Mapping[str, Any]) -> list[Part] | None:
    """The parts of the leader's answer, the last of values; None if nobody leads, or it went silent."""
    channel = await link.channel()
    parts: asyncio.Queue[Part | None] = asyncio.Queue()

    def on_answer(_: object, method: Any, properties: spec.BasicProperties, body: bytes) -> None:
        values = "~values" in (properties.headers or {})
        parts.put_nowait(Part(json.loads(body)) if values else Part(None, properties, body))

    channel.on_close(lambda: parts.put_nowait(None))
    channel.raw.add_on_return_callback(lambda *_: parts.put_nowait(None))
    answer: list[Part] = []
    try:
        await channel.call(channel.raw.basic_consume, REPLY_TO, on_answer, auto_ack=True)
        # Nobody is to act on it when nobody waits for it any more.
        asked = spec.BasicProperties(reply_to=REPLY_TO, expiration=str(int(_PATIENCE * 1_000)))
        channel.raw.basic_publish("", lease(exchange), json.dumps(question).encode(), asked, mandatory=True)
        while True:
            async with asyncio.timeout(_PATIENCE):
                part = await parts.get()
            if part is None:
                return None
            answer.append(part)
            if part.values is not None and part.values.get(END):
                return answer
    except TimeoutError:
        return None
    finally:
        await channel.close()
