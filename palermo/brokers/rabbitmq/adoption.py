"""Getting queues into the registry: our own before they are made, and those that others made once we find them."""

import asyncio
import logging
from contextlib import suppress

from palermo.brokers.rabbitmq.link import Link
from palermo.brokers.rabbitmq.registry import Registry
from palermo.brokers.rabbitmq.stream import exists
from palermo.core.topology import amqp_queue
from palermo.errors import BrokerUnavailable, PalermoError

log = logging.getLogger("palermo.rabbitmq")

#: Seconds that closing waits for the registry to learn of a queue.
_LAST_WORDS = 2.0

#: Seconds for which a queue that was found waits to be told, unless somebody waits for it: jobs come first.
_SOON = 0.3


class Adoption:
    """What one session has to tell the registry."""

    def __init__(self, exchange: str, registry: Registry, link: Link) -> None:
        self._exchange = exchange
        self._registry = registry
        self._link = link
        self._working: asyncio.Task[None] | None = None
        self._found: set[str] = set()
        #: Set once somebody waits.
        self._hurry = asyncio.Event()

    async def register(self, queue: str) -> None:
        """Name a queue that is about to be made; returns once that is stored, or is seen to later."""
        try:
            await self._registry.add(queue)
        except BrokerUnavailable as error:
            if self._link.error is not None:
                raise
            # A stream that is down must not keep a job from being stored: its queue is named later.
            log.warning("cannot register a queue now queue=%s error=%r", queue, str(error))
            self.adopt(queue)

    def adopt(self, queue: str) -> None:
        """See to it, without keeping anyone waiting, that a queue found on the broker is in the registry."""
        self._found.add(queue)
        if self._working is None or self._working.done():
            self._hurry.clear()
            self._working = asyncio.ensure_future(self._register_found())

    async def done(self) -> None:
        """Wait until what was found is registered, for a moment."""
        if self._working is not None:
            self._hurry.set()
            await asyncio.wait({self._working}, timeout=_LAST_WORDS)

    async def _register_found(self) -> None:
        with suppress(TimeoutError):
            async with asyncio.timeout(_SOON):
                await self._hurry.wait()
        with suppress(PalermoError):  # the session is lost; whoever opens the next one finds the queue again
            while self._found:
                found, self._found = self._found, set()
                for queue in sorted(found - await self._registry.names(self._link)):
                    # It may have been deleted since it was found.
                    if await exists(self._link, amqp_queue(self._exchange, queue)):
                        await self._registry.add(queue)
