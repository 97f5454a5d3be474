"""Read a queue without consuming it: take pages of messages unacknowledged, and requeue them in order.

RabbitMQ has no other way to read a queue. Workers don't get the held messages in the meantime, so browsing holds them
only as long as the page takes. Closing a channel requeues its messages at their old positions (classic queues). Each
page has its own channel, because an ack searches all messages that its channel holds.
"""

import asyncio
import logging
import math
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Iterable, Sequence
from contextlib import asynccontextmanager, suppress

from msgspec.structs import replace

from palermo.brokers.features.decided import decided
from palermo.brokers.rabbitmq.amqp.connection import Channel, Connection
from palermo.brokers.rabbitmq.amqp.many_queues import probe_all
from palermo.brokers.rabbitmq.amqp.messages import Got, read
from palermo.brokers.rabbitmq.amqp.mutex import Mutex
from palermo.brokers.rabbitmq.seconds import LONG_PATIENCE, PATIENCE, SOON
from palermo.contract.broker import Page
from palermo.contract.sweep import Move, Remove, SweepDecision, SweepProgress
from palermo.core.message import Message
from palermo.core.topology import amqp_queue, internal, is_failed
from palermo.errors import BrokerUnavailable, NotFound, PalermoError


async def take(
    channel: Channel,
    queue: str,
    count: int,
    *,
    cancel: bool = True,
    late: bool = False,
    max_body: int | None = None,
) -> list[Got]:
    """The next `count` messages of the queue, unacknowledged; fewer if it runs empty.

    Uses a subscription that ends with the last message. basic.get is slower, since a quorum queue writes each one to
    disk: 380 messages a second instead of 3,850 (RabbitMQ 3.10.8; classic queues 4,700 and 14,400). Without `cancel`,
    messages keep arriving, so the caller must not settle any and must close the channel soon. With `late` properties
    are parsed on demand. With `max_body` a longer body is cut on arrival to one byte more.
    """
    taken: list[Got] = []
    news = asyncio.Event()

    def on_message(got: Got) -> None:
        if max_body is not None and len(got.body) > max_body:
            got.body = got.body[: max_body + 1]
        taken.append(got)
        if len(taken) >= count:
            news.set()

    channel.on_close(news.set)
    await channel.prefetch(min(count, 65_535))
    tag = await channel.consume(queue, on_message, late=late)
    while len(taken) < count:
        seen = len(taken)
        try:
            async with asyncio.timeout(SOON):
                await news.wait()
        except TimeoutError:
            if len(taken) == seen and not await waits(channel, queue) and len(taken) == seen:
                break
        if channel.error is not None:
            raise channel.error
    if not cancel:
        return taken
    # Usually nothing is on its way now, because the prefetch is used up or the queue is empty. pika rejects later
    # deliveries, and a quorum queue counts a reject as a failed delivery.
    await channel.unsubscribe(tag)
    return taken


async def waits(channel: Channel, queue: str) -> int:
    """Number of waiting messages of a queue that the channel consumes. Raises BrokerUnavailable without an answer.

    Asks twice, because the second answer comes after all deliveries that were on their way at the first. If a quorum
    queue doesn't answer within 250 ms, RabbitMQ reports no messages and no consumers (rabbit_quorum_queue:stat). That
    can't be true, because we consume the queue.
    """
    deadline = time.monotonic() + LONG_PATIENCE
    while channel.raw.consumer_tags:  # ends if the queue was deleted
        await channel.probe(queue)
        probe = await channel.probe(queue)
        if probe.consumers:
            return probe.messages
        if time.monotonic() > deadline:
            raise BrokerUnavailable(
                f"queue {queue!r} did not answer for {LONG_PATIENCE:g} s; most of its nodes may be down."
            )
        await asyncio.sleep(SOON)
    return 0


log = logging.getLogger("palermo.rabbitmq")

#: Messages on one channel; the same for sweeps that settle few of them; and the maximum number of "few" ids. A
#: connection has at most 2,047 channels, and an ack searches all messages before it: a requeue of 8,000 of 20,000
#: failed jobs cost RabbitMQ 4 s of CPU, and 15 s with pages of 10,000 (3.10.8).
PAGE, _LARGE_PAGE, _FEW = 1_000, 10_000, 100

