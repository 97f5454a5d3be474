"""A stream of small records that any session may write and follow: the shared knowledge of an exchange's workers.

A stream is read over AMQP 0-9-1 on a channel of its own, which is closed and whose consumer is never cancelled:
RabbitMQ answers the rejects of a cancelled stream consumer by closing the connection.
The first record only makes the stream non-empty, since a reader cannot tell an empty stream from a slow one.

A stream exists before it has a leader, and RabbitMQ 3.10.8 closes every connection that
writes to it or reads it then (541, 506). So the session that makes a stream holds the exclusive queue
`<stream>.making` until the first record is stored, and all others wait for that. A cancelled task makes the stream
to its end: RabbitMQ would go on all the same, and the mark would be gone before the leader is there.

RabbitMQ may never open a stream again that it made shortly before it was killed (3.10 to 4.3). Then it answers "home
node is down" (up to 4.2), or closes the connection of each session that uses the stream (4.3: 541, 506). So nothing is
kept in a stream alone that must not be lost (StreamCopy), and a stream that stays broken is made anew by the
session that finds it so (stream_repair.py). Up to 4.2 it cannot be deleted either: the new one has the next name,
`<stream>.2` and so on, and of several that exist the last one counts.
"""

import asyncio
import json
import logging
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from contextlib import aclosing, suppress
from datetime import datetime
from typing import Any, TypeVar

from pika import spec

from palermo.brokers.rabbitmq.amqp.connection import CALL_TIMEOUT, Channel, Connection, uninterrupted
from palermo.brokers.rabbitmq.amqp.messages import PERSISTENT, Got
from palermo.brokers.rabbitmq.amqp.mutex import Mutex
from palermo.brokers.rabbitmq.amqp.publisher import Destination, MissingQueues, Publisher
from palermo.brokers.rabbitmq.amqp.replies import RESOURCE_LOCKED, NotOnThisNode
from palermo.brokers.rabbitmq.amqp.stream_repair import BREAKING, BROKEN_FOR, StreamCopy, Suspect, suspect_of, suspected
from palermo.errors import BrokerUnavailable, PalermoError

log = logging.getLogger("palermo.rabbitmq")

Record = Mapping[str, Any]

#: One entry of a stream: its properties and its body.
Entry = tuple[spec.BasicProperties, bytes]

#: An entry with its offset before it.
Placed = tuple[int, spec.BasicProperties, bytes]

T = TypeVar("T")

#: The prefetch of a follower, and of a reader of whole jobs.
_CREDIT, _READ_CREDIT = 1_000, 200

#: A reader of whole jobs acknowledges this many together.
_ACK_EVERY = 100

#: Seconds between two attempts to read a stream that is down.
_AGAIN = 0.2

#: Seconds between two checks whether a stream has been made.
_LOOK_EVERY = 0.02

#: Seconds without a record after which a stream counts as empty.
_EMPTY_AFTER = 2.0


