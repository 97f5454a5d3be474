"""The unique jobs announced by workers, read from the broker and cached for a few seconds."""

import asyncio
import logging
import math
import time
from collections.abc import Callable, Coroutine, Mapping
from typing import Any

from palermo.contract.broker import Broker
from palermo.contract.unique_jobs import UniqueJob
from palermo.errors import BrokerRefused, BrokerUnavailable

log = logging.getLogger("palermo.client")

#: Seconds until the cached announcements expire.
FRESH = 10.0

Announced = Mapping[str, UniqueJob]


class AnnouncedJobs:
    """The cached announcements and their age."""

    def __init__(self) -> None:
        self._found: Announced | None = None
        self._asked_at = -math.inf

    @property
    def stale(self) -> bool:
        """Whether the cache has expired."""
        return time.monotonic() - self._asked_at > FRESH

    def find(self, name: str) -> UniqueJob | None:
        """The announced job with this name, or None."""
        return None if self._found is None else self._found.get(name)

    def question(self, timeout: float) -> Callable[[Broker], Coroutine[Any, Any, Announced]]:
        """Return a request to the broker, which raises BrokerUnavailable if there is no answer within `timeout`."""

        async def ask(broker: Broker) -> Announced:
            try:
                async with asyncio.timeout(timeout):
                    return await broker.keys.announced()
            except TimeoutError:
                raise BrokerUnavailable(
                    f"{broker.describe()} did not list the unique jobs within {timeout:g} s."
                ) from None
            except BrokerRefused as error:
                # A program that only publishes may have no other permission.
                log.info("cannot read the unique jobs, so jobs enqueued by name get no key error=%r", str(error))
                return {}

        return ask

    def learn(self, answer: Callable[[], Announced]) -> None:
        """Store the answer in the cache.

        If the request failed, the previous answer is kept. Raises BrokerUnavailable if there is no previous answer.
        """
        try:
            self._found = answer()
        except BrokerUnavailable:
            if self._found is None:
                raise
        self._asked_at = time.monotonic()
