"""The unique jobs announced by workers, read from the broker and cached for a few seconds."""

import asyncio
import logging
import math
import time
from collections.abc import Callable, Mapping
from functools import partial

from palermo.contract.broker import Broker
from palermo.contract.unique_jobs import UniqueJob
from palermo.errors import BrokerRefused, BrokerUnavailable

log = logging.getLogger("palermo.client")

#: Seconds until the cached announcements expire.
FRESH = 10.0

#: Seconds between attempts while no broker is available.
_AGAIN = 0.05

Announced = Mapping[str, UniqueJob]

#: `Client.run`.
Run = Callable[..., Announced]


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

    def refresh(self, run: Run, timeout: float) -> None:
        """Ask the broker. If it is unavailable, the previous answer is kept; without one, try again for `timeout`
        seconds, as for a publish. Raises BrokerUnavailable.
        """
        until = time.monotonic() + timeout
        while True:
            try:
                # A connection that died unnoticed is given up after half of the timeout.
                self._found = run(partial(_ask, timeout / 2), again=True)
                break
            except BrokerUnavailable:
                if self._found is not None:
                    break
                if time.monotonic() + _AGAIN > until:
                    raise
            time.sleep(_AGAIN)
        self._asked_at = time.monotonic()


async def _ask(timeout: float, broker: Broker) -> Announced:
    """Return the broker's answer. Raises BrokerUnavailable if there is none within `timeout` seconds."""
    try:
        async with asyncio.timeout(timeout):
            return await broker.keys.announced()
    except TimeoutError:
        raise BrokerUnavailable(f"{broker.describe()} did not list the unique jobs within {timeout:g} s.") from None
    except BrokerRefused as error:
        # A program that only publishes may have no other permission.
        log.info("cannot read the unique jobs, so jobs enqueued by name get no key error=%r", str(error))
        return {}
