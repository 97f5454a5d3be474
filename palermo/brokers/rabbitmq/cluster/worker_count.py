"""The number of workers: they are the consumers of the queue `~presence`, which never holds a message.

In a cluster the node of that queue may be down. Then workers go on working, and consume from the queue again when its
node is back. Meanwhile the number is unknown.
"""

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress

from palermo.brokers.rabbitmq.amqp import versions
from palermo.brokers.rabbitmq.amqp.connection import Channel, Connection
from palermo.core.topology import internal
from palermo.errors import BrokerUnavailable, NotFound, PalermoError

#: The result of a census while the queue is down: more workers than there ever are.
UNKNOWN = 1_000_000

#: Seconds between two attempts to be counted while the queue is down.
_AGAIN = 1.0


async def census(connection: Connection, exchange: str) -> int:
    """How many workers are alive, correct within milliseconds of a kill -9; UNKNOWN while the queue is down."""
    try:
        probe = await connection.probe(internal(exchange, "presence"))
    except BrokerUnavailable:
        if connection.error is not None:
            raise
        return UNKNOWN
    return probe.consumers if probe.exists else 0


class WorkerPresence:
    """One worker's consumer on the queue `~presence`, by which the worker is counted."""

    def __init__(
        self, connection: Connection, exchange: str, *, kind: str, again: Callable[[], Awaitable[None]]
    ) -> None:
        """`kind` is the type for the queue if it has to be made; `again` is awaited before each new attempt to join."""
        self._connection = connection
        self._name = internal(exchange, "presence")
        self._kind = kind
        self._before_again = again
        self._channel: Channel | None = None
        self._again: asyncio.Task[None] | None = None

    async def begin(self) -> None:
        """Be counted, now or as soon as the queue is up, until the connection ends or `end` is called."""
        if not await self._join():
            self._lost()

    async def end(self) -> None:
        if self._again is not None:
            self._again.cancel()
        if self._channel is not None:
            await self._channel.close()

    async def _join(self) -> bool:
        """Consume from the queue, to be counted. False if the queue exists and is down."""
        try:
            if not (await self._connection.probe(self._name)).exists:
                await self._connection.declare(self._name, versions.arguments(self._kind, self._connection.version))
            channel = self._channel = await self._connection.channel()
            channel.on_cancel(self._lost)
            await channel.consume(self._name, lambda _: None, auto_ack=True)
        except (BrokerUnavailable, NotFound):
            if self._connection.error is not None:
                raise
            return False
        return True

    def _lost(self) -> None:
        """Join again: the queue is down, or its node died, or someone deleted it."""
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
