"""Changes the type of a queue under the same name, with a second queue, since RabbitMQ can't change a type.

    1  the queue is paused, so workers take no job   3  the old queue is deleted, the new one created
    2  publishing is routed to `~migrating.<queue>`, 4  publishing is routed back, and the messages moved back
       and all messages moved there

Every message is stored in one queue before it leaves the other, so a kill loses none and duplicates at most one batch.
The existing queues determine the next step, so an interrupted migration can be continued. If a queue with
unacknowledged messages is deleted, and the worker that has them dies, they are lost. So step 3 waits until no worker
has a job from the queue.
"""

import asyncio
import logging
from collections import Counter
from collections.abc import Awaitable, Callable

from msgspec.structs import replace

from palermo.brokers.rabbitmq.amqp import versions
from palermo.brokers.rabbitmq.amqp.connection import Channel, Connection
from palermo.brokers.rabbitmq.amqp.messages import PERSISTENT, Got, new_id, to_message
from palermo.brokers.rabbitmq.amqp.publisher import Publisher, PublishFuture
from palermo.brokers.rabbitmq.browsing.failed_log import FailedLog
from palermo.brokers.rabbitmq.browsing.sweep import take
from palermo.brokers.rabbitmq.publishing.handover import Refusals, outcomes
from palermo.brokers.rabbitmq.seconds import LOOK_EVERY, SAY_OFTEN, STILL_REFUSED
from palermo.contract.sweep import SweepProgress
from palermo.core.topology import CLASSIC, PRIORITY, QUORUM, amqp_queue, internal
from palermo.errors import BrokerRefused, BrokerUnavailable, HeadersTooLarge, NotFound, PublishRefused

log = logging.getLogger("palermo.rabbitmq")

#: Number of messages moved together. A kill in between may duplicate this many.
_BATCH = 100

#: Maximum number of attempts to create the new queue, since another program may create the old one again first.
_ATTEMPTS = 20

#: Headers that would route copies, or that the server adds by itself.
_DROPPED = ("CC", "BCC", "x-delivery-count")


