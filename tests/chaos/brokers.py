"""Sessions with a broker for a test that harms it."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from palermo.contract.broker import Broker, SessionParameters, open_broker
from tests.helpers import HANGS


@asynccontextmanager
async def two_brokers(session: SessionParameters, *, within: float = HANGS) -> AsyncIterator[tuple[Broker, Broker]]:
    """Two sessions: the first one leads or publishes, and the other does the rest."""
    first, second = await open_broker(session), await open_broker(session)
    try:
        async with asyncio.timeout(within):
            yield first, second
    finally:
        await first.close()
        await second.close()
