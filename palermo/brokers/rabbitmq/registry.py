"""The names of all queues, kept in a stream: AMQP itself cannot list them.

A record is written before its queue is made, and one when it is deleted, so the stream stays
as short as the number of queues that ever were.
"""

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress

from palermo.brokers.rabbitmq.link import Link
from palermo.brokers.rabbitmq.publisher import Publisher
from palermo.brokers.rabbitmq.stream import Follower, Record, Stream
from palermo.core.topology import internal
from palermo.errors import PalermoError


class Registry:
    """The registry of one exchange, as one session sees it."""

    def __init__(self, exchange: str, publisher: Callable[[], Awaitable[Publisher]], *, patience: float) -> None:
        """`patience` is that of palermo.brokers.rabbitmq.stream.Stream."""
        name = internal(exchange, "registry")
        self._stream = Stream(name, publisher, patience=patience, holds="the names of the queues")

    async def make(self) -> None:
        """Make the stream if it is not there."""
        await self._stream.make()

    async def add(self, queue: str) -> None:
        """Make the name known to all; returns once that is stored."""
        await self._stream.write({"queue": queue})

    async def remove(self, queue: str) -> None:
        """Forget the name everywhere."""
        await self._stream.write({"gone": queue})

    async def names(self, link: Link) -> set[str]:
        """All names there are now. Raises BrokerUnavailable if the stream is down and stays so."""
        names = Names(lambda _: None)
        if await names.follow(self._stream, link):
            await names.close()
        return names.known

    async def follow(self, link: Link, changed: Callable[[set[str]], None]) -> "Names | None":
        """The names, kept up to date; calls `changed` at every change to come. None without a stream.

        Raises BrokerUnavailable if the stream is down and stays so.
        """
        names = Names(changed)
        return names if await names.follow(self._stream, link) else None


async def follow(registry: Registry, link: Link, know: Callable[[set[str]], Awaitable[None]]) -> "Names | None":
    """The names, kept up to date; `know` is awaited with all of them at every change to come."""
    await registry.make()
    tasks: set[asyncio.Task[None]] = set()

    async def learn(names: set[str]) -> None:
        with suppress(PalermoError):  # the session is lost: receive() says so
            await know(names)

    def changed(names: set[str]) -> None:
        task = asyncio.ensure_future(learn(set(names)))
        tasks.add(task)
        task.add_done_callback(tasks.discard)

    return await registry.follow(link, changed)


class Names:
    """What the registry says, from its first record on."""

    def __init__(self, changed: Callable[[set[str]], None]) -> None:
        self.known: set[str] = set()
        self._changed = changed
        self._follower: Follower | None = None

    async def follow(self, stream: Stream, link: Link) -> bool:
        """Read all that is there; whether there is a stream."""
        self._follower = await stream.follow(link, self._on_record)
        return self._follower is not None

    def on_close(self, callback: Callable[[], None]) -> None:
        """Call this once when they are kept up to date no longer, for whatever reason."""
        assert self._follower is not None
        self._follower.on_close(callback)

    async def close(self) -> None:
        if self._follower is not None:
            await self._follower.close()

    def _on_record(self, record: Record) -> None:
        if "queue" in record:
            self.known.add(str(record["queue"]))
        self.known.discard(str(record.get("gone", "")))
        if self._follower is not None:
            # A known name written again is a queue made again, after someone deleted it without a record.
            self._changed(self.known)
