"""The log of failed jobs: a stream that lists the failed jobs of quorum queues without reading the queues.

Every read of a quorum queue delivers its messages, which counts against their delivery limit and changes their order.
So a session that stores a job in a failed quorum queue also writes its message to the stream `~failed-log`, and a
session that removes a job records that:

    the job's message, with its queue in the header `failed-in`
    {"queue": name, "gone": [[id, failed-at], …]}
    {"queue": name, "emptied": true}

The log is only a view: a missing record makes it wrong, but loses no job, and a sweep of the whole queue corrects it
(FailedLog.sweep). A session remembers the offsets of the jobs in the log (FailedOffsets). So it reads the log once, and
then only new entries and the requested jobs.
"""

import asyncio
import logging
from collections import Counter
from collections.abc import AsyncGenerator, Awaitable, Callable, Collection, Iterator, Mapping, Sequence
from contextlib import aclosing, suppress
from functools import partial
from typing import Any

from msgspec.structs import replace

from palermo.brokers.rabbitmq.amqp.connection import Connection
from palermo.brokers.rabbitmq.amqp.messages import Properties, headers_room, to_message, to_properties
from palermo.brokers.rabbitmq.amqp.publisher import OwnPublisher
from palermo.brokers.rabbitmq.amqp.stream import Entry, Stream, record_entry
from palermo.brokers.rabbitmq.browsing.sweep import Gate, Reader, sweep
from palermo.brokers.rabbitmq.seconds import LEFT_ALONE, PATIENCE, SKEW
from palermo.contract.broker import Page
from palermo.contract.clock import now
from palermo.contract.sweep import Stop, SweepDecision, SweepProgress
from palermo.core.message import Message, fit_headers, headers_size, without_largest
from palermo.core.topology import internal, is_failed
from palermo.errors import PalermoError


def failure_key(id: str, failed_at: int) -> str:
    """The key, in the log, of one failure of a job."""
    return f"{failed_at} {id}"


def split_key(key: str) -> tuple[str, int]:
    """The job's id and the time of its failure, from a key."""
    failed_at, _, id = key.partition(" ")
    return id, int(failed_at)


class FailedOffsets:
    """Copies of failed jobs by queue and key, about 300 bytes each, with the offsets of their entries."""

    def __init__(self) -> None:
        #: Offset of the next unread record.
        self.next = 0
        self._there: dict[str, dict[str, tuple[int, ...]]] = {}

    def put(self, queue: str, key: str, offset: int) -> None:
        """Record that a copy was stored in this queue, with its entry at this offset."""
        copies = self._there.setdefault(queue, {})
        copies[key] = (*copies.get(key, ()), offset)

    def removed(self, queue: str, key: str) -> None:
        """Record that a copy was removed. If there are several copies, the first one counts as removed."""
        copies = self._there.get(queue, {})
        offsets = copies.pop(key, ())
        if len(offsets) > 1:
            copies[key] = offsets[1:]

    def emptied(self, queue: str) -> None:
        """Record that all copies were removed from this queue."""
        self._there.pop(queue, None)

    def lost(self, queue: str, offsets: set[int]) -> None:
        """Record that the log no longer has the entries at these offsets."""
        copies = self._there.get(queue, {})
        for key, places in list(copies.items()):
            if left := tuple(place for place in places if place not in offsets):
                copies[key] = left
            else:
                del copies[key]

    def places(self, queue: str) -> list[tuple[int, str]]:
        """The offsets of the copies in this queue, oldest first, each with its key."""
        return sorted((offset, key) for key, offsets in self._there.get(queue, {}).items() for offset in offsets)

    def copies(self, queue: str) -> Counter[str]:
        """The number of copies in this queue, by key."""
        return Counter({key: len(offsets) for key, offsets in self._there.get(queue, {}).items()})


log = logging.getLogger("palermo.rabbitmq")

#: The stream's bounds in bytes; RabbitMQ deletes a segment at a time. No age limit, since a failed job may stay for
#: years.
_BOUNDS = {"x-max-length-bytes": 1024**3, "x-stream-max-segment-size-bytes": 64 * 1024**2}

#: Above this size a body is only in the queue, and the job is listed without its arguments: its entry has a substitute
#: body, with a content encoding that no reader knows.
MAX_BODY, _OMITTED = 256 * 1024, "omitted"

#: The header that marks a job's entry and names its queue, and the header that the stream adds.
_IN, _OFFSET = "failed-in", "x-stream-offset"

#: Number of jobs in one record.
_BATCH = 100

#: Number of jobs shown before the event loop runs other tasks.
_SLICE = 100

#: Maximum number of new log entries to read before a sweep: a base, and more for each message of the queue. With more
#: than that, reading them takes longer than the sweep, and the log is not corrected.
_ENTRIES, _PER_MESSAGE = 5_000, 2

#: With more entries than this between two wanted jobs, seeking is faster than reading.
_GAP = 2_000


