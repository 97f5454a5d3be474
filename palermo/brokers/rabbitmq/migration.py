"""Making a queue one of another type, which RabbitMQ itself cannot: by way of a second queue, under the same name.

    1  workers are held                          3  the old queue is deleted, the new one made
    2  publishers are led to `~migrating.<queue>`,   4  publishers are led back, and the messages moved back
       and all messages moved there

Every message is stored in one queue before it leaves the other, so a kill loses none and doubles at
most one batch. Which step comes next follows from what is there: run again, it goes on. The one
thing that is not safe to delete is a queue with unacknowledged messages, since those of a worker
that dies would be gone; so step 3 waits until no worker has a job of it.
"""

import asyncio
import logging
from collections import Counter
from collections.abc import Awaitable, Callable
from dataclasses import replace

from palermo.broker import Swept
from palermo.brokers.rabbitmq import versions
from palermo.brokers.rabbitmq.failed_log import FailedLog
from palermo.brokers.rabbitmq.link import Got, Link
from palermo.brokers.rabbitmq.publisher import Nacked, Publisher
from palermo.brokers.rabbitmq.sweep import take
from palermo.brokers.rabbitmq.translate import PRECONDITION_FAILED
from palermo.brokers.rabbitmq.wire import PERSISTENT, to_message
from palermo.core.topology import CLASSIC, PRIORITY, QUORUM, amqp_queue, internal
from palermo.errors import BrokerRefused, BrokerUnavailable, NotFound, PalermoError

log = logging.getLogger("palermo.rabbitmq")

#: Messages moved together: so many may be doubled by a kill in between.
_BATCH = 100

#: Seconds after which all is in a queue that was routed to it before it was unbound.
_QUIET = 0.5

#: Seconds between two looks at who still works, and lines about it.
_LOOK, _SAY = 0.2, 10.0

#: Attempts to make the new queue before somebody else makes the old one again.
_ATTEMPTS = 20

#: Headers that would send a copy elsewhere, or that the server adds itself.
_DROPPED = ("CC", "BCC", "x-delivery-count")


