"""Which workers are alive, and what each of them says of itself; no management plugin.

A question goes to all workers through the fanout exchange `~control`, and each answers by direct
reply-to. So does an order: whoever has nothing to do about it says that too, so that nobody waits
for more. How many answers to wait for is what census.py says.
"""

import asyncio
import json
import logging
import uuid
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from pika import spec

from palermo.brokers.rabbitmq.census import Counted, census
from palermo.brokers.rabbitmq.link import Channel, Link
from palermo.brokers.rabbitmq.publisher import Publisher
from palermo.core.topology import internal
from palermo.crew import Answer, Obey, Order, WorkerInfo
from palermo.errors import PalermoError

log = logging.getLogger("palermo.rabbitmq")

_REPLY_TO = "amq.rabbitmq.reply-to"

#: Seconds to wait for a worker that is alive by its connection and does not answer: stopped, or swapped out.
_PATIENCE = 1.0

#: Seconds that a worker which leaves gives its last answers.
_LAST_WORDS = 1.0

#: Seconds until a worker that was made deaf to questions listens again: doubled from the first to the last.
_FIRST_PAUSE, _LAST_PAUSE = 0.2, 30.0


class Presence:
    """A worker's own presence: counted by others, and answering their questions."""

    def __init__(
        self,
        exchange: str,
        report: Callable[[], WorkerInfo],
        obey: Obey,
        publisher: Callable[[], Awaitable[Publisher]],
        look: Callable[[Mapping[str, Any]], Awaitable[None]],
        *,
        kind: str,
    ) -> None:
        """`look` is called when someone has made marks, see marks.py, and ends when they are known here.

        `kind` is the type of the queue `~presence`, if it is not there yet.
        """
        self._look = look
        self._exchange = exchange
        self._kind = kind
        self._counted: Counted | None = None
        self._report = report
        self._obey = obey
        self._publisher = publisher
        self._answers: set[asyncio.Task[None]] = set()
        self._channel: Channel
        #: The queue in which it is asked. It belongs to the session and ends with it.
        # A name used twice would be 405 until the broker notices a dead socket: the random part avoids that.
        self.inbox = internal(exchange, f"worker.{uuid.uuid4()}")
        self._ended = False
        self._returning: asyncio.Task[None] | None = None

    @property
    def worker(self) -> str:
        """The id of the worker."""
        return self._report().id

    async def listen(self, link: Link) -> None:
        """Hear questions from now on, until the link ends or `end` is called."""
        channel = self._channel = await link.channel()
        # The broker obeys in order: once it has answered the last of these, all are done.
        channel.send(channel.raw.queue_declare, self.inbox, exclusive=True, auto_delete=True)
        self._bind()
        await channel.call(channel.raw.basic_consume, self.inbox, self._on_question, auto_ack=True)
        # The queue was deleted: answering nobody, the worker would look dead.
        channel.raw.add_on_cancel_callback(lambda _: channel.raw.close())
        channel.on_close(lambda: self._on_end(link))

    async def begin(self) -> None:
        """Be there for others."""
        # Whoever deleted the queue of the count may have deleted the exchange of the questions as well.
        counted = self._counted = Counted(self._channel.link, self._exchange, kind=self._kind, again=self._bind_again)
        await counted.begin()

    def _bind(self) -> None:
        channel = self._channel
        control = internal(self._exchange, "control")
        channel.send(channel.raw.exchange_declare, control, "fanout", durable=True)
        channel.send(channel.raw.queue_bind, self.inbox, control)

    async def _bind_again(self) -> None:
        self._bind()
        channel = self._channel
        await channel.call(channel.raw.queue_declare, self.inbox, passive=True)

    def _on_end(self, link: Link) -> None:
        if not self._ended and link.error is None:
            self._returning = asyncio.ensure_future(self._return(link))

    async def _return(self, link: Link) -> None:
        pause = _FIRST_PAUSE
        while link.error is None:
            await asyncio.sleep(pause)
            try:
                await self.listen(link)
            except PalermoError as error:
                pause = min(2 * pause, _LAST_PAUSE)
                log.warning("worker cannot be asked by others error=%r retry_in=%.1f", str(error), pause)
            else:
                return

    async def end(self) -> None:
        self._ended = True
        if self._returning is not None:
            self._returning.cancel()
        if self._answers:
            # An idle worker that is told to stop is here before its answer is out.
            await asyncio.wait(set(self._answers), timeout=_LAST_WORDS)
        for task in self._answers:
            task.cancel()
        if self._counted is not None:
            await self._counted.end()
        await self._channel.close()

    def _on_question(self, _: object, method: Any, properties: spec.BasicProperties, body: bytes) -> None:
        task = asyncio.ensure_future(self._answer(_json(body), properties.reply_to))
        self._answers.add(task)
        task.add_done_callback(self._answers.discard)

    async def _answer(self, question: Mapping[str, Any], reply_to: str | None) -> None:
        answer: Mapping[str, Any] = {}
        if question.get("ask", "report") == "report":
            answer = self._report().to_plain()
        elif question["ask"] == "look":
            await self._look(question)
        else:
            id, order = self._report().id, Order.from_plain(question)
            answer = {"worker": id, "values": await self._obey(order) if order.meant_for(id) else None}
        if not reply_to:
            return
        # From the publishing connection: one that has ever published hangs under a memory alarm, acks included.
        body = json.dumps(answer).encode()
        try:
            publisher = await self._publisher()
            await publisher.send("", reply_to, spec.BasicProperties(content_type="application/json"), body)
        except PalermoError:
            return  # who asked has gone, or the session has: nobody is left to tell


