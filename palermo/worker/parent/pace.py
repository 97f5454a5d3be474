"""Has the hook queue_size set the pace of a worker, by how many jobs wait in its queues."""

import asyncio
import time

from palermo.errors import PalermoError
from palermo.worker.parent.serving import served_queues
from palermo.worker.parent.worker_state import WorkerState

#: The least seconds between two questions to the broker.
_EVERY = 1.0

#: The pause after a question is _EVERY, or this many times as long as it took: with many queues it costs little too.
_PAUSE_FACTOR = 20.0


async def keep_pace(worker: WorkerState) -> None:
    """Report the sizes of the queues to the hook again and again, until cancelled; it answers with the pace."""
    while True:
        began = time.monotonic()
        try:
            session = worker.sessions.current
            queues = None if session is None else await served_queues(session.broker, worker.selection)
        except PalermoError:
            queues, began = None, time.monotonic()  # if the session is lost, the slots notice that themselves
        took = time.monotonic() - began
        if queues is not None:
            worker.pace = await worker.pool.hook("queue_size", {queue.name: queue.pending for queue in queues})
        await asyncio.sleep(max(_EVERY, _PAUSE_FACTOR * took))
