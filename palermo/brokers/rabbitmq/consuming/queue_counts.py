"""Counts the jobs of many queues at once, and takes none."""

import asyncio
from collections import deque
from collections.abc import Callable, Iterable

from palermo.brokers.rabbitmq.amqp.connection import Channel, Connection, fulfil
from palermo.brokers.rabbitmq.amqp.frames import Counted
from palermo.core.topology import amqp_queue


class QueueCounts:
    """Counts the jobs of queues, on a channel of its own, because a queue that does not exist ends the channel."""

    def __init__(self, connection: Connection, exchange: str, *, ended: Callable[[Channel], None]) -> None:
        """`ended` is called with the channel when that has ended."""
        self._connection = connection
        self._exchange = exchange
        self._ended = ended
        self._channel: Channel | None = None
        #: The queues whose counts have not come yet, those that have jobs, and the future of the caller that waits.
        self._asked: deque[str] = deque()
        self._full: set[str] = set()
        self._done: asyncio.Future[None] | None = None

    async def full(self, queues: Iterable[str]) -> set[str]:
        """The queues among these in which jobs wait. One call at a time.

        Raises NotFound if one does not exist, or the error that ended the channel.
        """
        channel = await self._open()
        self._asked, self._full = deque(queues), set()
        names = [amqp_queue(self._exchange, queue) for queue in self._asked]
        self._done = asyncio.get_running_loop().create_future()
        if self._asked:
            self._connection.raw.count(channel.raw, names)
            try:
                await self._done
            except asyncio.CancelledError:
                # The counts that still come must not be taken for answers to the next call.
                self._channel = None
                channel.abandon()
                raise
        return self._full

    async def _open(self) -> Channel:
        channel = self._channel
        if channel is None or not channel.is_open:
            channel = self._channel = await self._connection.channel()
            channel.on_close(lambda: self._on_end(channel))
            self._connection.raw.counts_to(channel.raw, self._on_counted)
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
        self._connection.raw.deliver_no_more(channel.raw)
        if channel is self._channel and self._done is not None and not self._done.done():
            assert channel.error is not None
            self._done.set_exception(channel.error)
            self._done.exception()  # Marks it as read: perhaps no caller waits any more.
        self._ended(channel)