class Stream:
    """One stream, as one session sees it."""

    def __init__(
        self,
        name: str,
        publisher: Callable[[], Awaitable[Publisher]],
        *,
        patience: float,
        holds: str,
        arguments: Mapping[str, Any] | None = None,
        copied: bool = False,
        given_up_after: float = BROKEN_FOR,
    ) -> None:
        """`patience` is how many seconds reading waits for a stream that is down: RabbitMQ starts its queues first.

        `holds` says what is in it, for logs and errors; `arguments` bound it. A `copied` stream loses no record that
        `write` has stored, not even if RabbitMQ loses the stream.
        `given_up_after` is for how many seconds it is broken before it is made anew.
        """
        #: The name of the stream that is used now: the last one of its succession.
        self.name = self._first_name = name
        self._publisher = publisher
        self._patience = patience
        self.holds = holds
        self._arguments = dict(arguments or {})
        self._copy = StreamCopy(name, self._arguments) if copied else None
        self._missing = MissingQueues(publisher)
        self._given_up_after = given_up_after
        #: Whether the stream exists, with its copy, as far as this session knows.
        self.made = False
        #: Whether the stream was seen complete, with its first record, so that it can be read.
        self._whole = False
        #: Whether `name` is the last one of its succession, as far as this session knows.
        self._located = False
        #: Whether it was gone when this session wrote to it.
        self._missed = False
        self._making = asyncio.Lock()
        self._looking = asyncio.Lock()
        #: Held while the stream is made, or made anew.
        self._mark = Mutex(f"{name}.making")

    async def make(self) -> None:
        """Make the stream if it does not exist."""
        async with self._making:
            if self.made:
                return
            connection = (await self._publisher()).channel.connection
            await self.use(connection, lambda: self._make(connection))
            self.made = True

    async def _make(self, connection: Connection) -> None:
        while not (await self._exists(connection) and await self._is_copied(connection)):
            if not await uninterrupted(self._complete_alone(connection)):
                await asyncio.sleep(_LOOK_EVERY)

    async def _complete_alone(self, connection: Connection) -> bool:
        """Make what is missing, unless another session does. Returns whether this one did."""
        async with self._mark.held(connection, patience=0) as held:
            if held:
                await self._complete(connection)
            return held

    async def _complete(self, connection: Connection) -> None:
        """Make what is missing of the stream and its copy, each with what the other one holds."""
        exists, records = (await connection.probe(self.name)).exists, list[Record]()
        if self._copy is not None and not await self._copy.exists(connection):
            if exists:
                follower = await self._follow(connection, records.append)
                if follower is not None:
                    await follower.close()
            await self._copy.make(connection, records)
        elif self._copy is not None and not exists:
            records = await self._copy.read(connection)
        if not exists:
            if self._missed:
                log.warning("%s was deleted, and is made anew stream=%s", self.holds, self.name)
            await connection.declare(self.name, {"x-queue-type": "stream", **self._arguments})
            publisher = await Publisher.open(connection)
            await self._publish(publisher, [record_entry(one) for one in [{"version": 1}, *records]])
            publisher.channel.abandon()

    async def _is_copied(self, connection: Connection) -> bool:
        return self._copy is None or await self._copy.exists(connection)

    async def _exists(self, connection: Connection) -> bool:
        """Whether the stream exists; waits for one that is being made."""
        await self._locate(connection)
        if not (await connection.probe(self.name)).exists:
            return False
        # The stream is checked before the mark: a stream that exists when the mark does not is complete.
        for _ in range(round(self._patience / _LOOK_EVERY)):
            if not (await connection.probe(self._mark.queue)).exists:
                break
            await asyncio.sleep(_LOOK_EVERY)
        return True

    async def _locate(self, connection: Connection) -> None:
        """Find the last stream of its succession."""
        while not self._located:
            successor = self._successor()
            self._located = not await connection.has_queue(successor)
            if not self._located:
                self.name = successor

    def _successor(self) -> str:
        """The name of the stream that takes the place of this one if it cannot be deleted."""
        number = self.name.removeprefix(self._first_name).removeprefix(".")
        return f"{self._first_name}.{int(number or 1) + 1}"

    def is_suspected(self, connection: Connection) -> bool:
        """Whether the stream could not be used, and has not been found sound since."""
        return suspected(connection, self._first_name) is not None

    async def use(self, connection: Connection, attempt: Callable[[], Awaitable[T]]) -> T:
        """Make the attempt, which reads the stream or writes to it on this connection.

        While the stream is known to be broken it is not made, and BrokerUnavailable is raised, until the stream has
        been made anew.
        """
        suspect = suspected(connection, self._first_name)
        if suspect is not None:
            await self._look_into(connection, suspect)
        try:
            return await attempt()
        except NotOnThisNode:
            raise
        except BrokerUnavailable:
            if connection.error is None or connection.code in BREAKING:
                suspect_of(connection, self._first_name)
            raise

    async def _look_into(self, connection: Connection, suspect: Suspect) -> None:
        """Find out whether the stream can be used again. Make it anew if it has been broken for long enough."""
        async with self._looking:
            if suspect.is_due:
                self._located = self._whole = self.made = False
                try:
                    suspect.found(await self._fault(connection), connection)
                except PalermoError:
                    suspect.not_seen()
                    raise
            if suspect.error is not None and suspect.broken_for >= self._given_up_after:
                await uninterrupted(self._make_anew(connection))
                suspect.found(None, connection)
            if suspect.error is not None:
                raise suspect.error

    async def _fault(self, connection: Connection) -> BrokerUnavailable | None:
        """Why the stream cannot be used; None if it can, or there is none. Asks on a connection of its own."""
        scout = await connection.another("looking into a stream")
        try:
            await self._locate(scout)
            if await _last_entry(scout, self.name) is not None or not (await scout.probe(self.name)).exists:
                return None
            return BrokerUnavailable(f"{self.holds} gives no answer.")
        except NotOnThisNode:
            raise  # other nodes serve it
        except BrokerUnavailable as error:
            if scout.error is not None and scout.code not in BREAKING:
                raise
            return error
        finally:
            await scout.close()

    async def _make_anew(self, connection: Connection) -> None:
        worker = await connection.another("making a stream anew")
        try:
            async with self._mark.held(worker, patience=self._patience) as held:
                if not held or await self._fault(connection) is None:
                    return  # another session has made it
                self._missed = False
                log.error("%s cannot be read or written any more, and is made anew stream=%s", self.holds, self.name)
                try:
                    await worker.delete(self.name)
                except BrokerUnavailable:
                    if worker.error is not None:
                        raise
                    self.name = self._successor()
                await self._complete(worker)
        finally:
            await worker.close()

    async def write(self, record: Record) -> None:
        """Add a record, and make the stream first if need be; returns once the record is stored."""
        await self._append([record_entry(record)], record)

    async def write_patiently(self, record: Record) -> None:
        """The same, but wait for a stream that is down."""
        connection = (await self._publisher()).channel.connection
        await self._patiently(connection, lambda: self.write(record))

    async def append(self, entries: Sequence[Entry]) -> None:
        """Add these in order, and make the stream first if need be; returns once all are stored. They have no copy."""
        await self._append(entries)

    async def _append(self, entries: Sequence[Entry], record: Record | None = None) -> None:
        async def send() -> None:
            publisher = await self._publisher()
            if self._copy is not None and record is not None:
                await self._copy.write(publisher, record)
            await self.use(publisher.channel.connection, lambda: self._publish(publisher, entries))

        await Destination(self.make, self._forget).publish(send)

    def _forget(self) -> None:
        # It was deleted, or is broken: `make` finds out.
        self.made = self._located = False
        self._missed = True

    async def follow(self, connection: Connection, on_record: Callable[[Record], None]) -> "Follower | None":
        """A reader that has caught up and goes on, and gives each record to `on_record`. None without a stream.

        It starts at the oldest record, and starts again if the stream goes down before it has caught up.

        Raises BrokerUnavailable if the stream is down and stays so.
        """
        return await self._patiently(
            connection, lambda: self.use(connection, lambda: self._follow(connection, on_record))
        )

    async def is_there(self) -> bool:
        """Whether the stream exists."""
        if self.made:
            return True
        connection = (await self._publisher()).channel.connection
        return await self.use(connection, lambda: self._exists(connection))

    async def end(self, connection: Connection) -> int | None:
        """The offset of the newest entry; None without a stream. Raises what `follow` raises."""
        found = await self.last(connection)
        return None if found is None else found[0]

    async def last(self, connection: Connection) -> tuple[int, float] | None:
        """The offset of the newest entry, and the time that its writer gave it, else 0; see `end`."""
        return await self._patiently(connection, lambda: self.use(connection, lambda: self._find_last(connection)))

    async def read(self, connection: Connection, first: int, last: int) -> AsyncGenerator[Placed, None]:
        """The entries from one offset to another that exists, as far as the stream still has them.

        Memory is bounded: only few more entries come while the caller does not take those that have come.
        Raises BrokerUnavailable, also if none comes for as long as `patience`, and NotFound if there is no stream.
        """
        async with aclosing(self.deliveries(connection, first or "first", last)) as entries:
            async for offset, one in entries:
                if offset >= first:
                    yield offset, one.properties, one.body

    async def deliveries(
        self, connection: Connection, start: int | str | datetime, last: int
    ) -> AsyncGenerator[tuple[int, Got], None]:
        """The entries as they were delivered, perhaps with some that lie shortly before `start`; else as `read`."""
        channel = await connection.channel()
        come: asyncio.Queue[Got | None] = asyncio.Queue()
        channel.on_close(lambda: come.put_nowait(None))
        channel.raw.add_on_cancel_callback(lambda _: channel.abandon())
        try:
            await channel.prefetch(_READ_CREDIT)
            await channel.consume(self.name, come.put_nowait, arguments={"x-stream-offset": start}, late=True)
            while (entry := await self._next(come)) is not None:
                offset = offset_of(entry.properties)
                if offset <= last:
                    yield offset, entry
                if offset >= last:
                    return
                if entry.tag % _ACK_EVERY == 0 and channel.is_open:
                    channel.raw.basic_ack(entry.tag, multiple=True)
            raise channel.error or BrokerUnavailable(f"{self.holds} was deleted while it was being read.")
        finally:
            await channel.close()

    async def _next(self, come: "asyncio.Queue[Got | None]") -> Got | None:
        if not come.empty():
            return come.get_nowait()
        try:
            async with asyncio.timeout(self._patience):
                return await come.get()
        except TimeoutError:
            raise BrokerUnavailable(f"{self.holds} did not answer within {self._patience:g} s.") from None

    async def _patiently(self, connection: Connection, attempt: Callable[[], Awaitable[T]]) -> T:
        """Repeat the attempt while the stream is down, for `patience` seconds."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + self._patience
        while True:
            try:
                return await attempt()
            except BrokerUnavailable as error:
                if connection.error is not None:
                    raise
                if loop.time() > deadline:
                    raise BrokerUnavailable(
                        f"{self.holds} cannot be read or written: {error} A stream that stays down is made anew after"
                        f" {self._given_up_after:g} s."
                    ) from error
            await asyncio.sleep(_AGAIN)

    async def _find_last(self, connection: Connection) -> tuple[int, float] | None:
        # `palermo web` asks every two seconds. The copy is made first, and a stream would keep the message.
        if self._copy is not None and not self._whole and await self._missing.still(self._copy.name):
            return None
        if not self._whole:
            # Asked at the same time: most streams were never made, and each question is two round trips.
            _, copied, refusal = await asyncio.gather(
                self._locate(connection), self._is_copied(connection), _refusal(connection, self._mark.queue)
            )
            self._whole = await self._exists(connection)
            if not self._whole and self._copy is not None and copied:
                await self._make(connection)  # somebody deleted the stream alone
                self._whole = True
            if not self._whole and refusal is not None:
                raise refusal
            if not self._whole and self._copy is not None:
                self._missing.note(self._copy.name)
        last = await _last_entry(connection, self.name) if self._whole else None
        if last is None:
            self._whole = self.made = self._located = False
        return last

    async def _follow(self, connection: Connection, on_record: Callable[[Record], None]) -> "Follower | None":
        last = await self._find_last(connection)
        if last is None:
            return None
        channel = await connection.channel()
        follower = Follower(channel, on_record)
        try:
            await follower.start(self.name, last[0], patience=CALL_TIMEOUT)
        except BaseException:
            channel.abandon()
            raise
        return follower

    async def _publish(self, publisher: Publisher, entries: Sequence[Entry]) -> None:
        sent = [publisher.send("", self.name, properties, body) for properties, body in entries]
        for ended in await asyncio.gather(*sent, return_exceptions=True):
            if isinstance(ended, BaseException):
                raise ended


class Follower:
    """A reader of a stream that goes on as records come, on a channel of its own."""

    def __init__(self, channel: Channel, on_record: Callable[[Record], None]) -> None:
        self._channel = channel
        self._on_record = on_record
        self._stream = ""
        self._caught_up = asyncio.Event()
        #: The offset at which it has caught up, and that of the last entry that it has read.
        self._end, self._read = 0, -1
        channel.on_close(self._caught_up.set)
        # The stream was deleted: nothing is left to read on this channel.
        channel.raw.add_on_cancel_callback(lambda _: channel.abandon())

    @property
    def caught_up(self) -> bool:
        """Whether it has read all that was written before it started."""
        return self._caught_up.is_set()

    @property
    def is_open(self) -> bool:
        """Whether it still reads."""
        return self._channel.is_open

    async def start(self, stream: str, end: int, *, patience: float) -> None:
        """Read from the first entry on. Returns once the one at offset `end` is read.

        Raises BrokerUnavailable if none comes for `patience` seconds: see `come_to_end`.
        """
        self._stream, self._end = stream, end
        self._channel.raw.add_on_cancel_callback(self._on_cancelled_by_broker)
        await _read(self._channel, stream, "first", self._on_message)
        if not await come_to_end(self._caught_up, lambda: self._read, patience=patience):
            raise BrokerUnavailable(f"{stream} did not answer within {patience:g} s.")
        if self._channel.error is not None:
            raise self._channel.error

    async def has_come_to(self, end: int, *, within: float) -> bool:
        """Wait until it has read the entry at this offset, at most so many seconds. False if it has not, or has ended.

        One caller at a time.
        """
        if self._read < end and self.is_open:
            self._end = end
            self._caught_up.clear()
            with suppress(TimeoutError):
                async with asyncio.timeout(within):
                    await self._caught_up.wait()
        return self._read >= end and self.is_open

    def on_close(self, callback: Callable[[], None]) -> None:
        """Call this once when the reader has ended, for whatever reason."""
        self._channel.on_close(callback)

    async def close(self) -> None:
        await self._channel.close()

    def _on_cancelled_by_broker(self, _: object) -> None:
        # The stream was deleted, or its node has gone.
        if self._channel.is_open:
            self._channel.raw.close()

    def _on_message(self, _: object, method: Any, properties: spec.BasicProperties, body: bytes) -> None:
        self._channel.raw.basic_ack(method.delivery_tag)
        self._channel.connection.unreadable.take(self._stream, body, self._on_record)
        self._read = offset_of(properties)
        if self._read >= self._end:
            self._caught_up.set()


async def come_to_end(end: asyncio.Event, read: Callable[[], int], *, patience: float) -> bool:
    """Wait until a reader has come to its end. False if the offset that it has `read` stays for `patience` seconds.

    The stream may have been made anew since it was asked for its end, and have fewer entries.
    """
    while not end.is_set():
        before = read()
        with suppress(TimeoutError):
            async with asyncio.timeout(patience):
                await end.wait()
        if read() == before:
            break
    return end.is_set()


async def _refusal(connection: Connection, queue: str) -> PalermoError | None:
    """The error of a user who may not read; None if he may. That a queue does not exist may be seen by every user."""
    channel = await connection.channel()
    try:
        await channel.get(queue)
    except PalermoError as error:
        return None if channel.missing or channel.code == RESOURCE_LOCKED else error
    await channel.close()
    return None


async def _last_entry(connection: Connection, stream: str) -> tuple[int, float] | None:
    """The offset and the time of the newest entry; None if there is no stream."""
    channel = await connection.channel()
    seen: list[tuple[int, float]] = []
    first = asyncio.Event()
    channel.on_close(first.set)

    def on_record(_: object, method: Any, properties: spec.BasicProperties, body: bytes) -> None:
        seen.append((offset_of(properties), float(properties.timestamp or 0)))
        first.set()

    try:
        await _read(channel, stream, "last", on_record)
        # The session that made it may have died before the first record, and an empty stream never answers.
        with suppress(TimeoutError):
            async with asyncio.timeout(_EMPTY_AFTER):
                await first.wait()
        if channel.error is not None:
            raise channel.error
        if not seen:
            return None
        # RabbitMQ delivers a chunk as a whole: all records of the last chunk come before this answer.
        if not (await channel.probe(stream)).exists:
            return None
        return max(seen)
    except PalermoError:
        if channel.missing:
            return None
        raise
    finally:
        await channel.close()


async def _read(channel: Channel, stream: str, offset: str, callback: Callable[..., None]) -> None:
    await channel.call(channel.raw.basic_qos, prefetch_count=_CREDIT)
    await channel.call(channel.raw.basic_consume, stream, callback, arguments={"x-stream-offset": offset})


def offset_of(properties: spec.BasicProperties) -> int:
    """The offset of an entry in its stream."""
    return int((properties.headers or {}).get("x-stream-offset", 0))


def record_entry(record: Record) -> Entry:
    """The entry that stores a record."""
    return spec.BasicProperties(delivery_mode=PERSISTENT, content_type="application/json"), json.dumps(record).encode()
