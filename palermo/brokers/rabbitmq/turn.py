"""What one session at a time may do: the turn is an exclusive queue, which ends with its connection."""

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from palermo.brokers.rabbitmq.link import Channel, Link
from palermo.brokers.rabbitmq.translate import RESOURCE_LOCKED
from palermo.errors import PalermoError

log = logging.getLogger("palermo.rabbitmq")

#: Seconds between two attempts to have the turn, and lines about it.
_LOOK, _SAY = 0.1, 10.0


class Turn:
    """A turn that the sessions of all programs take one after the other."""

    def __init__(self, name: str, waits_for: str) -> None:
        """`name` is that of the queue; `waits_for` says for people what the others have to wait for."""
        self._name = name
        self._waits_for = waits_for
        self._here = asyncio.Lock()

    @asynccontextmanager
    async def taken(self, link: Link) -> AsyncIterator[bool]:
        """Wait until nobody else has the turn, and have it; False where the server refuses to say who has it."""
        async with self._here:
            channel = await self._take(link)
            try:
                yield channel is not None
            finally:
                if channel is not None and channel.is_open:
                    channel.raw.queue_delete(self._name, callback=lambda _: None)
                    await channel.close()

    async def _take(self, link: Link) -> Channel | None:
        clock = asyncio.get_running_loop().time
        said = clock()
        while True:
            channel = await link.channel()
            try:
                await channel.call(channel.raw.queue_declare, self._name, exclusive=True)
                return channel
            except asyncio.CancelledError:
                # It may be ours all the same; if it is not, the server closes the channel before it comes to this.
                if channel.is_open:
                    channel.raw.queue_delete(self._name, callback=lambda _: None)
                    channel.raw.close()
                raise
            except PalermoError:
                if link.error is not None:
                    raise
                if channel.code != RESOURCE_LOCKED:
                    return None
            if clock() - said > _SAY:
                said = clock()
                log.warning("waiting for %s to end", self._waits_for)
            await asyncio.sleep(_LOOK)