class Migration:
    """One change of one queue's type."""

    def __init__(
        self,
        connection: Connection,
        exchange: str,
        queue: str,
        kind: str,
        *,
        publisher: Callable[[], Awaitable[Publisher]],
        running: Callable[[], Awaitable[int | None]],
        progress: Callable[[SweepProgress], None],
        failed_log: FailedLog | None = None,
    ) -> None:
        """`running` returns the number of the queue's running jobs, or None if a living worker doesn't answer.

        `failed_log` is needed for a failed queue.
        """
        self._connection = connection
        self._exchange = exchange
        self._queue = queue
        self._kind = kind
        self._publisher = publisher
        self._running = running
        self._progress = progress
        self._failed_log = failed_log
        self._name = amqp_queue(exchange, queue)
        self._aside = internal(exchange, f"migrating.{queue}")
        self._swept = SweepProgress(total=0)
        #: Whether publishing was diverted to the second queue at the last check or change.
        self._diverted = False
        #: Messages that were removed from the old queue during the diversion, by identity. If a publisher declares the
        #: old queue in the meantime, it binds it again, and its messages go to both queues.
        self._doubled: Counter[tuple[str, int]] = Counter()

    async def is_needed(self) -> bool:
        """Whether the queue has another type, or a migration was interrupted. Raises NotFound."""
        waiting = await self._count(self._name)
        if await self._count(self._aside) is not None:
            return True
        if waiting is None:
            raise NotFound(f"no queue {self._queue!r}; `palermo queues` lists them.")
        return not await self._make()

    async def run(self) -> int:
        """Migrate the queue, which is paused. Returns the number of moved jobs."""
        there, aside = await self._count(self._name), await self._count(self._aside)
        # an interrupted migration had diverted publishing
        self._diverted = aside is not None
        self._swept = SweepProgress(total=2 * (there or 0) + (aside or 0))
        self._progress(self._swept)
        if aside is None:
            if self._failed_log is not None:
                # Not when a migration is continued. The log is used only for failed queues of type quorum.
                await self._failed_log.emptied(self._queue)
            arguments = versions.arguments(self._kind, self._connection.version)
            if difference := await self._connection.declare(self._aside, arguments):
                raise BrokerRefused(difference.text)
            await self._connection.persist_queues()
        for _ in range(_ATTEMPTS):
            if await self._count(self._name) is None or await self._make():
                break
            await self._empty()
        if not await self._make():
            raise BrokerRefused(
                f"other programs created queue {self._queue!r} again with its old type. Set queue_type to"
                f" {CLASSIC if self._kind == PRIORITY else self._kind!r} for all programs that use it, then run this"
                " command again. Nothing is lost."
            )
        await self._end_diversion()
        # Twice, because a session that waits for a slow quorum queue publishes only when that queue answers.
        for _ in range(2):
            await asyncio.sleep(LOOK_EVERY)  # by then all messages diverted before have arrived
            while await self._move(self._aside, self._name, _BATCH):
                pass  # until nothing arrives: a queue's count excludes messages on their way into it
        await self._connection.delete(self._aside)
        if self._failed_log is not None and self._kind != QUORUM:
            await self._failed_log.emptied(self._queue)
        return self._swept.moved

    # -- steps -----------------------------------------------------------------------------------

    async def _empty(self) -> None:
        """Move all messages to the second queue, and replace the first."""
        # First the present messages, while publishers still publish here: that keeps the order, and leaves few.
        await self._move_all()
        await self._idle()
        await self._divert()
        await self._drain()
        await self._idle(aside=True)
        await self._drain()
        arguments = versions.arguments(self._kind, self._connection.version)
        async with self._connection.spare_channel() as channel:
            # Sent together, so that no other program creates the queue in between. Publishing is diverted until the
            # new queue is bound. A message that no queue takes is lost, unless its program publishes it as mandatory.
            channel.raw.queue_delete(self._name)
            await channel.declare(self._name, arguments)  # another program may have created it, which `run` checks
        await self._connection.persist_queues()

    async def _divert(self) -> None:
        """Divert publishing to the second queue, until a publisher declares the old queue again."""
        self._diverted = True
        async with self._connection.spare_channel() as channel:
            # Sent together: messages published in between go to both queues.
            channel.raw.queue_bind(self._aside, self._exchange, routing_key=self._queue)
            await channel.unbind(self._name, self._exchange, routing_key=self._queue)

    async def _end_diversion(self) -> None:
        """Route publishing to the queue again, and end the diversion."""
        async with self._connection.spare_channel() as channel:
            channel.raw.queue_bind(self._name, self._exchange, routing_key=self._queue)
            await channel.unbind(self._aside, self._exchange, routing_key=self._queue)

    async def _idle(self, *, aside: bool = False) -> None:
        """Wait until no worker has a job of the queue. With `aside`, divert publishing repeatedly.

        A living worker that doesn't answer may have one.
        """
        loop = asyncio.get_running_loop()
        said = loop.time()
        while (jobs := await self._running()) != 0:
            if aside:
                await self._divert()
            if loop.time() - said > SAY_OFTEN:
                said = loop.time()
                if jobs is None:
                    log.warning("waiting for a worker that does not answer queue=%s", self._queue)
                else:
                    log.warning("waiting for running jobs queue=%s jobs=%d", self._queue, jobs)
            await asyncio.sleep(LOOK_EVERY)

    async def _drain(self) -> None:
        """Move all messages that were published to the queue before the diversion.

        A publisher that binds the old queue again may keep filling it. Its messages are moved too, but the call doesn't
        wait for them.
        """
        await asyncio.sleep(LOOK_EVERY)  # by then all messages routed here before have arrived
        await self._move_all()
        # The count did not include messages on their way into the queue, or back into it.
        await self._move(self._name, self._aside, _BATCH)

    async def _move_all(self) -> None:
        """Move the present messages to the second queue. Later messages come after them."""
        left = await self._count(self._name) or 0
        while left > 0 and (moved := await self._move(self._name, self._aside, min(left, _BATCH))):
            left -= moved

    async def _move(self, source: str, target: str, count: int) -> int:
        """Move one batch, in order. Returns its size."""
        channel = await self._connection.channel()
        try:
            return await self._move_on(channel, source, target, count)
        finally:
            # Requeues the messages that were not stored. A queue must not be deleted while a session holds one of its
            # messages.
            await channel.close()

    async def _move_on(self, channel: Channel, source: str, target: str, count: int) -> int:
        batch = await take(channel, source, count)
        if batch:
            if self._diverted and source == self._name:
                self._doubled.update(identity for got in batch if (identity := _identity(got)) is not None)
            moving = batch if source == self._name else [got for got in batch if not self._is_double(got)]
            await self._store(moving, target)
            if self._failed_log is not None and self._kind == QUORUM and target == self._name:
                there = [to_message(got.properties, got.body, taken_from=self._queue) for got in moving]
                await self._failed_log.stored(self._queue, there)
            if not channel.is_open:
                raise channel.error or BrokerUnavailable(f"queue {self._queue!r} was deleted during the migration.")
            channel.ack(batch[-1].tag, multiple=True)
            back = len(moving) if target == self._name else 0
            seen = self._swept.seen + len(batch)
            self._swept = replace(
                self._swept, seen=seen, total=max(seen, self._swept.total), moved=self._swept.moved + back
            )
            self._progress(self._swept)
        return len(batch)

    def _is_double(self, got: Got) -> bool:
        """Whether a publisher's message went to both queues, and the copy in the old one was already moved."""
        # If in doubt, keep it: two copies of a job are better than a lost one.
        identity = _identity(got) if got.exchange else None
        return identity is not None and self._doubled.pop(identity, 0) == 1

    async def _store(self, batch: list[Got], target: str) -> None:
        """Publish these in order, and retry refused ones; returns once all are confirmed.

        If a job doesn't fit a frame, its errors are cut. If it still doesn't fit, raises BrokerRefused with nothing
        published.
        """
        for got in batch:
            got.properties.delivery_mode = PERSISTENT
            got.properties.user_id = None
            got.properties.message_id = got.properties.message_id or new_id()
            headers = got.properties.headers or {}
            got.properties.headers = {name: value for name, value in headers.items() if name not in _DROPPED}
        refusals = Refusals(f"jobs that are migrated for queue {self._queue!r}", first=LOOK_EVERY, last=STILL_REFUSED)
        while batch:
            publisher = await self._publisher()
            try:
                for got in batch:
                    publisher.check(got)
            except HeadersTooLarge as error:
                raise BrokerRefused(
                    f"{error} Migrate again with a larger frame_max in the broker's URL; the migration continues where"
                    " it stopped."
                ) from error
            refused, ends = list[tuple[Got, PublishRefused]](), [PublishFuture() for _ in batch]
            for got, ended in zip(batch, ends, strict=True):
                publisher.forward("", target, got, ended)
            answers = await outcomes(self._connection, [ended.future for ended in ends])
            for got, answer in zip(batch, answers, strict=True):
                if isinstance(answer, PublishRefused):
                    refused.append((got, answer))
                elif answer is not None:
                    raise answer
            batch = [got for got, _ in refused]
            if refused:
                await asyncio.sleep(refusals.refused(refused[0][1]))

    # -- queries ---------------------------------------------------------------------------------

    async def _count(self, name: str) -> int | None:
        """Number of messages waiting in a queue; None if it doesn't exist."""
        probe = await self._connection.probe(name)
        return probe.messages if probe.exists else None

    async def _make(self) -> bool:
        """Create the queue if it is missing. Returns whether it has the wanted type now."""
        difference = await self._connection.declare(
            self._name, versions.arguments(self._kind, self._connection.version)
        )
        await self._connection.persist_queues()
        return difference is None or difference.argument not in ("x-queue-type", "x-max-priority")


def _identity(got: Got) -> tuple[str, int] | None:
    """A value that all copies of a message have in common; None for a message without an id.

    Includes the time, because another program may give one id to several jobs.
    """
    id = got.properties.message_id
    if not id:
        return None
    headers = {name: value for name, value in (got.properties.headers or {}).items() if name not in _DROPPED}
    return str(id), hash((got.body, repr(headers)))