class Migration:
    """One move of one queue."""

    def __init__(
        self,
        link: Link,
        exchange: str,
        queue: str,
        kind: str,
        *,
        publisher: Callable[[], Awaitable[Publisher]],
        busy: Callable[[], Awaitable[int]],
        progress: Callable[[Swept], None],
        failed_log: FailedLog | None = None,
    ) -> None:
        """`busy` says how many jobs of the queue are being run; `failed_log` is for a queue of failed jobs."""
        self._link = link
        self._exchange = exchange
        self._queue = queue
        self._kind = kind
        self._publisher = publisher
        self._busy = busy
        self._progress = progress
        self._failed_log = failed_log
        self._name = amqp_queue(exchange, queue)
        self._aside = internal(exchange, f"migrating.{queue}")
        self._swept = Swept(total=0)
        #: What was taken out of the old queue while publishers were led aside. A publisher that declares the old queue
        #: meanwhile binds it again, and what it publishes is in both.
        self._doubled: Counter[int] = Counter()

    async def is_needed(self) -> bool:
        """Whether the queue is of another type, or a migration was broken off. Raises NotFound."""
        waiting = await self._count(self._name)
        if await self._count(self._aside) is not None:
            return True
        if waiting is None:
            raise NotFound(f"no queue {self._queue!r}; `palermo queues` lists them.")
        return not await self._make()

    async def run(self) -> int:
        """Move it, while workers are held; how many jobs were moved."""
        there, aside = await self._count(self._name), await self._count(self._aside)
        self._swept = Swept(total=2 * (there or 0) + (aside or 0))
        self._progress(self._swept)
        if aside is None:
            if self._failed_log is not None:
                # Begun anew: of a quorum queue nothing is shown until it is one again. Going on leaves what is logged.
                await self._failed_log.emptied(self._queue)
            arguments = versions.arguments(self._kind, self._link.version)
            await self._call("queue_declare", self._aside, durable=True, arguments=arguments)
        for _ in range(_ATTEMPTS):
            if await self._count(self._name) is None or await self._make():
                break
            await self._empty()
        if not await self._make():
            raise BrokerRefused(
                f"queue {self._queue!r} is made again as it was by others, as often as it is deleted. Set queue_type to"
                f" {CLASSIC if self._kind == PRIORITY else self._kind!r} for all programs that use it, and run this"
                " again: nothing is lost."
            )
        await self._call("queue_unbind", self._aside, self._exchange, routing_key=self._queue)
        await self._call("queue_bind", self._name, self._exchange, routing_key=self._queue)
        await self._drain(self._aside, self._name)
        await self._call("queue_delete", self._aside)
        if self._failed_log is not None and self._kind != QUORUM:
            await self._failed_log.emptied(self._queue)
        return self._swept.moved

    # -- steps -----------------------------------------------------------------------------------

    async def _empty(self) -> None:
        """Move all there is aside, and replace the queue."""
        # All that is there now, while publishers still come here: so the order is kept, and the rest is short.
        await self._move_all(self._name, self._aside)
        await self._idle()
        await self._call("queue_bind", self._aside, self._exchange, routing_key=self._queue)
        await self._call("queue_unbind", self._name, self._exchange, routing_key=self._queue)
        await self._drain(self._name, self._aside, doubling=True)
        await self._idle()
        await self._drain(self._name, self._aside, doubling=True)
        channel = await self._link.channel()
        arguments = versions.arguments(self._kind, self._link.version)
        # Without a pause between them, so that nobody makes the queue before us. Publishers find no queue for a moment,
        # and declare it: with both bound, what they publish would be in both.
        channel.raw.queue_delete(self._name)
        try:
            await channel.call(channel.raw.queue_unbind, self._aside, self._exchange, routing_key=self._queue)
            await channel.call(channel.raw.queue_declare, self._name, durable=True, arguments=arguments)
            await channel.call(channel.raw.queue_bind, self._name, self._exchange, routing_key=self._queue)
        except PalermoError:
            if channel.code != PRECONDITION_FAILED:
                raise
        await channel.close()

    async def _idle(self) -> None:
        """Wait until no worker has a job of the queue."""
        loop = asyncio.get_running_loop()
        said = loop.time()
        while running := await self._busy():
            if loop.time() - said > _SAY:
                said = loop.time()
                log.warning("waiting for running jobs queue=%s jobs=%d", self._queue, running)
            await asyncio.sleep(_LOOK)

    async def _drain(self, source: str, target: str, *, doubling: bool = False) -> None:
        """Move all that was published before this, when publishers are led elsewhere.

        Whoever binds the old queue again may go on to fill it; that is aside as well, and not waited for.
        """
        await asyncio.sleep(_QUIET)
        await self._move_all(source, target, doubling=doubling)

    async def _move_all(self, source: str, target: str, *, doubling: bool = False) -> None:
        """Move as many as there are now: what is published meanwhile comes after them."""
        left = await self._count(source) or 0
        while left > 0 and (moved := await self._move(source, target, min(left, _BATCH), doubling=doubling)):
            left -= moved

    async def _move(self, source: str, target: str, count: int, *, doubling: bool = False) -> int:
        """Move one batch, first ones first; how many there were."""
        channel = await self._link.channel()
        batch = await take(channel, source, count)
        if batch:
            if doubling:
                self._doubled.update(map(_fingerprint, batch))
            moving = batch if source == self._name else [got for got in batch if not self._is_double(got)]
            await self._store(moving, target)
            if self._failed_log is not None and self._kind == QUORUM and target == self._name:
                there = [to_message(got.properties, got.body, taken_from=self._queue) for got in moving]
                await self._failed_log.stored(self._queue, there)
            if not channel.is_open:
                raise channel.error or BrokerUnavailable(f"queue {self._queue!r} was deleted while it was moved.")
            channel.raw.basic_ack(batch[-1].tag, multiple=True)
            back = len(moving) if target == self._name else 0
            seen = self._swept.seen + len(batch)
            self._swept = replace(
                self._swept, seen=seen, total=max(seen, self._swept.total), moved=self._swept.moved + back
            )
            self._progress(self._swept)
        await channel.close()
        return len(batch)

    def _is_double(self, got: Got) -> bool:
        """Whether a publisher's message came aside and into the old queue, from which it was moved as well."""
        key = _fingerprint(got)
        if not got.exchange or not self._doubled[key]:
            return False
        self._doubled[key] -= 1
        return True

    async def _store(self, batch: list[Got], target: str) -> None:
        """Publish these in order; returns once all are confirmed. Those that are refused are tried again."""
        for got in batch:
            got.properties.delivery_mode = PERSISTENT
            got.properties.user_id = None
            headers = got.properties.headers or {}
            got.properties.headers = {name: value for name, value in headers.items() if name not in _DROPPED}
        while batch:
            publisher = await self._publisher()
            sent = [(got, publisher.send("", target, got.properties, got.body)) for got in batch]
            batch = []
            for got, future in sent:
                try:
                    await future
                except Nacked:
                    batch.append(got)
            if batch:
                await asyncio.sleep(_LOOK)

    # -- what the server is asked ----------------------------------------------------------------

    async def _count(self, name: str) -> int | None:
        """How many messages wait in a queue; None if it does not exist."""
        channel = await self._link.channel()
        try:
            frame = await channel.call(channel.raw.queue_declare, name, passive=True)
        except NotFound:
            return None
        await channel.close()
        return int(frame.method.message_count)

    async def _make(self) -> bool:
        """Make the queue if it is not there; whether it is of the wanted type now."""
        channel = await self._link.channel()
        arguments = versions.arguments(self._kind, self._link.version)
        try:
            await channel.call(channel.raw.queue_declare, self._name, durable=True, arguments=arguments)
        except PalermoError as error:
            if channel.code != PRECONDITION_FAILED:
                raise
            return not any(f"'{name}'" in str(error) for name in ("x-queue-type", "x-max-priority"))
        await channel.close()
        return True

    async def _call(self, method: str, *args: object, **kwargs: object) -> None:
        channel = await self._link.channel()
        await channel.call(getattr(channel.raw, method), *args, **kwargs)
        await channel.close()


def _fingerprint(got: Got) -> int:
    """The same for two copies of one message, and for hardly any others: an id may be used twice."""
    headers = {name: value for name, value in (got.properties.headers or {}).items() if name not in _DROPPED}
    return hash((got.properties.message_id, got.body, repr(headers)))