class FailedLog:
    """The log of failed jobs of one exchange, for one session."""

    def __init__(self, exchange: str, connection: Connection, *, patience: float) -> None:
        """`connection` is for writing. Reading waits up to `patience` seconds for a stream that is down."""
        self._connection = connection
        self._publisher = OwnPublisher(connection)
        self._stream = Stream(
            internal(exchange, "failed-log"),
            self._publisher.open,
            patience=patience,
            holds="the log of failed jobs",
            arguments=_BOUNDS,
        )
        self._offsets = FailedOffsets()
        self._reading = asyncio.Lock()
        self._silent_until = 0.0

    # Writing. These methods raise no PalermoError, since the job itself is already stored.

    async def stored(self, queue: str, messages: Sequence[Message]) -> None:
        """Log that these jobs were stored in the queue."""
        for start in range(0, len(messages), _BATCH):
            await self._write(
                [_job_entry(queue, one, self._connection.raw.room) for one in messages[start : start + _BATCH]]
            )

    async def removed(self, queue: str, keys: Sequence[str]) -> None:
        """Log that the jobs with these keys (`failure_key`) are no longer in the queue."""
        for start in range(0, len(keys), _BATCH):
            gone = [list(split_key(one)) for one in keys[start : start + _BATCH]]
            await self._write([record_entry({"queue": queue, "gone": gone})])

    async def emptied(self, queue: str) -> None:
        """Log that all jobs were removed from the queue, if it is a failed queue."""
        if not is_failed(queue):
            return
        with suppress(PalermoError):  # without a session nothing can be written either
            if await self._stream.exists(self._connection):
                await self._write([record_entry({"queue": queue, "emptied": True})])

    async def _write(self, entries: list[Entry]) -> None:
        clock = asyncio.get_running_loop().time
        if clock() < self._silent_until:
            return
        try:
            async with asyncio.timeout(PATIENCE):
                await self._stream.append(entries)
        except (PalermoError, TimeoutError) as error:
            self._publisher.give_up()
            if clock() < self._silent_until:
                return  # logged by another write, which failed at the same time
            self._silent_until = clock() + LEFT_ALONE  # a job must not wait for its log
            log.warning(
                "cannot write the log of failed jobs, their list is incomplete for=%gs error=%r",
                LEFT_ALONE,
                str(error) or "no answer in time",
            )

    # Reading.

    async def page(
        self, connection: Connection, queue: str, held: int, *, offset: int, limit: int, newest: bool
    ) -> Page:
        """A page of a queue with `held` jobs; see palermo.contract.broker.Broker.browse.

        `held` may differ from the log, because a queue that is being swept seems to have fewer jobs.
        """
        if not limit:
            return Page(messages=(), total=held)
        await self._catch_up(connection)
        places = self._offsets.places(queue)
        last = len(places) - offset if newest else offset + limit
        chosen = places[max(0, last - limit) : max(0, last)] if newest else places[offset:last]
        messages = [message async for message in self._jobs(connection, queue, chosen)]
        return Page(messages=tuple(reversed(messages) if newest else messages), total=held, unseen=held - len(places))

    async def show(
        self,
        connection: Connection,
        queue: str,
        held: int,
        decide: Callable[[Message], SweepDecision],
        progress: Callable[[SweepProgress], None],
        *,
        ids: Collection[str] = (),
    ) -> SweepProgress:
        """Call `decide` for every job of a queue with `held` jobs until it returns Stop. `ids` limits the jobs.

        Removes nothing.
        """
        await self._catch_up(connection)
        places = self._offsets.places(queue)
        swept = SweepProgress(total=len(places), unseen=held - len(places))
        if ids:
            places = [(offset, key) for offset, key in places if split_key(key)[0] in ids]
        progress(swept)
        seen = others = swept.total - len(places)
        async with aclosing(self._jobs(connection, queue, places)) as jobs:
            async for message in jobs:
                if isinstance(decide(message), Stop):
                    seen -= others
                    break
                seen += 1
                if seen % _SLICE == 0:
                    progress(replace(swept, seen=seen))
                    await asyncio.sleep(0)
        swept = replace(swept, seen=seen)
        progress(swept)
        return swept

    async def sweep(
        self,
        reader: Reader,
        queue: str,
        decide: Callable[[Message], SweepDecision],
        publish: Callable[[list[Message]], Awaitable[object]],
        progress: Callable[[SweepProgress], None],
        gate: Gate,
        *,
        ids: Collection[str],
        corrects: bool,
    ) -> SweepProgress:
        """See palermo.contract.broker.Broker.sweep.

        With `corrects`, also compares the log with the whole queue, unless that would take too long: adds missing jobs
        to the log and removes entries without a job. Differences come from a kill between two writes, failed log
        writes, changes by another program, and jobs older than the log. This requires that no other session holds
        messages of the queue, and that `ids` is not given.
        """
        # The entry of a job that has just failed is possibly not in the log yet.
        known, old = None, now() - SKEW
        if corrects:
            most = _ENTRIES + _PER_MESSAGE * await reader.count()
            known = await self.known(reader.connection, queue, most=most)

        def is_unlogged(message: Message) -> bool:
            """Whether the log has no entry for this copy. Each entry counts for one copy."""
            assert known is not None
            key = key_of(message)
            known[key] -= 1
            return known[key] < 0 and (message.failure is None or message.failure.failed_at < old)

        async def witness(kept: Sequence[Message], gone: Sequence[Message]) -> None:
            await self.removed(queue, [key_of(one) for one in gone])
            if known is not None:
                known.subtract(map(key_of, gone))
                await self.stored(queue, [one for one in kept if is_unlogged(one)])

        swept = await sweep(reader, queue, decide, publish, progress, witness, gate, ids=ids)
        if known is not None and swept.seen == swept.total:
            await self.removed(queue, list(known.elements()))
        return swept

    async def known(self, connection: Connection, queue: str, *, most: int) -> Counter[str] | None:
        """The number of copies in the log, by key; None if it is unreadable or has more than `most` new entries."""
        try:
            async with asyncio.timeout(PATIENCE):
                end = await self._stream.end(connection)
            if end is not None and end - self._offsets.next > most:
                return None
            await self._catch_up(connection)
        except (PalermoError, TimeoutError):
            return None
        return self._offsets.copies(queue)

    async def _catch_up(self, connection: Connection) -> None:
        """Read the new entries."""
        async with self._reading:
            end = await self._stream.end(connection)
            if end is None or end + 1 < self._offsets.next:  # the stream was deleted
                self._offsets = FailedOffsets()
            offsets = self._offsets
            if end is None or end < offsets.next:
                return
            async with aclosing(self._stream.deliveries(connection, offsets.next or "first", end)) as entries:
                async for offset, entry in entries:
                    if offset < offsets.next:
                        continue
                    match (entry.properties.headers or {}).get(_IN):
                        case str(queue):
                            offsets.put(queue, _key(entry.properties), offset)
                        case _:
                            connection.unreadable.take(self._stream.name, entry.body, partial(_learn, offsets))
                    offsets.next = offset + 1

    async def _jobs(
        self, connection: Connection, queue: str, places: Sequence[tuple[int, str]]
    ) -> AsyncGenerator[Message, None]:
        """The jobs at these offsets of the log, in order, except those that the stream has dropped."""
        missing = dict(places)
        for first, last in _ranges(places):
            async with aclosing(self._stream.deliveries(connection, first or "first", last)) as entries:
                async for offset, entry in entries:
                    if offset not in missing:
                        continue
                    properties = entry.properties
                    headers: dict[str, Any] = dict(properties.headers or {})
                    if (headers.pop(_IN, None), _key(properties)) != (queue, missing.pop(offset)):
                        # The stream was recreated, so everything read before is invalid.
                        self._offsets = FailedOffsets()
                        continue
                    headers.pop(_OFFSET, None)
                    properties.headers = headers
                    yield to_message(properties, entry.body, taken_from=queue)
        if missing:
            self._offsets.lost(queue, set(missing))


