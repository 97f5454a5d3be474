"""Where jobs wait that are due later: a durable queue for each stretch of time, whose names a stream keeps.

A stretch's queue is declared by whoever first has a job for it, and its name written to the
stream `~later` before. The clock (clock.py) takes the jobs up when their time comes near.
"""

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from palermo.brokers.rabbitmq.link import Link
from palermo.brokers.rabbitmq.publisher import Publisher
from palermo.brokers.rabbitmq.stream import Follower, Record, Stream
from palermo.core.delay import Stretch
from palermo.core.topology import internal


def queue_of(exchange: str, stretch: Stretch) -> str:
    """The AMQP queue of a stretch."""
    return internal(exchange, f"later.{stretch}")


class Later:
    """The stretches' queues of one exchange, as one session sees them."""

    def __init__(
        self,
        exchange: str,
        publisher: Callable[[], Awaitable[Publisher]],
        *,
        patience: float,
        arguments: Mapping[str, Any],
    ) -> None:
        """`arguments` are those that the queues are declared with."""
        self._exchange = exchange
        self._publisher = publisher
        self._arguments = dict(arguments)
        self._stream = Stream(
            internal(exchange, "later"), publisher, patience=patience, holds="the stretches of time that hold jobs"
        )
        self._made: set[Stretch] = set()
        self._lock = asyncio.Lock()

    def has(self, stretch: Stretch) -> bool:
        """Whether its queue has been made in this session."""
        return stretch in self._made

    async def ensure(self, stretch: Stretch, link: Link) -> None:
        """See that its queue is there, and known to the clock."""
        async with self._lock:
            if stretch in self._made:
                return
            await self._stream.write({"stretch": str(stretch)})
            channel = await link.channel()
            name = queue_of(self._exchange, stretch)
            await channel.call(channel.raw.queue_declare, name, durable=True, arguments=self._arguments)
            await channel.close()
            self._made.add(stretch)

    def forget(self, stretch: Stretch) -> None:
        """Its queue has been deleted: make it again next time."""
        self._made.discard(stretch)

    async def remove(self, stretch: Stretch) -> None:
        """Have everyone forget it: its queue has been deleted."""
        self._made.discard(stretch)
        await self._stream.write({"gone": str(stretch)})

    async def make(self) -> None:
        """Make the stream if it is not there."""
        await self._stream.make()

    async def known(self, link: Link) -> set[Stretch]:
        """The stretches that may hold jobs."""
        stretches = Stretches(lambda _: None)
        await stretches.follow(self._stream, link)
        await stretches.close()
        return stretches.known

    async def follow(self, link: Link, added: Callable[[Stretch], None]) -> "Stretches":
        """The same, kept up to date; `added` is told of each that was written, known before or not."""
        await self._stream.make()
        stretches = Stretches(added)
        await stretches.follow(self._stream, link)
        return stretches


class Stretches:
    """What the stream says, from its first record on."""

    def __init__(self, added: Callable[[Stretch], None]) -> None:
        self.known: set[Stretch] = set()
        self._added = added
        self._follower: Follower | None = None

    async def follow(self, stream: Stream, link: Link) -> None:
        """Read all that is there, and go on."""
        self._follower = await stream.follow(link, self._on_record)

    async def close(self) -> None:
        if self._follower is not None:
            await self._follower.close()

    def _on_record(self, record: Record) -> None:
        try:
            if "gone" in record:
                self.known.discard(Stretch.parse(str(record["gone"])))
            elif "stretch" in record:
                stretch = Stretch.parse(str(record["stretch"]))
                self.known.add(stretch)
                self._added(stretch)
        except ValueError:
            return  # a later version's
