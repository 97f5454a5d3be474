"""Has the hook queue_size set the pace of a worker, by how many jobs wait in its queues."""

import asyncio
import time
from collections.abc import Mapping

from palermo.core.queue_selection import QueueSelection
from palermo.errors import PalermoError
from palermo.worker.parent.broker_session import BrokerSession
from palermo.worker.parent.worker_state import WorkerState

#: The least seconds between two questions to the broker.
_EVERY = 1.0

#: The pause after a question is _EVERY, or this many times as long as it took: with many queues it costs little too.
_PAUSE_FACTOR = 20.0


async def keep_pace(worker: WorkerState, selection: QueueSelection) -> None:
    """Report the sizes of the queues to the hook again and again, until cancelled; it answers with the pace."""
    while True:
        began = time.monotonic()
        try:
            session = worker.sessions.current
            sizes = None if session is None else await _sizes(session, selection)
        except PalermoError:
            sizes, began = None, time.monotonic()  # if the session is lost, the slots notice that themselves
        took = time.monotonic() - began
        if sizes is not None:
            worker.pace = await worker.pool.hook("queue_size", sizes)
        await asyncio.sleep(max(_EVERY, _PAUSE_FACTOR * took))


async def _sizes(session: BrokerSession, selection: QueueSelection) -> Mapping[str, int]:
    pending = {queue.name: queue.pending for queue in await session.broker.queues()}
    return {name: pending[name] for name in selection.select(pending)}
