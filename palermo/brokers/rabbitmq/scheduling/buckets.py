"""The buckets of delayed jobs: the leader creates them, moves jobs into them, and moves them on in time.

Promise: a job is acknowledged in its old place after its confirm in the new one.

* Leader killed (kill -9): at most the jobs of one batch are duplicated. The next leader finds every job, because the
  name of a bucket is recorded before its first job.
* Broker killed: confirmed jobs survive.
* A queue refuses jobs: they remain in their bucket. The jobs behind them move on, and no job is duplicated.
* A bucket's queue is deleted by hand: its jobs are lost. The next job creates it again.

The leader deletes a bucket that has been open and empty for a minute. By then RabbitMQ has requeued everything that the
last leader held.
"""

import asyncio
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from typing import Any

from palermo.brokers.rabbitmq.amqp.connection import Channel, Connection
from palermo.brokers.rabbitmq.amqp.many_queues import probe_all
from palermo.brokers.rabbitmq.amqp.messages import Got, to_message
from palermo.brokers.rabbitmq.amqp.publisher import PublishFuture, RecordQueue
from palermo.brokers.rabbitmq.amqp.state_log import settled
from palermo.brokers.rabbitmq.browsing.sweep import Reader
from palermo.brokers.rabbitmq.publishing.handover import Refusals, is_mark, outcomes, write_acks
from palermo.brokers.rabbitmq.publishing.job_destinations import delay_queue_name
from palermo.brokers.rabbitmq.publishing.name_list import NameList
from palermo.brokers.rabbitmq.publishing.outbox import Outbox
from palermo.brokers.rabbitmq.scheduling.scheduled_index import ScheduledIndex
from palermo.brokers.rabbitmq.seconds import LOOK_EVERY, RARELY
from palermo.contract.tasks import together
from palermo.core.due_times import Bucket, Intake, bucket_of
from palermo.core.topology import FAILED_QUEUE, internal
from palermo.errors import HeadersTooLarge, NotFound, PalermoError, StoreInvalid

#: Maximum number of jobs moved out of one queue before other queues, and requests, get a turn.
_TURN = 300

#: Number of jobs moved together. Due jobs are published in between.
_BATCH = 100


