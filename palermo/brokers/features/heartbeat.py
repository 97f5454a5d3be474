"""A worker's heartbeat, which shows other sessions that the worker is alive and what it does."""

import abc
import asyncio
import json
from collections.abc import Callable

from palermo.contract.worker_info import WorkerInfo

#: Seconds between two heartbeats. Other sessions must see within a second what a worker does, and that it died.
INTERVAL = 0.25


class Heartbeat(abc.ABC):
    """Stores one worker's report periodically."""

    def __init__(self, report: Callable[[], WorkerInfo], reported: WorkerInfo) -> None:
        """`reported` is the report that is already stored."""
        self.worker = reported.id
        self._report = report
        self._reported = reported

    @abc.abstractmethod
    async def beat(self, report: str) -> bool:
        """Renew the worker's sign of life. Stores `report` unless it is "". Returns whether there may be a job."""

    async def run(self, look: Callable[[], None]) -> None:
        """Run until cancelled, and call `look` when there may be a job. Raises BrokerError."""
        while True:
            await asyncio.sleep(INTERVAL)
            report = self._report()
            if await self.beat("" if report == self._reported else json.dumps(report.to_plain())):
                look()
            self._reported = report
