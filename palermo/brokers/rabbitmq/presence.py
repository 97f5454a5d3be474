"""Which workers are alive, and what each of them says of itself; no management plugin.

A question goes to all workers through the fanout exchange `~control`, and each answers by direct
reply-to. How many answers to wait for is what census.py says.
"""

import asyncio
import json
import uuid
from collections.abc import Awaitable, Callable
from typing import Any

from pika import spec

from palermo.broker import WorkerInfo
from palermo.brokers.rabbitmq.census import Counted, census
from palermo.brokers.rabbitmq.link import Channel, Link
from palermo.brokers.rabbitmq.publisher import Publisher
from palermo.core.topology import internal
from palermo.errors import PalermoError

_REPLY_TO = "amq.rabbitmq.reply-to"

#: Seconds to wait for a worker that is alive by its connection and does not answer: stopped, or swapped out.
_PATIENCE = 1.0


class Presence:
    """A worker's own presence: counted by others, and answering their questions."""

    def __init__(
        self,
        exchange: str,
        report: Callable[[], WorkerInfo],
        publisher: Callable[[], Awaitable[Publisher]],
        *,
        kind: str,
    ) -> None:
        """`kind` is the type of the queue `~presence`, if it is not there yet."""
        self._exchange = exchange
        self._kind = kind
        self._counted: Counted | None = None
        self._report = report
        self._publisher = publisher
        self._answers: set[asyncio.Task[None]] = set()
        self._channel: Channel

    async def begin(self, link: Link) -> None:
        """Be there, until the link ends or `end` is called."""
        channel = self._channel = await link.channel()
        control = internal(self._exchange, "control")
        # A name used twice would be 405 until the broker notices a dead socket: the random part avoids that.
        inbox = internal(self._exchange, f"worker.{uuid.uuid4()}")
        await channel.call(channel.raw.exchange_declare, control, "fanout", durable=True)
        await channel.call(channel.raw.queue_declare, inbox, exclusive=True, auto_delete=True)
        await channel.call(channel.raw.queue_bind, inbox, control)
        await channel.call(channel.raw.basic_consume, inbox, self._on_question, auto_ack=True)
        # Last, so that whoever is counted also answers.
        counted = self._counted = Counted(link, self._exchange, kind=self._kind)
        await counted.begin()

    async def end(self) -> None:
        for task in self._answers:
            task.cancel()
        if self._counted is not None:
            await self._counted.end()
        await self._channel.close()

    def _on_question(self, _: object, method: Any, properties: spec.BasicProperties, body: bytes) -> None:
        if not properties.reply_to:
            return
        task = asyncio.ensure_future(self._answer(properties.reply_to))
        self._answers.add(task)
        task.add_done_callback(self._answers.discard)

    async def _answer(self, reply_to: str) -> None:
        # From the publishing connection: one that has ever published hangs under a memory alarm, acks included.
        answer = json.dumps(self._report().to_plain()).encode()
        try:
            publisher = await self._publisher()
            await publisher.send("", reply_to, spec.BasicProperties(content_type="application/json"), answer)
        except PalermoError:
            return  # who asked has gone, or the session has: nobody is left to tell


async def ask_workers(link: Link, exchange: str) -> list[WorkerInfo]:
    """What every living worker says of itself, by id."""
    alive = await census(link, exchange)
    channel = await link.channel()
    try:
        return sorted(await _collect(channel, exchange, alive), key=lambda worker: worker.id) if alive else []
    finally:
        await channel.close()


async def _collect(channel: Channel, exchange: str, alive: int) -> list[WorkerInfo]:
    answers: list[WorkerInfo] = []
    enough = asyncio.Event()

    def on_answer(_: object, method: Any, properties: spec.BasicProperties, body: bytes) -> None:
        answers.append(WorkerInfo.from_plain(json.loads(body)))
        if len(answers) >= alive:
            enough.set()

    channel.on_close(enough.set)
    await channel.call(channel.raw.basic_consume, _REPLY_TO, on_answer, auto_ack=True)
    question = spec.BasicProperties(reply_to=_REPLY_TO, expiration=str(int(_PATIENCE * 1_000)))
    channel.raw.basic_publish(internal(exchange, "control"), "", b'{"ask":"report"}', question)
    try:
        async with asyncio.timeout(_PATIENCE):
            await enough.wait()
    except TimeoutError:
        pass
    return answers
