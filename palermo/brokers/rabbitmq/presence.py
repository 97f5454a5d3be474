"""Which workers are alive, and what each of them says of itself; no management plugin.

Every worker has a consumer on the queue `~presence`, which never holds a message: its consumer
count is the number of living workers, true within milliseconds of a kill -9. A question goes to
all of them through the fanout exchange `~control`, and each answers by direct reply-to.

In a cluster the node that `~presence` is on may be away. Then workers work all the same, come back
to the queue with the node, and whoever lists them waits a moment for all who may answer.
"""

import asyncio
import json
import uuid
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Any

from pika import spec

from palermo.broker import WorkerInfo
from palermo.brokers.rabbitmq import versions
from palermo.brokers.rabbitmq.link import Channel, Link
from palermo.brokers.rabbitmq.publisher import Publisher
from palermo.brokers.rabbitmq.translate import NOT_FOUND
from palermo.core.topology import internal
from palermo.errors import BrokerUnavailable, NotFound, PalermoError

_REPLY_TO = "amq.rabbitmq.reply-to"

#: Seconds between two attempts to be counted where the queue is down.
_AGAIN = 1.0

#: More workers than there are.
_MANY = 1_000_000

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
        self._counted: Channel | None = None
        self._joining: asyncio.Task[None] | None = None
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
        if not await self._join(link):
            self._join_again(link)

    async def end(self) -> None:
        for task in (*self._answers, *([self._joining] if self._joining else [])):
            task.cancel()
        for channel in (self._counted, self._channel):
            if channel is not None:
                await channel.close()

    async def _join(self, link: Link) -> bool:
        """Be counted; False if the queue is there and down."""
        channel = self._counted = await link.channel()
        name = internal(self._exchange, "presence")
        try:
            try:
                await channel.call(channel.raw.queue_declare, name, passive=True)
            except PalermoError:
                if not channel.missing:
                    raise
                channel = self._counted = await link.channel()
                arguments = versions.arguments(self._kind, link.version)
                await channel.call(channel.raw.queue_declare, name, durable=True, arguments=arguments)
            channel.raw.add_on_cancel_callback(lambda _: self._join_again(link))
            await channel.call(channel.raw.basic_consume, name, lambda *_: None, auto_ack=True)
        except (BrokerUnavailable, NotFound):
            if link.error is not None:
                raise
            return False
        return True

    def _join_again(self, link: Link) -> None:
        """The queue is down, or its node died, or someone deleted it: come back to it, however long that takes."""
        if self._joining is None or self._joining.done():
            self._joining = asyncio.ensure_future(self._rejoin(link))

    async def _rejoin(self, link: Link) -> None:
        with suppress(PalermoError):  # the session is lost, and this presence with it
            joined = False
            while not joined:
                await asyncio.sleep(_AGAIN)
                if self._counted is not None:
                    await self._counted.close()
                joined = await self._join(link)

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
    channel = await link.channel()
    try:
        try:
            presence = await channel.call(channel.raw.queue_declare, internal(exchange, "presence"), passive=True)
            alive = int(presence.method.consumer_count)
        except PalermoError:
            if channel.missing:
                return []
            if channel.code != NOT_FOUND:
                raise
            # Its node is away: nobody knows how many there are.
            channel, alive = await link.channel(), _MANY
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
