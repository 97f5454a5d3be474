"""The sign of life of one consumer, and its look at what others have done meanwhile."""

import asyncio
import json
from collections.abc import Callable

from palermo.brokers.sqlite import holders
from palermo.brokers.sqlite.orders import Listener
from palermo.brokers.sqlite.store import Store
from palermo.crew import WorkerInfo
from palermo.errors import BrokerUnavailable

#: How often we say what we do, and look whether others still live: within a second both must be known.
TICK = 0.25


class Sign:
    """What others see of one worker."""

    def __init__(
        self, store: Store, directory: str, holder: int, report: Callable[[], WorkerInfo], reported: WorkerInfo
    ) -> None:
        """`reported` is what is in the file already."""
        self._store = store
        self._directory = directory
        self._holder = holder
        self._report = report
        self._reported = reported

    @property
    def worker(self) -> str:
        """The worker's id."""
        return self._reported.id

    async def keep(self, orders: Listener, ring: Callable[[], None], wake: Callable[[], None]) -> None:
        """Show it until this is cancelled, and `wake` where there may be a job. Raises BrokerError."""
        version = self._store.data_version()
        while True:
            await asyncio.sleep(TICK)
            await self._show()
            await orders.look()
            if await holders.bury(self._store, self._directory, but=self._holder):
                ring()
            await self._store.renew()
            # The net under the bell: a publisher may have died between its commit and its ring.
            if (found := self._store.data_version()) != version:
                version = found
                wake()

    async def _show(self) -> None:
        """Store the worker's report, if it has changed."""
        report = self._report()
        if report == self._reported:
            return
        values = (json.dumps(report.to_plain()), self._holder)
        changed = await self._store.write(
            lambda db: db.execute("update holder set report = ? where id = ?", values).rowcount
        )
        if not changed:
            raise BrokerUnavailable(f"{self._store.shown}: another process took this worker for dead.")
        self._reported = report
