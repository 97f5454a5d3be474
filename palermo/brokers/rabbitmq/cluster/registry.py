"""The names of all queues, kept in a stream, because AMQP itself cannot list them.

One record is written before a queue is made, and one when it is deleted. So the stream is no longer
than the number of queues that ever existed.
"""

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress

from palermo.brokers.rabbitmq.amqp.connection import Connection
from palermo.brokers.rabbitmq.amqp.publisher import Publisher
from palermo.brokers.rabbitmq.amqp.stream import Follower, Record, Stream
from palermo.core.topology import internal, is_queue_name
from palermo.errors import PalermoError


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

    async def follow(self, stream: Stream, connection: Connection) -> bool:
        """Read all records; returns whether there is a stream."""
        self._follower = await stream.follow(connection, self._on_record)
        return self._follower is not None

    def on_close(self, callback: Callable[[], None]) -> None:
        """Call this once when the names are no longer kept up to date, for whatever reason."""
        assert self._follower is not None
        self._follower.on_close(callback)

    async def has_come_to(self, end: int, *, within: float) -> bool:
        """Whether all records up to this offset are read, after at most so many seconds."""
        return self._follower is not None and await self._follower.has_come_to(end, within=within)

    async def close(self) -> None:
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
