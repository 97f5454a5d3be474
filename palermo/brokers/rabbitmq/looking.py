"""Whose turn it is to look into tenants' queues, or to delete some: a queue is deleted if it is empty, and it is not
while somebody holds its jobs in order to look at them. The turn is an exclusive queue, which ends with its connection.
"""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress

from palermo.brokers.rabbitmq.link import Channel, Link
from palermo.brokers.rabbitmq.translate import RESOURCE_LOCKED
from palermo.core.topology import internal
from palermo.errors import PalermoError

#: Seconds between two attempts to have the turn.
_AGAIN = 0.05


def looking(exchange: str) -> str:
    """The exclusive queue that whoever looks holds."""
    return internal(exchange, "tenants.turn")


@asynccontextmanager
async def turn(link: Link, exchange: str, *, patience: float = 0.0) -> AsyncIterator[bool]:
    """Be the only one; False if others are at it for longer than that."""
    name, loop = looking(exchange), asyncio.get_running_loop()
    until = loop.time() + patience
    held: Channel | None = None
    while held is None:
        channel = await link.channel()
        try:
            await channel.call(channel.raw.queue_declare, name, exclusive=True)
            held = channel
        except PalermoError:
            if channel.code != RESOURCE_LOCKED:
                raise
            if loop.time() >= until:
                break
            await asyncio.sleep(_AGAIN)
    try:
        yield held is not None
    finally:
        if held is not None and held.is_open:
            with suppress(PalermoError):
                await held.call(held.raw.queue_delete, name)
                await held.close()


async def is_taken(link: Link, exchange: str) -> bool:
    """Whether another connection has the turn."""
    channel = await link.channel()
    try:
        await channel.call(channel.raw.queue_declare, looking(exchange), passive=True)
    except PalermoError:
        if channel.code == RESOURCE_LOCKED or channel.missing:
            return channel.code == RESOURCE_LOCKED
        raise
    await channel.close()
    return False
