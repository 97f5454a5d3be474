"""A worker's part in bringing delayed jobs to their queues when they are due."""

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from palermo.broker import Broker
from palermo.errors import BrokerError

log = logging.getLogger("palermo.worker")

#: Seconds that giving up the lead may take; a session that is lost may not answer.
_GOODBYE = 5.0


@asynccontextmanager
async def keeping_time(broker: Broker, *, wanted: bool) -> AsyncIterator[None]:
    """Keep the time in this session as long as the context lasts."""
    task = asyncio.ensure_future(_keep(broker)) if wanted else None
    try:
        yield
    finally:
        if task is not None:
            task.cancel()
            await asyncio.wait({task}, timeout=_GOODBYE)


async def _keep(broker: Broker) -> None:
    try:
        await broker.keep_time()
    except BrokerError as error:
        log.warning("no longer keeping the time broker=%s error=%r", broker.describe(), str(error))
    except Exception:  # the edge of the worker: a broker's bug here must not go unseen, nor end the worker
        log.exception("no longer keeping the time broker=%s", broker.describe())
