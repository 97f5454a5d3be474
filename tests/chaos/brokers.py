"""Sessions with a broker for a test that is no coroutine itself."""

import asyncio
from collections.abc import Awaitable, Callable

from palermo.contract.broker import SessionParameters, open_broker
from tests.helpers import HANGS


def with_brokers(session: SessionParameters, work: Callable[..., Awaitable[None]], *, within: float = HANGS) -> None:
    """Do the work with two sessions: the first one leads or publishes, and the other does the rest."""

    async def go() -> None:
        brokers = [await open_broker(session) for _ in range(2)]
        try:
            async with asyncio.timeout(within):
                await work(*brokers)
        finally:
            for broker in brokers:
                await broker.close()

    asyncio.run(go())
