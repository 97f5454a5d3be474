"""The heartbeat of one worker: it stores the worker's report, and checks what other processes have done meanwhile."""

import asyncio
import json
from collections.abc import Callable

from palermo.brokers.sqlite.file.store import Store
from palermo.brokers.sqlite.workers import worker_locks
from palermo.brokers.sqlite.workers.commands import CommandListener
from palermo.contract.worker_info import WorkerInfo
from palermo.errors import BrokerUnavailable

#: Seconds between two heartbeats. Other processes must know within a second what a worker does, and that it died.
INTERVAL = 0.25


class Heartbeat:
    """Stores the report of one worker in the file, again and again."""

    def __init__(
        self, store: Store, directory: str, holder: int, report: Callable[[], WorkerInfo], reported: WorkerInfo
    ) -> None:
        """`reported` is the report that is in the file already."""
        self._store = store
        self._directory = directory
        self._holder = holder
        self._report = report
        self._reported = reported

    @property
    def worker(self) -> str:
        """The worker's id."""
        return self._reported.id

    async def run(self, commands: CommandListener, notify: Callable[[], None], wake: Callable[[], None]) -> None:
        """Go on until this is cancelled, and call `wake` when there may be a job. Raises BrokerError."""
        version = self._store.data_version()
        while True:
            await asyncio.sleep(INTERVAL)
            await self._store_report()
            await commands.poll()
            if await worker_locks.reap_dead(self._store, self._directory, except_for=self._holder):
                notify()
            await self._store.renew()
            # A publisher may have died after its commit, before it notified anyone.
            if (found := self._store.data_version()) != version:
                version = found
                wake()

    async def _store_report(self) -> None:
        """Store the worker's report, if it has changed."""
        report = self._report()
        if report == self._reported:
            return
        values = (json.dumps(report.to_plain()), self._holder)
        changed = await self._store.write(
            lambda db: db.execute("update holder set report = ? where id = ?", values).rowcount
        )
        if not changed:
            raise BrokerUnavailable(f"{self._store.display_path}: another process took this worker for dead.")
        self._reported = report