class Buckets:
    """The buckets of one exchange, in the leader."""

    def __init__(
        self,
        exchange: str,
        connection: Connection,
        outbox: Outbox,
        index: ScheduledIndex,
        arguments: Mapping[str, Any],
        *,
        now: Callable[[], float],
    ) -> None:
        """`arguments` are those of the queues' declarations."""
        self._exchange = exchange
        self._connection = connection
        self._outbox = outbox
        self._index = index
        self._arguments = arguments
        self._now = now
        #: Held while jobs are moved. A request that holds it finds each job in exactly one place.
        self.turn = asyncio.Lock()
        self._list = RecordQueue(internal(exchange, "later"), connection, outbox.open, arguments)
        self._names: NameList[str] = NameList(
            self._list,
            connection,
            outbox.open,
            parse=lambda name: str(Bucket.parse(name)),
            plain=str,
            news=lambda _: None,
        )
        self._refusals = Refusals("delayed jobs")
        #: By place: number of its first jobs that were refused in their new place. The next turn includes the jobs
        #: behind.
        self._refused: Counter[str] = Counter()
        #: When each open bucket was found empty, on the loop's clock.
        self._empty_since: dict[str, float] = {}
        self._moving: asyncio.Task[tuple[int, PalermoError | None]] | None = None
        self._closed = False

    def queue(self, place: str) -> str:
        """The AMQP name of an intake's or a bucket's queue."""
        return delay_queue_name(self._exchange, place)

    async def read(self) -> list[Bucket]:
        """All buckets, shortest first."""
        # The intakes are created, because RabbitMQ logs each query of a missing queue.
        await together(self._names.read(), *map(self._outbox.destinations.ensure, Intake))
        return sorted(map(Bucket.parse, self._names.names))

    async def count(self, places: Iterable[str]) -> dict[str, int]:
        """The number of jobs waiting in each of these places.

        Waits until RabbitMQ has requeued the jobs that the last leader held.
        """
        found: dict[str, int] = {}
        queues = {self.queue(place): place for place in places}
        for queue, probe in (await probe_all(self._connection, queues)).items():
            if probe.exists and probe.consumers:
                async with self._connection.spare_channel() as channel:
                    probe = await settled(channel, queue, readers=0)
            if probe.exists:
                found[queues[queue]] = probe.messages
            else:
                self._forget(queues[queue])
        return found

    async def close(self) -> None:
        """Stop moving, once pending jobs are stored. Otherwise the next leader would move them again."""
        self._closed = True
        if self._moving is not None:
            await asyncio.wait({self._moving})

    async def run(self) -> None:
        """Move jobs on in time, until cancelled. Raises the connection's error."""
        while True:
            try:
                self._moving = asyncio.ensure_future(self._move_all())
                # If this call is cancelled, no other code retrieves the error.
                self._moving.add_done_callback(lambda task: task.cancelled() or task.exception())
                moved, refused = await asyncio.shield(self._moving)
                pause = 0.0 if moved else LOOK_EVERY
                if refused is not None:
                    pause = self._refusals.refused(refused, some=moved > 0)
                await self._names.tidy()
            except PalermoError as error:
                if self._connection.error is not None:
                    raise
                pause = self._refusals.refused(error)
            with suppress(StoreInvalid):
                self._index.drop_unused()
            await asyncio.sleep(pause)

    async def _move_all(self) -> tuple[int, PalermoError | None]:
        """Move some jobs of each place whose time has come. Returns their number, and the error of a blocked place."""
        async with self.turn:
            opened = [str(bucket) for bucket in await self.read() if bucket.opens <= self._now()]
            counts = await self.count([*opened, str(Intake.NEW)])
        moved, refused = 0, list[PalermoError]()
        for place, count in counts.items():
            async with self.turn:
                try:
                    if count:
                        done, errors = await self._move(place, count)
                        moved += done
                        refused += errors
                    elif place in opened:
                        await self._delete(place)
                except PalermoError as error:
                    refused.append(error)
        return moved, refused[-1] if refused else None

    async def _move(self, source: str, count: int) -> tuple[int, list[PalermoError]]:
        """Move the first jobs of a place. Returns their number, and the errors of jobs that were refused."""
        moved, refused = 0, list[PalermoError]()
        reader = Reader(self._connection, self._exchange, name=self.queue(source))
        try:
            async for channel, page in reader.pages(min(count, _TURN + self._refused[source])):
                for start in range(0, len(page), _BATCH):
                    if self._closed:
                        return moved, refused
                    batch = page[start : start + _BATCH]
                    stored, errors = await self._move_batch(source, channel, batch)
                    moved += stored
                    refused += errors
                if not refused:
                    await reader.release(channel)
        finally:
            await reader.close()
        self._refused[source] = len(refused)
        if moved:
            await write_acks(await self._outbox.open(), self.queue(source))
        return moved, refused

    async def _move_batch(self, source: str, channel: Channel, batch: list[Got]) -> tuple[int, list[PalermoError]]:
        """Move these jobs to their next places. Returns their number, and the errors of jobs that were refused."""
        now = self._now()
        messages = [to_message(got.properties, got.body, taken_from=None) for got in batch]
        places = [str(bucket_of(message.run_at or 0.0, now) or Intake.SOON) for message in messages]
        wanted = sorted({*places})
        problems = await outcomes(self._connection, [self._ensure(place) for place in wanted])
        missing = {place: error for place, error in zip(wanted, problems, strict=True) if error is not None}
        publisher = await self._outbox.open()
        sent: list[asyncio.Future[None]] = []
        for got, place in zip(batch, places, strict=True):
            ended = PublishFuture()
            if place in missing:
                ended(missing[place])
            else:
                publisher.forward("", self.queue(place), got, ended)
            sent.append(ended.future)
        refused: list[PalermoError] = []
        stored: list[tuple[str, Got]] = []
        for got, message, place, error in zip(
            batch, messages, places, await outcomes(self._connection, sent), strict=True
        ):
            if isinstance(error, HeadersTooLarge):
                await self._outbox.destinations.fail(message, error)
            elif error is not None:
                refused.append(error)
                if isinstance(error, NotFound):
                    self._forget(place)
                continue
            if channel.is_open:
                channel.ack(got.tag)
            stored.append((place if error is None else FAILED_QUEUE, got))
        with suppress(StoreInvalid):  # the index was then cleared
            if source in self._index.known:
                self._index.remove(source, [str(got.id) for _, got in stored])
            self._index.add((place, got) for place, got in stored if place in self._index.known)
        return sum(not is_mark(got) for _, got in stored), refused

    async def _ensure(self, place: str) -> None:
        """Create the queue of a place if it doesn't exist."""
        if place == str(Intake.SOON):
            await self._outbox.destinations.ensure(Intake.SOON)
        elif place not in self._names.names:
            await self._list.write({"made": place})
            await self._connection.declare(self.queue(place), self._arguments)
            await self._connection.persist_queues()
            self._names.names.add(place)

    def _forget(self, place: str) -> None:
        """Record that a place's queue was deleted by hand."""
        for intake in Intake:
            self._outbox.destinations.forget(intake)
        self._names.names.discard(place)

    async def _delete(self, bucket: str) -> None:
        """Delete an open bucket that has been empty for a while."""
        now = asyncio.get_running_loop().time()
        empty_for = now - self._empty_since.setdefault(bucket, now)
        if empty_for > RARELY and await self._connection.delete_unused(self.queue(bucket)):
            del self._empty_since[bucket]
            self._names.names.discard(bucket)
            self._index.known.discard(bucket)