#: Messages published, confirmed and acknowledged together. A kill in between may duplicate this many.
_BATCH = 100

#: Messages on the first page, and bytes of bodies that later pages may hold, estimated from the page before.
_FIRST_PAGE = 20
_PAGE_BYTES = 32 * 1024 * 1024

#: Maximum number of messages on the first page of browsing.
_LOOK = 100

#: Returns these waiting messages with the arguments that they will run with.
AsTheyRun = Callable[[list[Message]], Awaitable[list[Message]]]

#: Decides which of these jobs may leave the queue. Each comes with the message that replaces it, or None.
Gate = Callable[[list[tuple[Message, Message | None]]], Awaitable[Sequence[bool | Message]]]


class FailedTurn:
    """A lock for sessions that read failed jobs, since a session can't see messages that another one holds.

    It is the exclusive queue `~failed-log.turn`. A reader also waits for programs that consume failed jobs without the
    lock (Reader.await_others).
    """

    def __init__(self, exchange: str) -> None:
        self._mutex = Mutex(internal(exchange, "failed-log.turn"), "another session that reads failed jobs")

    @asynccontextmanager
    async def held(self, connection: Connection, *, only_look: bool) -> AsyncIterator[bool]:
        """Hold the lock. Yields False if RabbitMQ refuses it, or if a reader with `only_look` can't get it soon."""
        patience = PATIENCE if only_look else math.inf
        async with self._mutex.held(connection, patience=patience, optional=True) as alone:
            if not alone:
                log.warning("failed jobs held by another session may be missing")
            yield alone


