"""The heartbeat of one worker, by which other sessions know what it does and that it lives."""

import abc
import asyncio
import json
from collections.abc import Callable

from palermo.contract.worker_info import WorkerInfo

#: Seconds between two heartbeats. Other sessions must know within a second what a worker does, and that it died.
INTERVAL = 0.25


class Heartbeat(abc.ABC):
    """Stores the report of one worker again and again."""

    def __init__(self, report: Callable[[], WorkerInfo], reported: WorkerInfo) -> None:
        """`reported` is the report that is stored already."""
        self.worker = reported.id
        self._report = report
        self._reported = reported

    @abc.abstractmethod
    async def beat(self, report: str) -> bool:
        """Show that the worker lives, and store its report unless it is ""; returns whether there may be a job."""

    async def run(self, look: Callable[[], None]) -> None:
        """Continue until this is cancelled, and call `look` when there may be a job. Raises BrokerError."""
        while True:
            await asyncio.sleep(INTERVAL)
            report = self._report()
            if await self.beat("" if report == self._reported else json.dumps(report.to_plain())):
                look()
            self._reported = report
