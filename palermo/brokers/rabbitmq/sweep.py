"""Reading a queue without consuming it: pages held unacknowledged, and given back in order.

RabbitMQ has no other way to look into a queue. What is held does not reach a worker meanwhile,
so a look is as short as the page; closing a channel gives back everything on it at its old place
(classic queues). A channel per page, because an ack searches all that its channel holds.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import replace
from typing import Any

from pika import spec

from palermo.broker import Move, Page, Remove, Stop, Swept, Verdict
from palermo.brokers.rabbitmq.link import Channel, Got, Link, delivered
from palermo.brokers.rabbitmq.wire import read
from palermo.core.message import Message
from palermo.core.topology import amqp_queue
from palermo.errors import NotFound, PalermoError

#: Messages on one channel, at least this many in a long sweep: a connection has at most 2,047 channels.
PAGE = 1_000

#: Messages published, confirmed and acknowledged together: so many may be doubled by a kill in between.
_BATCH = 100

#: The first page, and how many bytes of bodies a later one may hold as far as the one before foretells it.
_FIRST_PAGE = 20
_PAGE_BYTES = 32 * 1024 * 1024

#: A look for no more than so many has them all on its first page.
_LOOK = 100

#: Seconds without a delivery after which the queue is asked whether anything is left.
_QUIET = 0.05


#: Says of jobs that are to be taken out, each with what is to be published in its place, which of them may.
Gate = Callable[[list[tuple[Message, Message | None]]], Awaitable[list[bool]]]


class Reader:
    """One look into one queue. Everything it still holds goes back when it is closed."""

    def __init__(self, link: Link, exchange: str, queue: str = "", *, name: str = "") -> None:
        """`name` is that of the AMQP queue, where it is not a job queue's."""
        self.link = link
        self._queue = queue or name
        self._name = name or amqp_queue(exchange, queue)
        self._held: list[Channel] = []

    async def count(self) -> int:
        """How many messages wait. Raises NotFound."""
        channel = await self.link.channel()
        try:
            frame = await channel.call(channel.raw.queue_declare, self._name, passive=True)
        except PalermoError as error:
            if channel.missing:
                raise NotFound(f"no queue {self._queue!r}; `palermo queues` lists them.") from error
            raise
        await channel.close()
        return int(frame.method.message_count)

    async def pages(
        self, count: int, *, first: int = _FIRST_PAGE, only_look: bool = False
    ) -> AsyncIterator[tuple[Channel, list[Got]]]:
        """The first `count` messages that wait, oldest first, in pages; fewer if others take some meanwhile.

        The first page has at most `first` messages. With `only_look` nothing of a page may be settled.
        """
        most = max(PAGE, count // 1_000)
        size = first
        while count > 0:
            channel = await self.link.channel()
            self._held.append(channel)
            page = await take(channel, self._name, min(size, count), cancel=not only_look)
            if not page:
                return
            count -= len(page)
            size = max(1, min(most, _PAGE_BYTES * len(page) // (1 + sum(len(got.body) for got in page))))
            yield channel, page

    async def release(self, channel: Channel) -> None:
        """Done with this page before the others."""
        self._held.remove(channel)
        await channel.close()

    async def close(self) -> None:
        """Give back what is still held, and wait until it is there again."""
        held, self._held = self._held, []
        for channel in held:
            if channel.is_open:
                for tag in channel.raw.consumer_tags:
                    channel.raw.basic_cancel(tag)
                # Closing the channel would do, but some time later.
                channel.raw.basic_nack(0, multiple=True, requeue=True)
            await channel.close()
        if held:
            await restored(self.link, self._name)


async def restored(link: Link, queue: str) -> None:
    """Wait until an AMQP queue has put back what it was given: until then it counts, and hands out, less.

    Declaring is answered out of turn, but a get waits for all that came before it.
    """
    channel = await link.channel()
    got = await channel.get(queue)
    if got is not None:
        channel.raw.basic_nack(got.tag, requeue=True)
    await channel.close()


async def take(channel: Channel, queue: str, count: int, *, cancel: bool = True) -> list[Got]:
    """The next `count` messages of the queue, unacknowledged; fewer if it runs empty.

    Without `cancel` the channel goes on to be filled up: nothing of it may be settled, and it must be closed soon.
    """
    taken: list[Got] = []
    news = asyncio.Event()

    def on_message(_: object, method: Any, properties: spec.BasicProperties, body: bytes) -> None:
        taken.append(delivered(method, properties, body))
        if len(taken) >= count:
            news.set()

    channel.on_close(news.set)
    await channel.call(channel.raw.basic_qos, prefetch_count=min(count, 65_535))
    frame = await channel.call(channel.raw.basic_consume, queue, on_message)
    while len(taken) < count:
        seen = len(taken)
        try:
            async with asyncio.timeout(_QUIET):
                await news.wait()
        except TimeoutError:
            if len(taken) == seen and not await waits(channel, queue) and len(taken) == seen:
                break
        if channel.error is not None:
            raise channel.error
    if not cancel:
        return taken
    # With the prefetch used up, or the queue empty, nothing is on its way: pika answers what comes after a cancel
    # by a reject, which on a quorum queue counts as a failed delivery.
    await channel.call(channel.raw.basic_cancel, frame.method.consumer_tag)
    return taken


async def waits(channel: Channel, queue: str) -> int:
    """How many messages wait, asked twice: the second answer comes after all that the first saw being delivered."""
    await channel.call(channel.raw.queue_declare, queue, passive=True)
    frame = await channel.call(channel.raw.queue_declare, queue, passive=True)
    return int(frame.method.message_count)


async def browse(reader: Reader, queue: str, *, offset: int, limit: int, newest: bool) -> Page:
    """A page of the queue; see palermo.broker.Broker.browse."""
    total = await reader.count()
    first = max(0, total - offset - limit) if newest else offset
    last = total - offset if newest else min(total, offset + limit)
    chosen: list[Got] = []
    seen = 0
    try:
        async for _, page in reader.pages(last, first=max(_FIRST_PAGE, min(limit, _LOOK)), only_look=True):
            chosen += page[max(0, first - seen) :]
            seen += len(page)
    finally:
        await reader.close()
    # Read once it is all back in the queue, where somebody may wait for it.
    messages = [read(one, queue) for one in chosen]
    return Page(messages=tuple(reversed(messages) if newest else messages), total=total)


async def sweep(
    reader: Reader,
    queue: str | None,
    decide: Callable[[Message], Verdict],
    publish: Callable[[list[Message]], Awaitable[object]],
    progress: Callable[[Swept], None],
    witness: Callable[[list[Message], list[Message]], Awaitable[None]] | None = None,
    gate: Gate | None = None,
) -> Swept:
    """Ask `decide` about every message that waits; see palermo.broker.Broker.sweep.

    `queue` is where they were taken from; None where they wait for their time.

    `publish` stores a batch of messages and returns when all are confirmed: only then are the
    old ones acknowledged. Dying in between runs those of one batch twice; the other order loses them.
    `witness` is awaited with what was looked at: what stays, and what has left the queue. `gate` is asked before
    anything of a batch is done.
    """
    swept = Swept(total=await reader.count())
    progress(swept)
    stopped = False
    try:
        async for channel, page in reader.pages(swept.total):
            kept = 0
            for start in range(0, len(page), _BATCH):
                batch = page[start : start + _BATCH]
                stay, gone = _judge(batch, decide, queue)
                looked = len(stay) + len(gone)
                if gate is not None and gone:
                    may = await gate([(there, None if move is None else move.message) for _, there, move in gone])
                    kept_back = [one for one, allowed in zip(gone, may, strict=True) if not allowed]
                    gone = [one for one, allowed in zip(gone, may, strict=True) if allowed]
                    for _, there, move in kept_back:
                        stay.append(there)
                        if move is not None and move.refused is not None:
                            move.refused()
                moves = [move.message for _, _, move in gone if move is not None]
                if moves:
                    await publish(moves)
                kept += len(batch) - len(gone)
                _ack(channel, [tag for tag, _, _ in gone], all_before=kept == 0)
                if witness is not None:
                    await witness(stay, [there for _, there, _ in gone])
                swept = replace(
                    swept,
                    seen=swept.seen + looked,
                    removed=swept.removed + len(gone) - len(moves),
                    moved=swept.moved + len(moves),
                )
                if stopped := looked < len(batch):
                    break
                # A clock that sweeps has jobs to publish at their instants.
                await asyncio.sleep(0)
            progress(swept)
            if not kept:
                await reader.release(channel)
            if stopped:
                break
    finally:
        await reader.close()
    return swept


def _judge(
    batch: list[Got], decide: Callable[[Message], Verdict], queue: str | None
) -> tuple[list[Message], list[tuple[int, Message, Move | None]]]:
    """What stays, and what is to leave the queue, with its tag and what is published before."""
    stay: list[Message] = []
    gone: list[tuple[int, Message, Move | None]] = []
    for got in batch:
        there = read(got, queue)
        match decide(there):
            case Stop():
                break
            case Move() as move:
                gone.append((got.tag, there, move))
            case Remove():
                gone.append((got.tag, there, None))
            case _:
                stay.append(there)
    return stay, gone


def _ack(channel: Channel, tags: list[int], *, all_before: bool) -> None:
    """Acknowledge these; in one word if all that the channel delivered before the last of them is gone too."""
    if not channel.is_open:
        raise channel.error or NotFound("the queue was deleted while it was being read.")
    if all_before and tags:
        channel.raw.basic_ack(tags[-1], multiple=True)
        return
    for tag in tags:
        channel.raw.basic_ack(tag)