class Reader:
    """Reads one queue once, or several in order. When it is closed, all messages that it holds are requeued."""

    def __init__(
        self,
        connection: Connection,
        exchange: str,
        queue: str = "",
        *,
        name: str = "",
        only_look: bool = False,
        max_body: int | None = None,
    ) -> None:
        """For a queue that isn't a job queue, `name` is its AMQP name. With `only_look`, no message must be settled.

        With `max_body` a longer body is cut to one byte more. Such a message is only for display. A reader of failed
        jobs waits for other readers, because their messages belong to the queue. In other queues readers can't be
        distinguished from workers.
        """
        self.connection = connection
        self.only_look = only_look
        self.max_body = max_body
        self._failed = is_failed(queue)
        self._queue = queue or name
        self._names = [name or amqp_queue(exchange, queue)]
        #: Number of messages in each when they were counted.
        self._counts: dict[str, int] = {}
        #: The queue that is being read, and the channels that hold its messages.
        self._name = self._names[0]
        self._held: list[Channel] = []

    def add(self, names: Iterable[str]) -> None:
        """Also read these AMQP queues after the others, if they exist. Call it before anything is counted."""
        self._names += names

    async def count(self) -> int:
        """Number of waiting messages, for display: too low while some are being requeued. Raises NotFound."""
        probes = await probe_all(self.connection, self._names)
        first = probes[self._names[0]]
        if not first.exists:
            raise self._missing() from first.error
        total = first.messages  # raises BrokerRefused if another program uses the queue exclusively
        self._counts = {name: probe.ready for name, probe in probes.items() if probe.exists}
        self._names = list(self._counts)
        return total + sum(self._counts[name] for name in self._names[1:])

    async def count_all(self) -> int:
        """Number of waiting messages, including those that were requeued before this call. Raises NotFound.

        Uses a get. RabbitMQ answers it with a count, after processing everything sent before it; it may answer a
        declare earlier.
        """
        await self.await_others()
        first, *others = self._names
        self._counts = {first: await self._count_all(first)}
        for name in others:
            with suppress(NotFound):
                self._counts[name] = await self._count_all(name)
        self._names = list(self._counts)
        return sum(self._counts.values())

    async def _count_all(self, name: str) -> int:
        channel = await self.connection.channel()
        try:
            got = await channel.get(name)
        except PalermoError as error:
            if not channel.missing:
                raise
            raise self._missing() from error
        if got is not None:
            channel.requeue(got.tag)
        await channel.close()
        return 0 if got is None else got.left + 1

    async def await_others(self) -> None:
        """Wait until no other session reads these failed jobs.

        The wait is limited, as another program may consume them without the lock. It is shorter for a reader that only
        reads, although reading 40,000 takes about five seconds.
        """
        if not self._failed:
            return
        deadline = time.monotonic() + (PATIENCE if self.only_look else LONG_PATIENCE)
        while (await self.connection.probe(self._names[0])).consumers:
            if time.monotonic() > deadline:
                log.warning("failed jobs held by another session are missing queue=%s", self._queue)
                return
            await asyncio.sleep(SOON)

    def _missing(self) -> NotFound:
        return NotFound(f"no queue {self._queue!r}; `palermo queues` lists them.")

    async def pages(
        self, count: int, *, first: int = _FIRST_PAGE, few: bool = False
    ) -> AsyncIterator[tuple[Channel, list[Got]]]:
        """The first `count` waiting messages, oldest first, in pages; fewer if others take some in the meantime.

        The first page has at most `first` messages. `few` says that the caller settles few of them, or none.
        """
        most = max(_LARGE_PAGE if few or self.only_look else PAGE, count // 1_000)
        size = first
        for name in self._names:
            # One queue at a time, since each page needs a channel, and a connection usually has 2,047.
            await self.close()
            self._name = name
            left = count if name == self._names[-1] else min(count, self._counts[name])
            while left > 0:
                channel = await self.connection.channel()
                self._held.append(channel)
                page = await take(
                    channel,
                    name,
                    min(size, left),
                    cancel=not self.only_look,
                    # Unparsed properties would keep the whole receive buffer, including bodies.
                    late=self.max_body is None,
                    max_body=self.max_body,
                )
                if not page:
                    if self._failed and not self.only_look and await self.count_all():
                        continue
                    break
                left -= len(page)
                count -= len(page)
                size = max(1, min(most, _PAGE_BYTES * len(page) // (1 + sum(len(got.body) for got in page))))
                yield channel, page

    async def release(self, channel: Channel) -> None:
        """Requeue this page before the others."""
        self._held.remove(channel)
        await channel.close()

    async def close(self) -> None:
        """Requeue all messages that are still held; returns once they are in the queue again."""
        held, self._held = self._held, []
        if held:
            await requeue(self.connection, self._name, held)


async def ids_in(
    reader: Reader, *, most: float = math.inf, id_of: Callable[[Got], str] = lambda got: str(got.id)
) -> set[str]:
    """The ids of the waiting messages; empty if the queue is missing, or has more than `most` messages."""
    try:
        count = await reader.count_all()
        return {id_of(got) async for _, page in reader.pages(count if count <= most else 0) for got in page}
    except NotFound:
        return set()
    finally:
        await reader.close()


async def requeue(connection: Connection, queue: str, held: list[Channel]) -> None:
    """Requeue all messages of an AMQP queue that these channels hold, and close them; returns once the queue has them.

    Waits for the answer to a get, which RabbitMQ sends after processing everything sent before it. Until then a
    consumer exists. So a sweep, which waits for the queue's consumers (Reader.count_all), also waits for this requeue.
    """
    last = await connection.channel()
    try:
        await last.prefetch(1)
        await last.consume(queue, lambda _: None)
    finally:
        for channel in held:
            await _requeue_all(channel)
    await last.get(queue)
    await _requeue_all(last)


async def _requeue_all(channel: Channel) -> None:
    """Requeue all messages of the channel, and close it."""
    if channel.is_open:
        for tag in channel.raw.consumer_tags:
            channel.raw.basic_cancel(tag)
        # Closing the channel would requeue them too, but later.
        channel.requeue(0, multiple=True)
    await channel.close()


async def browse(reader: Reader, queue: str, *, offset: int, limit: int, newest: bool) -> Page:
    """A page of the queue; see palermo.contract.broker.Broker.browse."""
    await reader.await_others()
    total = await reader.count()
    first = max(0, total - offset - limit) if newest else offset
    last = total - offset if newest else min(total, offset + limit)
    chosen: list[Got] = []
    seen = 0
    try:
        async for _, page in reader.pages(last if first < last else 0, first=max(_FIRST_PAGE, min(limit, _LOOK))):
            chosen += page[max(0, first - seen) :]
            seen += len(page)
    finally:
        await reader.close()
    # Decoded after they are back in the queue, where a worker may wait for them.
    messages = [read(one, queue) for one in chosen]
    return Page(messages=tuple(reversed(messages) if newest else messages), total=total)


async def sweep(
    reader: Reader,
    queue: str | None,
    decide: Callable[[Message], SweepDecision],
    publish: Callable[[list[Message]], Awaitable[object]],
    progress: Callable[[SweepProgress], None],
    witness: Callable[[list[Message], list[Message]], Awaitable[None]] | None = None,
    gate: Gate | None = None,
    *,
    as_they_run: AsTheyRun | None = None,
    ids: Collection[str] = (),
    most: int | None = None,
) -> SweepProgress:
    """Call `decide` for every waiting message; see palermo.contract.broker.Broker.sweep.

    `queue` is the messages' queue, or None for scheduled jobs. `decide` receives the messages as changed by
    `as_they_run`. `gate` is called before any change of a batch, and again with the old messages if `publish` raises,
    because these jobs stay where they were. `publish` stores a batch and returns when all are confirmed. Only then are
    the old messages acknowledged, so a kill in between runs the jobs of one batch twice instead of losing them. For
    each batch, `witness` is awaited with the messages that are kept and those that have left the queue.
    """
    swept = SweepProgress(total=await reader.count_all())
    progress(swept)
    stopped = False
    wanted = _wire_ids(ids)
    try:
        async for channel, page in reader.pages(min(swept.total, most or swept.total), few=0 < len(wanted) <= _FEW):
            kept = 0
            for start in range(0, len(page), _BATCH):
                batch = page[start : start + _BATCH]
                # With wanted ids, also the first message, since `decide` may end the sweep.
                seen = [
                    (number, read(got, queue))
                    for number, got in enumerate(batch)
                    if not (wanted and number) or got.may_have(wanted)
                ]
                if as_they_run is not None:
                    messages = await as_they_run([there for _, there in seen])
                    seen = [(number, there) for (number, _), there in zip(seen, messages, strict=True)]
                tagged = ((number, batch[number].tag, there) for number, there in seen)
                stay, gone, looked = decided(tagged, len(batch), decide)
                if gate is not None and gone:
                    may = await gate([(there, _moved(decision)) for _, there, decision in gone])
                    asked, gone = gone, []
                    for (tag, there, decision), allowed in zip(asked, may, strict=True):
                        if isinstance(decision, Move) and isinstance(allowed, Message):
                            gone.append((tag, there, replace(decision, message=allowed)))
                        elif allowed:
                            gone.append((tag, there, decision))
                        else:
                            stay.append(there)
                            if isinstance(decision, Move):
                                decision.refused()
                moves = [decision.message for _, _, decision in gone if isinstance(decision, Move)]
                if moves:
                    try:
                        await publish(moves)
                    except PalermoError:
                        if gate is not None and not (queue and is_failed(queue)):
                            with suppress(PalermoError):
                                await gate([(there, there) for _, there, move in gone if isinstance(move, Move)])
                        raise
                kept += len(batch) - len(gone)
                _ack(channel, [tag for tag, _, _ in gone], all_before=kept == 0)
                for _, _, decision in gone:
                    decision.done()
                if witness is not None:
                    await witness(stay, [there for _, there, _ in gone])
                swept = replace(
                    swept,
                    seen=swept.seen + looked,
                    removed=swept.removed + len(gone) - len(moves),
                    moved=swept.moved + len(moves),
                )
                progress(swept)
                if stopped := looked < len(batch):
                    break
                # A sweeping leader has other jobs to publish on time.
                await asyncio.sleep(0)
            if not kept:
                await reader.release(channel)
            if stopped:
                break
    finally:
        await reader.close()
    return swept


def _wire_ids(ids: Collection[str]) -> frozenset[bytes]:
    """The ids as encoded in messages; empty if one of them could be encoded in another way."""
    return frozenset(id.encode() for id in ids) if all(map(str.isascii, ids)) else frozenset()


def _moved(decision: Remove | Move) -> Message | None:
    """The message that replaces the old one."""
    return decision.message if isinstance(decision, Move) else None


def _ack(channel: Channel, tags: list[int], *, all_before: bool) -> None:
    """Acknowledge these messages, in one frame if everything before the last one is settled too."""
    if not channel.is_open:
        raise channel.error or NotFound("the queue was deleted while it was being read.")
    if all_before and tags:
        channel.ack(tags[-1], multiple=True)
        return
    for tag in tags:
        channel.ack(tag)
