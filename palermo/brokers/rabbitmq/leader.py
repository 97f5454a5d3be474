"""Who leads: the lease on being the clock, and the questions that the clock is asked.

The lease is an exclusive queue, `~leader`: the broker lets one connection have it, and frees it
the moment that connection ends. What is published to it, anyone can: so the leader is asked.
"""

import asyncio
import json
import uuid
from collections.abc import Callable, Mapping
from typing import Any

from pika import spec

from palermo.brokers.rabbitmq.link import Channel, Link
from palermo.brokers.rabbitmq.publisher import Publisher
from palermo.core.topology import internal
from palermo.errors import PalermoError

#: What the leader answers to a question; both as JSON has it.
Answering = Callable[[Mapping[str, Any]], Mapping[str, Any]]

#: The broker's answer to who wants the lease while another holds it.
RESOURCE_LOCKED = 405

_REPLY_TO = "amq.rabbitmq.reply-to"

#: Seconds that the leader has to answer.
_PATIENCE = 2.0


def lease(exchange: str) -> str:
    """The queue that whoever leads holds."""
    return internal(exchange, "leader")


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

    def __init__(self, channel: Channel, publisher: Publisher) -> None:
        self._channel = channel
        self._publisher = publisher
        self._answer: Answering = lambda question: {}

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
        return cls(channel, publisher)

    async def answer(self, exchange: str, answering: Answering) -> None:
        """Answer questions with this from now on."""
        self._answer = answering
        raw = self._channel.raw
        await self._channel.call(raw.basic_consume, lease(exchange), self._on_question, auto_ack=True)

    def _on_question(self, _: object, method: Any, properties: spec.BasicProperties, body: bytes) -> None:
        try:
            answer = self._answer(json.loads(body))
        except (ValueError, KeyError, TypeError) as error:
            answer = {"error": repr(error)}
        sent = self._publisher.send(
            "",
            str(properties.reply_to),
            spec.BasicProperties(content_type="application/json", correlation_id=properties.correlation_id),
            json.dumps(answer).encode(),
        )
        sent.add_done_callback(lambda done: done.cancelled() or done.exception())  # who asked may be gone


async def ask_leader(link: Link, exchange: str, question: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """What the leader answers; None if nobody leads, or it does not answer in time."""
    channel = await link.channel()
    answered: asyncio.Future[Mapping[str, Any] | None] = asyncio.get_running_loop().create_future()

    def on_answer(_: object, method: Any, properties: spec.BasicProperties, body: bytes) -> None:
        if not answered.done():
            answered.set_result(json.loads(body))

    def on_return(*_: object) -> None:
        if not answered.done():
            answered.set_result(None)

    channel.on_close(lambda: on_return())
    channel.raw.add_on_return_callback(on_return)
    try:
        await channel.call(channel.raw.basic_consume, _REPLY_TO, on_answer, auto_ack=True)
        asked = spec.BasicProperties(
            reply_to=_REPLY_TO, correlation_id=str(uuid.uuid4()), expiration=str(int(_PATIENCE * 1_000))
        )
        channel.raw.basic_publish("", lease(exchange), json.dumps(question).encode(), asked, mandatory=True)
        async with asyncio.timeout(_PATIENCE):
            return await answered
    except TimeoutError:
        return None
    finally:
        await channel.close()
