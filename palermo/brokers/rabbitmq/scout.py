"""Asks many queues at once how many jobs wait in them, and takes none."""

import asyncio
from collections import deque
from collections.abc import Callable, Iterable

from palermo.brokers.rabbitmq.deliveries import Counted
from palermo.brokers.rabbitmq.link import Channel, Link, fulfil
from palermo.core.topology import amqp_queue


class Scout:
    """On a channel of its own: a queue that is not there ends it."""

    def __init__(self, link: Link, exchange: str, *, ended: Callable[[Channel], None]) -> None:
        """`ended` is told of its channel when that has ended."""
        self._link = link
        self._exchange = exchange
        self._ended = ended
        self._channel: Channel | None = None
        #: The queues whose answers are to come, those that have jobs, and who waits for all of them.
        self._asked: deque[str] = deque()
        self._full: set[str] = set()
        self._done: asyncio.Future[None] | None = None

    async def full(self, queues: Iterable[str]) -> set[str]:
        """Those among these queues in which jobs wait. One call at a time.

        Raises NotFound if one is not there, or whatever else ended the channel.
        """
        channel = await self._open()
        self._asked, self._full = deque(queues), set()
        names = [amqp_queue(self._exchange, queue) for queue in self._asked]
        if not self._link.raw.quick:
            for queue, name in zip(list(self._asked), names, strict=True):
                said = await channel.call(channel.raw.queue_declare, name, passive=True)
                if said.method.message_count:
                    self._full.add(queue)
            return self._full
        self._done = asyncio.get_running_loop().create_future()
        if self._asked:
            self._link.raw.count(channel.raw, names)
            try:
                await self._done
            except asyncio.CancelledError:
                # What is still to come must not be taken for answers to the next call.
                self._channel = None
                if channel.is_open:
                    channel.raw.close()
                raise
        return self._full

    async def _open(self) -> Channel:
        channel = self._channel
        if channel is None or not channel.is_open:
            channel = self._channel = await self._link.channel()
            channel.on_close(lambda: self._on_end(channel))
            if self._link.raw.quick:
                self._link.raw.counts_to(channel.raw, self._on_counted)
        return channel

    def _on_counted(self, found: Counted, _: bytes) -> None:
        if not self._asked:
            return
        queue = self._asked.popleft()
        if found.messages:
            self._full.add(queue)
        if not self._asked and self._done is not None:
            fulfil(self._done, None)

    def _on_end(self, channel: Channel) -> None:
        self._link.raw.deliver_no_more(channel.raw)
        if channel is self._channel and self._done is not None and not self._done.done():
            assert channel.error is not None
            self._done.set_exception(channel.error)
            self._done.exception()  # nobody may be left to be told
        self._ended(channel)
