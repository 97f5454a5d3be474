"""Has the hook queue_size set the pace of a worker, by how many jobs wait in its queues."""

import asyncio
import time
from collections.abc import Mapping

from palermo.core.queue_selection import QueueSelection
from palermo.errors import PalermoError
from palermo.worker.parent.broker_session import BrokerSessions
from palermo.worker.pools.pool import Pool

#: The least seconds between two questions to the broker.
_EVERY = 1.0

#: The pause after a question is _EVERY, or this many times as long as it took: with many queues it costs little too.
_PAUSE_FACTOR = 20.0


class Pace:
    """The least time between the starts of two jobs in a slot, as the hook wants it."""

    def __init__(self, sessions: BrokerSessions, selection: QueueSelection, pool: Pool) -> None:
        #: Seconds.
        self.seconds = 0.0
        self._sessions = sessions
        self._selection = selection
        self._pool = pool

    async def run(self) -> None:
        """Tell the hook the sizes of the queues again and again, until cancelled."""
        while True:
            began = time.monotonic()
            try:
                sizes = await self._sizes()
            except PalermoError:
                sizes, began = None, time.monotonic()  # if the session is lost, the slots notice that themselves
            took = time.monotonic() - began
            if sizes is not None:
                self.seconds = await self._pool.hook("queue_size", sizes)
            await asyncio.sleep(max(_EVERY, _PAUSE_FACTOR * took))

    async def _sizes(self) -> Mapping[str, int] | None:
        session = self._sessions.current
        if session is None:
            return None
        pending = {queue.name: queue.pending for queue in await session.broker.queues()}
        return {name: pending[name] for name in self._selection.select(pending)}