async def ask_workers(link: Link, exchange: str) -> list[WorkerInfo]:
    """What every living worker says of itself, by id."""
    answers = await _ask(link, exchange, {"ask": "report"}, timeout=_PATIENCE)
    return sorted((WorkerInfo.from_plain(answer) for answer in answers), key=lambda worker: worker.id)


async def call_roll(link: Link, exchange: str) -> list[WorkerInfo] | None:
    """The same, if all that live have answered; None if it is not known of some what they do."""
    before = await census(link, exchange)
    workers = await ask_workers(link, exchange)
    if len(workers) < before and len(workers) < await census(link, exchange):
        return None
    return workers


async def command_workers(link: Link, exchange: str, order: Order, *, timeout: float) -> list[Answer]:
    """What those answered who had something to do about the order, by id."""
    named = set(order.workers)

    def enough(answers: list[dict[str, Any]]) -> bool:
        return bool(named) and named <= {answer.get("worker") for answer in answers}

    found: dict[str, Answer] = {}
    for answer in await _ask(link, exchange, order.to_plain(), timeout=timeout, enough=enough):
        match answer:
            case {"worker": str(worker), "values": dict(values)}:
                found[worker] = Answer(worker=worker, values=values)
    return [found[worker] for worker in sorted(found)]


async def tell_workers(link: Link, exchange: str, question: Mapping[str, Any]) -> None:
    """Ask something whose answers matter only as soon as they come."""
    await _ask(link, exchange, question, timeout=_PATIENCE)


async def _ask(
    link: Link,
    exchange: str,
    question: Mapping[str, Any],
    *,
    timeout: float,
    enough: Callable[[list[dict[str, Any]]], bool] = lambda answers: False,
) -> list[dict[str, Any]]:
    """What workers answer until all that live have, or it is enough, or the time is up."""
    alive = await census(link, exchange)
    channel = await link.channel()
    try:
        return await _collect(channel, exchange, question, alive=alive, timeout=timeout, enough=enough) if alive else []
    finally:
        await channel.close()


async def _collect(
    channel: Channel,
    exchange: str,
    question: Mapping[str, Any],
    *,
    alive: int,
    timeout: float,
    enough: Callable[[list[dict[str, Any]]], bool],
) -> list[dict[str, Any]]:
    answers: list[dict[str, Any]] = []
    done = asyncio.Event()

    def on_answer(_: object, method: Any, properties: spec.BasicProperties, body: bytes) -> None:
        answers.append(_json(body))
        if len(answers) >= alive or enough(answers):
            done.set()

    channel.on_close(done.set)
    await channel.call(channel.raw.basic_consume, _REPLY_TO, on_answer, auto_ack=True)
    # Nobody is to obey when nobody waits for it any more.
    properties = spec.BasicProperties(reply_to=_REPLY_TO, expiration=str(int(timeout * 1_000)))
    channel.raw.basic_publish(internal(exchange, "control"), "", json.dumps(question).encode(), properties)
    try:
        async with asyncio.timeout(timeout):
            await done.wait()
    except TimeoutError:
        pass
    return answers


def _json(body: bytes) -> dict[str, Any]:
    """What was asked or answered; {} for what is not Palermo's."""
    try:
        found = json.loads(body)
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}
