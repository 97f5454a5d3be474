"""How many workers there are: the consumers of the queue `~presence`, which never holds a message.

In a cluster the node that the queue is on may be away. Then workers work all the same and come
back to the queue with its node; a count is not to be had meanwhile.
"""

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress

from palermo.brokers.rabbitmq import versions
from palermo.brokers.rabbitmq.link import Channel, Link
from palermo.core.topology import internal
from palermo.errors import BrokerUnavailable, NotFound, PalermoError

#: What a census says that cannot be held: more workers than there are.
UNKNOWN = 1_000_000

#: Seconds between two attempts to be counted where the queue is down.
_AGAIN = 1.0


async def census(link: Link, exchange: str) -> int:
    """How many workers are alive, true within milliseconds of a kill -9; UNKNOWN while the queue is down."""
    channel = await link.channel()
    try:
        frame = await channel.call(channel.raw.queue_declare, internal(exchange, "presence"), passive=True)
    except (BrokerUnavailable, NotFound):
        if link.error is not None:
            raise
        return 0 if channel.missing else UNKNOWN
    finally:
        await channel.close()
    return int(frame.method.consumer_count)


class Counted:
    """One worker's place in the census."""

    def __init__(self, link: Link, exchange: str, *, kind: str, again: Callable[[], Awaitable[None]]) -> None:
        """`kind` is the type of the queue, if it is not there yet; `again` is awaited before joining once more."""
        self._link = link
        self._name = internal(exchange, "presence")
        self._kind = kind
        self._before_again = again
        self._channel: Channel | None = None
        self._again: asyncio.Task[None] | None = None

    async def begin(self) -> None:
        """Be counted, now or as soon as the queue is up, until the link ends or `end` is called."""
        if not await self._join():
            self._lost()

    async def end(self) -> None:
        if self._again is not None:
            self._again.cancel()
        if self._channel is not None:
            await self._channel.close()

    async def _join(self) -> bool:
        """Whether we are counted; False if the queue is there and down."""
        try:
            channel = self._channel = await self._link.channel()
            try:
                await channel.call(channel.raw.queue_declare, self._name, passive=True)
            except NotFound:
                channel = self._channel = await self._link.channel()
                arguments = versions.arguments(self._kind, self._link.version)
                await channel.call(channel.raw.queue_declare, self._name, durable=True, arguments=arguments)
            channel.raw.add_on_cancel_callback(lambda _: self._lost())
            await channel.call(channel.raw.basic_consume, self._name, lambda *_: None, auto_ack=True)
        except (BrokerUnavailable, NotFound):
            if self._link.error is not None:
                raise
            return False
        return True

    def _lost(self) -> None:
        """The queue is down, or its node died, or someone deleted it."""
        if self._again is None or self._again.done():
            self._again = asyncio.ensure_future(self._join_again())

    async def _join_again(self) -> None:
        with suppress(PalermoError):  # the session is lost, and this worker with it
            joined = False
            while not joined:
                await asyncio.sleep(_AGAIN)
                if self._channel is not None:
                    await self._channel.close()
                await self._before_again()
                joined = await self._join()
