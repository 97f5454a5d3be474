"""Keeping `failed` within the age and the number that the settings allow."""

import logging
from collections.abc import Callable

from palermo.broker import Broker, Keep, Remove, Stop, Verdict
from palermo.config import Settings
from palermo.core.message import Message
from palermo.core.topology import FAILED_QUEUE
from palermo.errors import BrokerError, NotFound

log = logging.getLogger("palermo.worker")

#: Seconds between two looks, at least.
EVERY = 60.0


class Trimmer:
    """Drops the oldest failed jobs: at the worker's start, and after failures at most once a minute."""

    def __init__(self, settings: Settings, *, now: Callable[[], float]) -> None:
        self._max_age = settings.failed_max_age
        self._max_count = settings.failed_max_count
        self._now = now
        self._ran_at = float("-inf")

    @property
    def wanted(self) -> bool:
        """Whether there is a limit at all."""
        return self._max_age is not None or self._max_count is not None

    @property
    def due_in(self) -> float:
        """Seconds until the next look may be."""
        return max(0.0, self._ran_at + EVERY - self._now())

    async def run(self, broker: Broker) -> None:
        """Drop what is too old or too much."""
        if not self.wanted:
            return
        self._ran_at = self._now()
        try:
            held = {queue.name: queue.pending for queue in await broker.queues()}.get(FAILED_QUEUE, 0)
            surplus = 0 if self._max_count is None else held - self._max_count
            before = None if self._max_age is None else self._ran_at - self._max_age
            swept = await broker.sweep(FAILED_QUEUE, decider(surplus, before))
        except NotFound:
            return
        except BrokerError as error:
            log.warning("failed jobs not trimmed error=%r", str(error))
            return
        if swept.removed:
            log.info("failed jobs trimmed removed=%d", swept.removed)


def decider(surplus: int, before: float | None) -> Callable[[Message], Verdict]:
    """What to do with each failed job, oldest first: the first `surplus` go, and those that failed before an instant.

    A job that does not say when it failed, as another program may write it, has no age.
    """
    left = surplus

    def decide(message: Message) -> Verdict:
        nonlocal left
        failed_at = message.failure.failed_at if message.failure else 0
        if left > 0 or (before is not None and 0 < failed_at < before):
            left -= 1
            return Remove()
        # `failed` is in the order of failing, so nothing behind this one is older.
        return Stop() if failed_at or before is None else Keep()

    return decide
