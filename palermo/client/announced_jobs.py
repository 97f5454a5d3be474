"""The jobs that workers announced as unique, read from the broker and cached for some seconds."""

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

#: Seconds for which an answer of the broker holds.
FRESH = 10.0

#: What the broker announces, by name.
Announced = Mapping[str, UniqueJob]


class AnnouncedJobs:
    """The last answer of the broker, and its age."""

    def __init__(self) -> None:
        self._found: Announced | None = None
        self._asked_at = -math.inf

    @property
    def stale(self) -> bool:
        """Whether the cached answer is too old."""
        return time.monotonic() - self._asked_at > FRESH

    def find(self, name: str) -> UniqueJob | None:
        """The job of this name, if it was announced."""
        return None if self._found is None else self._found.get(name)

    def question(self, timeout: float) -> Callable[[Broker], Coroutine[Any, Any, Announced]]:
        """A request to the broker. It raises BrokerUnavailable if the answer takes longer than `timeout`."""

        async def ask(broker: Broker) -> Announced:
            try:
                async with asyncio.timeout(timeout):
                    return await broker.keys.announced()
            except TimeoutError:
                raise BrokerUnavailable(
                    f"{broker.describe()} did not list the unique jobs within {timeout:g} s."
                ) from None
            except BrokerRefused as error:
                # The user of a program that only publishes may be allowed nothing else.
                log.info("cannot see which jobs are unique, so jobs enqueued by name are not error=%r", str(error))
                return {}

        return ask

    def learn(self, answer: Callable[[], Announced]) -> None:
        """Take the answer.

        If there is none, the previous one stays; without a previous one, raises BrokerUnavailable.
        """
        try:
            self._found = answer()
        except BrokerUnavailable:
            if self._found is None:
                raise
        self._asked_at = time.monotonic()
