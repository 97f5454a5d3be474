"""The names of all queues, kept in a stream, because AMQP itself cannot list them.

One record is written before a queue is made, and one when it is deleted. When most of the records count no more, the
leader makes the stream anew with one record for each queue.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress

from palermo.brokers.rabbitmq.amqp.connection import Connection
from palermo.brokers.rabbitmq.amqp.publisher import Publisher
from palermo.brokers.rabbitmq.amqp.stream import Follower, Record, Stream
from palermo.core.topology import internal, is_queue_name
from palermo.errors import PalermoError

log = logging.getLogger("palermo.rabbitmq")

#: The stream is made anew when it has so many records, and so many more for each queue.
_LONG, _PER_QUEUE = 2_000, 3

#: Seconds between two looks at how long it is.
_LOOK_EVERY = 60.0


class Registry:
    """The registry of one exchange, as one session sees it."""

    def __init__(self, exchange: str, publisher: Callable[[], Awaitable[Publisher]], *, patience: float) -> None:
        """`patience` is that of palermo.brokers.rabbitmq.amqp.stream.Stream."""
        name = internal(exchange, "registry")
        self._stream = Stream(name, publisher, patience=patience, holds="the names of the queues", copied=True)
        self._patience = patience
        #: The names as `names` has read them, and goes on reading.
        self._read: Names | None = None
        self._read_from = ""
        self._reading = asyncio.Lock()

    async def make(self) -> None:
        """Make the stream if it is not there."""
        await self._stream.make()

    async def add(self, queue: str) -> None:
        """Add the name for all sessions; returns once it is stored."""
        await self._stream.write({"queue": queue})

    async def remove(self, queue: str) -> None:
        """Remove the name for all sessions."""
        await self._stream.write({"gone": queue})

    async def names(self, connection: Connection) -> set[str]:
        """All names that are registered now. Raises BrokerUnavailable if the stream is down and stays so.

        The first call reads all records. The session goes on following them, so a later call costs no more the more
        queues there have ever been: `palermo web` asks every two seconds.
        """
        async with self._reading:
            if self._read is not None:
                end = await self._stream.end(connection)
                same = self._read_from == self._stream.name
                if end is not None and same and await self._read.has_come_to(end, within=self._patience):
                    return set(self._read.known)
                await self._read.close()
                self._read = None
            names = Names(lambda _: None)
            if await names.follow(self._stream, connection):
                self._read, self._read_from = names, self._stream.name
            return set(names.known)

    async def keep_short(self, connection: Connection, leads: Callable[[], bool]) -> None:
        """Make the stream anew whenever it is long and this session leads, until the call is cancelled."""
        while True:
            await asyncio.sleep(_LOOK_EVERY)
            try:
                if leads():
                    await self.shorten(connection)
            except PalermoError as error:
                if connection.error is not None:
                    return
                log.warning("the names of the queues cannot be written anew now error=%r", str(error))

    async def shorten(self, connection: Connection) -> bool:
        """Make the stream anew if it is long; returns whether it was."""
        end = await self._stream.end(connection)
        if end is None or end < _LONG or end < _LONG + _PER_QUEUE * len(await self.names(connection)):
            return False
        log.info("most names of queues count no more, the others are written anew records=%d", end)
        return await self._stream.shorten(connection, _are_over)

    async def follow(self, connection: Connection, changed: Callable[[set[str]], None]) -> "Names | None":
        """The names, kept up to date. Calls `changed` at every later change. None without a stream.

        Raises BrokerUnavailable if the stream is down and stays so.
        """
        names = Names(changed)
        return names if await names.follow(self._stream, connection) else None


async def follow(
    registry: Registry, connection: Connection, know: Callable[[set[str]], Awaitable[None]]
) -> "Names | None":
    """The names, kept up to date; `know` is awaited with all names at every later change."""
    await registry.make()
    tasks: set[asyncio.Task[None]] = set()

    async def learn(names: set[str]) -> None:
        with suppress(PalermoError):  # the session is lost: receive() raises that
            await know(names)

    def changed(names: set[str]) -> None:
        task = asyncio.ensure_future(learn(set(names)))
        tasks.add(task)
        task.add_done_callback(tasks.discard)

    return await registry.follow(connection, changed)


class Names:
    """The names that the registry's records add up to, from its first record on."""

    def __init__(self, changed: Callable[[set[str]], None]) -> None:
        self.known: set[str] = set()
        self._changed = changed
        self._follower: Follower | None = None
        self._on_lost: Callable[[], None] | None = None
        self._again: asyncio.Task[None] | None = None
        self._closed = False

    async def follow(self, stream: Stream, connection: Connection) -> bool:
        """Read all records; returns whether there is a stream."""
        self._stream, self._connection = stream, connection
        self._follower, self.known = None, set()
        self._follower = await stream.follow(connection, self._on_record)
        if self._follower is not None:
            self._follower.on_close(self._on_end)
        return self._follower is not None

    def on_close(self, callback: Callable[[], None]) -> None:
        """Keep the names up to date even if the stream is made anew. Call this once when that is not possible."""
        self._on_lost = callback
        if self._follower is not None and not self._follower.is_open:
            self._on_end()

    def _on_end(self) -> None:
        if not self._closed and self._on_lost is not None:
            self._again = asyncio.ensure_future(self._follow_again(self._on_lost))

    async def _follow_again(self, lost: Callable[[], None]) -> None:
        with suppress(PalermoError):
            if await self.follow(self._stream, self._connection):
                self._changed(self.known)
                return
        lost()

    async def has_come_to(self, end: int, *, within: float) -> bool:
        """Whether all records up to this offset are read, after at most so many seconds."""
        return self._follower is not None and await self._follower.has_come_to(end, within=within)

    async def close(self) -> None:
        self._closed = True
        if self._again is not None:
            self._again.cancel()
        if self._follower is not None:
            await self._follower.close()

    def _on_record(self, record: Record) -> None:
        # Another program or an earlier version wrote a name that no queue may have: no question about it is answered.
        if is_queue_name(record.get("queue")):
            self.known.add(str(record["queue"]))
        self.known.discard(str(record.get("gone", "")))
        if self._follower is not None:
            # A known name written again means that the queue was made again, after it was deleted without a record.
            self._changed(self.known)


def _are_over(records: Sequence[Record]) -> list[bool]:
    """Of each record, whether a later one has the same name, or whether it only says that a queue is gone."""
    names = [record.get("queue", record.get("gone")) for record in records]
    last = {name: number for number, name in enumerate(names) if isinstance(name, str)}
    return [
        isinstance(name, str) and (last[name] != number or "gone" in record)
        for number, (name, record) in enumerate(zip(names, records, strict=True))
    ]