def key_of(message: Message) -> str:
    """The log's key for this message's failure."""
    return failure_key(message.id, message.failure.failed_at if message.failure else 0)


def _ranges(places: Sequence[tuple[int, str]]) -> Iterator[tuple[int, int]]:
    """Groups of nearby offsets, each given by its first and last offset."""
    first = last = -1
    for offset, _ in places:
        if first >= 0 and offset - last > _GAP:
            yield first, last
            first = -1
        first, last = offset if first < 0 else first, offset
    if first >= 0:
        yield first, last


def _job_entry(queue: str, message: Message, room: int) -> Entry:
    """The entry of a job, with its properties cut to `room` bytes, like in the queue."""
    most = headers_room(message, room) - headers_size({_IN: queue}) - len(_OMITTED) - 1
    properties = to_properties(fit_headers(message, most) if message.failure else message)
    properties.headers = {**without_largest(properties.headers or {}, most), _IN: queue}
    if len(message.body) <= MAX_BODY:
        return properties, message.body
    properties.content_encoding = _OMITTED
    return properties, b"-"


def _learn(offsets: FailedOffsets, record: Mapping[str, Any]) -> None:
    match record:
        case {"queue": str(queue), "gone": list(keys)}:
            for one in keys:
                match one:
                    case [str(id), int(at)]:
                        offsets.removed(queue, failure_key(id, at))
        case {"queue": str(queue), "emptied": True}:
            offsets.emptied(queue)


def _key(properties: Properties) -> str:
    at = (properties.headers or {}).get("failed-at")
    return failure_key(properties.message_id or "", at if isinstance(at, int) else 0)
