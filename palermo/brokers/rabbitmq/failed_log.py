"""The log of failed jobs: a stream from which those in quorum queues are shown.

Every look into a quorum queue hands its messages out, which counts against their delivery limit and
puts them out of order. So whoever stores a job in a queue of failed jobs that is a quorum queue
then writes the same message to the stream `~failed-log`, and whoever takes one out writes that down:

    the job's message, with its queue in the header `failed-in`
    {"queue": name, "gone": [[id, failed-at], …]}
    {"queue": name, "emptied": true}

The queue is the truth and the log a view of it: a record that is not written makes the view wrong,
and never a job; whoever goes through the whole queue puts it right (audit.py). What a session has read
of the log it remembers as places in it (ledger.py), so the next look reads on from there, and the jobs
that are asked for.
"""

import asyncio
import logging
from collections import Counter
from collections.abc import AsyncGenerator, Callable, Iterator, Sequence
from contextlib import aclosing, suppress
from dataclasses import replace
from typing import Any

from pika import spec

from palermo.broker import Page, Stop, Swept, Verdict
from palermo.brokers.rabbitmq.ledger import Ledger, key, parts
from palermo.brokers.rabbitmq.link import Link
from palermo.brokers.rabbitmq.publisher import Publisher
from palermo.brokers.rabbitmq.stream import Entry, Stream, record, record_entry
from palermo.brokers.rabbitmq.wire import to_message, to_properties
from palermo.core.message import Message, fit
from palermo.core.topology import internal, is_failed
from palermo.errors import PalermoError

log = logging.getLogger("palermo.rabbitmq")

#: The stream's bounds in bytes; it forgets a segment at a time. Not by age: a failed job may lie for years.
_BOUNDS = {"x-max-length-bytes": 1024**3, "x-stream-max-segment-size-bytes": 64 * 1024**2}

#: Bodies above so many bytes stay in the queue alone. Such a job is shown without its arguments: what stands
#: there instead is "compressed" in a way that no reader knows.
MAX_BODY, _OMITTED = 256 * 1024, "omitted"

#: The header that tells a job from a record, and in which queue it was stored; and what the stream adds.
_IN, _OFFSET = "failed-in", "x-stream-offset"

#: Jobs in one record.
_BATCH = 100

#: Seconds that writing may take, and for how long nothing is written after it failed: a job must not wait for its view.
_WITHIN, _SILENT = 5.0, 10.0

#: Jobs shown before anything else of this process has its turn.
_SLICE = 100

#: Entries between two jobs that are asked for beyond which it is quicker to seek than to read them all.
_GAP = 2_000


