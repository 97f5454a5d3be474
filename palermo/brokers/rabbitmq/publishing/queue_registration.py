"""Puts queues into the registry: our own before they are made, and those of others once a session finds them."""

import asyncio
import logging
from contextlib import suppress

from palermo.brokers.rabbitmq.amqp.connection import Connection
from palermo.brokers.rabbitmq.cluster.registry import Registry
from palermo.core.topology import amqp_queue
from palermo.errors import BrokerUnavailable, PalermoError

log = logging.getLogger("palermo.rabbitmq")

#: Seconds that `done` waits until the queues that were found are registered.
_LAST_WORDS = 2.0

#: Seconds until a queue that was found is registered, or sooner if a caller waits in `done`: jobs come first.
_SOON = 0.3


class QueueRegistration:
    """The queues that one session has to put into the registry."""

    def __init__(self, exchange: str, registry: Registry, connection: Connection) -> None:
        self._exchange = exchange
        self._registry = registry
        self._connection = connection
        self._working: asyncio.Task[None] | None = None
        self._found: set[str] = set()
        #: Set once a caller waits in `done`.
        self._hurry = asyncio.Event()

    async def register(self, queue: str) -> None:
        """Register a queue that is about to be made. Returns once its name is stored, or is left for later."""
        try:
            await self._registry.add(queue)
        except BrokerUnavailable as error:
            if self._connection.error is not None:
                raise
            # A stream that is down must not keep a job from being stored: its queue is registered later.
            log.warning("cannot register a queue now queue=%s error=%r", queue, str(error))
            self.register_found(queue)

    def register_found(self, queue: str) -> None:
        """Register a queue that was found on the broker, if it is not in the registry yet. Does not wait for that."""
        self._found.add(queue)
        if self._working is None or self._working.done():
            self._hurry.clear()
            self._working = asyncio.ensure_future(self._register_all_found())

    async def done(self) -> None:
        """Wait for a moment until the queues that were found are registered."""
        if self._working is not None:
            self._hurry.set()
            await asyncio.wait({self._working}, timeout=_LAST_WORDS)

    async def _register_all_found(self) -> None:
        with suppress(TimeoutError):
            async with asyncio.timeout(_SOON):
                await self._hurry.wait()
        with suppress(PalermoError):  # the session is lost; the next session finds the queue again
            while self._found:
                found, self._found = self._found, set()
                for queue in sorted(found - await self._registry.names(self._connection)):
                    # It may have been deleted since it was found.
                    if (await self._connection.probe(amqp_queue(self._exchange, queue))).exists:
                        await self._registry.add(queue)
