"""Keeps the failed jobs within the age and the number that the settings allow."""

import logging
from collections.abc import Callable

from palermo.client.failed_queues import trim_failed
from palermo.contract.broker import Broker
from palermo.errors import PalermoError
from palermo.settings.settings import Settings

log = logging.getLogger("palermo.worker")

#: The least seconds between two runs.
EVERY = 60.0


class FailedRetention:
    """Drops the oldest failed jobs: at the worker's start, and after failures at most once a minute."""

    def __init__(self, settings: Settings, *, now: Callable[[], float]) -> None:
        self._max_age = settings.failed_max_age
        self._max_count = settings.failed_max_count
        self._now = now
        self._ran_at = float("-inf")

    @property
    def wanted(self) -> bool:
        """Whether the settings have a limit at all."""
        return self._max_age is not None or self._max_count is not None

    @property
    def due_in(self) -> float:
        """The seconds until the next run may be."""
        return max(0.0, self._ran_at + EVERY - self._now())

    async def run(self, broker: Broker) -> None:
        """Drop the failed jobs that are too old or too many."""
        if not self.wanted:
            return
        self._ran_at = self._now()
        try:
            removed = await trim_failed(broker, max_age=self._max_age, max_count=self._max_count, now=self._ran_at)
        except PalermoError as error:
            log.warning("failed jobs not trimmed error=%r", str(error))
            return
        if removed:
            log.info("failed jobs trimmed removed=%d", removed)
