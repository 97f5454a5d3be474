"""Which workers are alive, and what each of them says of itself; no management plugin.

Every worker has a consumer on the queue `~presence`, which never holds a message: its consumer
count is the number of living workers, true within milliseconds of a kill -9. A question goes to
all of them through the fanout exchange `~control`, and each answers by direct reply-to.
"""

import asyncio
import json
import logging
import uuid
from collections.abc import Awaitable, Callable
from typing import Any

from pika import spec

from palermo.broker import WorkerInfo
from palermo.brokers.rabbitmq.link import Channel, Link
from palermo.brokers.rabbitmq.publisher import Publisher
from palermo.core.topology import internal
from palermo.errors import PalermoError

log = logging.getLogger("palermo.rabbitmq")

_REPLY_TO = "amq.rabbitmq.reply-to"

#: Seconds to wait for a worker that is alive by its connection and does not answer: stopped, or swapped out.
_PATIENCE = 1.0

#: Seconds until a worker that was made invisible shows itself again: doubled from the first to the last.
_FIRST_PAUSE, _LAST_PAUSE = 0.2, 30.0


class Presence:
    """A worker's own presence: counted by others, and answering their questions."""

    def __init__(
        self, exchange: str, report: Callable[[], WorkerInfo], publisher: Callable[[], Awaitable[Publisher]]
    ) -> None:
        self._exchange = exchange
        self._report = report
        self._publisher = publisher
        self._answers: set[asyncio.Task[None]] = set()
        self._channel: Channel
        self._ended = False
        self._returning: asyncio.Task[None] | None = None

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
        presence = internal(self._exchange, "presence")
        await channel.call(channel.raw.queue_declare, presence, durable=True, arguments={"x-queue-type": "classic"})
        # Last, so that whoever is counted also answers.
        await channel.call(channel.raw.basic_consume, presence, lambda *_: None, auto_ack=True)
        # One of the queues was deleted: seen by nobody, the worker would look dead.
        channel.raw.add_on_cancel_callback(lambda _: channel.raw.close())
        channel.on_close(lambda: self._on_end(link))

    def _on_end(self, link: Link) -> None:
        if not self._ended and link.error is None:
            self._returning = asyncio.ensure_future(self._return(link))

    async def _return(self, link: Link) -> None:
        pause = _FIRST_PAUSE
        while link.error is None:
            await asyncio.sleep(pause)
            try:
                await self.begin(link)
            except PalermoError as error:
                pause = min(2 * pause, _LAST_PAUSE)
                log.warning("worker cannot be seen by others error=%r retry_in=%.1f", str(error), pause)
            else:
                return

    async def end(self) -> None:
        self._ended = True
        if self._returning is not None:
            self._returning.cancel()
        for task in self._answers:
            task.cancel()
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
    channel = await link.channel()
    try:
        try:
            presence = await channel.call(channel.raw.queue_declare, internal(exchange, "presence"), passive=True)
        except PalermoError:
            if channel.missing:
                return []
            raise
        alive = int(presence.method.consumer_count)
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