class FailedLog:
    """The log of one exchange, as one session writes and reads it."""

    def __init__(self, exchange: str, link: Link, *, patience: float) -> None:
        """It is written on `link`; `patience` is how many seconds reading waits for a stream that is down."""
        self._link = link
        self._stream = Stream(
            internal(exchange, "failed-log"),
            self._open,
            patience=patience,
            holds="the log of failed jobs",
            arguments=_BOUNDS,
        )
        self._ledger = Ledger()
        self._reading = asyncio.Lock()
        self._opening = asyncio.Lock()
        self._publisher: Publisher | None = None
        self._silent_until = 0.0

    # Writing. None of these raises a PalermoError: the job is where it belongs.

    async def stored(self, queue: str, messages: Sequence[Message]) -> None:
        """These were stored in the queue."""
        for start in range(0, len(messages), _BATCH):
            await self._write([_job_entry(queue, one) for one in messages[start : start + _BATCH]])

    async def taken(self, queue: str, messages: Sequence[Message]) -> None:
        """These were taken out of it."""
        await self.gone(queue, [key_of(one) for one in messages])

    async def gone(self, queue: str, keys: Sequence[str]) -> None:
        """These are not in it any more; see ledger.key."""
        for start in range(0, len(keys), _BATCH):
            gone = [list(parts(one)) for one in keys[start : start + _BATCH]]
            await self._write([record_entry({"queue": queue, "gone": gone})])

    async def emptied(self, queue: str) -> None:
        """All were taken out of it, or whatever queue it was."""
        if not is_failed(queue):
            return
        with suppress(PalermoError):  # without a session nothing can be written either
            if await self._stream.is_there():
                await self._write([record_entry({"queue": queue, "emptied": True})])

    async def _write(self, entries: list[Entry]) -> None:
        clock = asyncio.get_running_loop().time
        if clock() < self._silent_until:
            return
        try:
            async with asyncio.timeout(_WITHIN):
                await self._stream.append(entries)
        except (PalermoError, TimeoutError) as error:
            self._give_up_channel()
            if clock() < self._silent_until:
                return  # another that waited with this one has said so
            self._silent_until = clock() + _SILENT
            log.warning(
                "the log of failed jobs cannot be written, what is shown of them will be wrong for=%gs error=%r",
                _SILENT,
                str(error) or "no answer in time",
            )

    async def _open(self) -> Publisher:
        """A channel of its own: a nack closes it, and what a stream that is down leaves unconfirmed ends with it.

        On that of the jobs it would add up, until RabbitMQ takes nothing more from it for any queue.
        """
        async with self._opening:
            if self._publisher is None or not self._publisher.is_open:
                self._publisher = await Publisher.open(self._link)
            return self._publisher

    def _give_up_channel(self) -> None:
        publisher, self._publisher = self._publisher, None
        if publisher is not None and publisher.channel.is_open:
            publisher.channel.raw.close()

    # Reading.

    async def page(self, link: Link, queue: str, held: int, *, offset: int, limit: int, newest: bool) -> Page:
        """A page of a queue that holds so many; see palermo.broker.Broker.browse.

        What the queue holds says nothing of the log: while somebody sweeps it, it seems to hold fewer, or none.
        """
        if not limit:
            return Page(messages=(), total=held)
        await self._catch_up(link)
        places = self._ledger.places(queue)
        last = len(places) - offset if newest else offset + limit
        chosen = places[max(0, last - limit) : max(0, last)] if newest else places[offset:last]
        messages = [message async for message in self._jobs(link, queue, chosen)]
        return Page(messages=tuple(reversed(messages) if newest else messages), total=held, unseen=held - len(places))

    async def show(
        self,
        link: Link,
        queue: str,
        held: int,
        decide: Callable[[Message], Verdict],
        progress: Callable[[Swept], None],
        *,
        id: str = "",
    ) -> Swept:
        """Ask `decide` about every job of a queue that holds so many, and end where it says Stop; nothing is taken.

        With an `id` only about the jobs of that id.
        """
        await self._catch_up(link)
        places = self._ledger.places(queue)
        unseen = held - len(places)
        if id:
            places = [(offset, key) for offset, key in places if parts(key)[0] == id]
        swept = Swept(total=len(places), unseen=unseen)
        progress(swept)
        seen = 0
        async with aclosing(self._jobs(link, queue, places)) as jobs:
            async for message in jobs:
                if isinstance(decide(message), Stop):
                    break
                seen += 1
                if seen % _SLICE == 0:
                    progress(replace(swept, seen=seen))
                    await asyncio.sleep(0)
        swept = replace(swept, seen=seen)
        progress(swept)
        return swept

    async def known(self, link: Link, queue: str, *, most: int) -> Counter[str] | None:
        """The copies in the log, by their keys; None if it cannot be read, or only by more than `most` new entries."""
        try:
            async with asyncio.timeout(_WITHIN):
                end = await self._stream.end(link)
            if end is not None and end - self._ledger.next > most:
                return None
            await self._catch_up(link)
        except (PalermoError, TimeoutError):
            return None
        return self._ledger.copies(queue)

    async def _catch_up(self, link: Link) -> None:
        """Learn what was written since the last look."""
        async with self._reading:
            end = await self._stream.end(link)
            if end is None or end + 1 < self._ledger.next:
                self._ledger = Ledger()
            if end is None or end < self._ledger.next:
                return
            while not await self._read_on(link, self._ledger, end):
                # Deleted and made anew, or cut off beyond what was read of it.
                self._ledger = Ledger()

    async def _read_on(self, link: Link, ledger: Ledger, end: int) -> bool:
        """Learn the entries up to this one; False if those learned before are not of this stream."""
        last = ledger.next - 1
        async with aclosing(self._stream.read(link, max(last, 0), end)) as entries:
            async for offset, properties, body in entries:
                if offset == last and _mark(properties, body) == ledger.mark:
                    last = -1
                elif last >= 0:
                    return False
                else:
                    _learn(ledger, offset, properties, body)
        return True

    async def _jobs(self, link: Link, queue: str, places: Sequence[tuple[int, str]]) -> AsyncGenerator[Message, None]:
        """The jobs that are kept at these places, in order; what the log has forgotten meanwhile is left out."""
        missing = dict(places)
        for first, last in _stretches(places):
            async with aclosing(self._stream.read(link, first, last)) as entries:
                async for offset, properties, body in entries:
                    if offset not in missing:
                        continue
                    headers: dict[str, Any] = dict(properties.headers or {})
                    if (headers.pop(_IN, None), _key(properties)) != (queue, missing.pop(offset)):
                        # The stream was made anew, and what was read of the old one is void.
                        self._ledger = Ledger()
                        continue
                    headers.pop(_OFFSET, None)
                    properties.headers = headers
                    yield to_message(properties, body, taken_from=queue)
        if missing:
            self._ledger.lost(queue, set(missing))


def key_of(message: Message) -> str:
    """What the failure of this message is called in the log."""
    return key(message.id, message.failure.failed_at if message.failure else 0)


def _stretches(places: Sequence[tuple[int, str]]) -> Iterator[tuple[int, int]]:
    """The first and the last offset of places that lie near each other."""
    first = last = -1
    for offset, _ in places:
        if first >= 0 and offset - last > _GAP:
            yield first, last
            first = -1
        first, last = offset if first < 0 else first, offset
    if first >= 0:
        yield first, last


def _job_entry(queue: str, message: Message) -> Entry:
    properties = to_properties(fit(message) if message.failure else message)
    properties.headers = {**(properties.headers or {}), _IN: queue}
    if len(message.body) <= MAX_BODY:
        return properties, message.body
    properties.content_encoding = _OMITTED
    return properties, b"-"


def _learn(ledger: Ledger, offset: int, properties: spec.BasicProperties, body: bytes) -> None:
    match (properties.headers or {}).get(_IN):
        case str(queue):
            ledger.put(queue, _key(properties), offset)
        case _:
            match record(body):
                case {"queue": str(queue), "gone": list(keys)}:
                    for one in keys:
                        match one:
                            case [str(id), int(at)]:
                                ledger.gone(queue, key(id, at))
                case {"queue": str(queue), "emptied": True}:
                    ledger.emptied(queue)
    ledger.next, ledger.mark = offset + 1, _mark(properties, body)


def _mark(properties: spec.BasicProperties, body: bytes) -> int:
    return hash((_key(properties), body))


def _key(properties: spec.BasicProperties) -> str:
    at = (properties.headers or {}).get("failed-at")
    return key(properties.message_id or "", at if isinstance(at, int) else 0)
