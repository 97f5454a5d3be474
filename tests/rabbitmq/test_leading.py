"""A leader that is stopped while it stops: nothing of it may stay, or no other session could lead."""

import asyncio

import pytest

from palermo.brokers.rabbitmq.broker import open_rabbitmq
from palermo.contract.broker import SessionParameters
from palermo.core.address import parse_url
from palermo.core.election import Duty
from tests.contract.tools import PATIENT
from tests.helpers import HANGS

pytestmark = pytest.mark.anyio


@pytest.mark.parametrize("turns", range(8))
async def test_another_session_leads_after_one_whose_publishing_connection_was_lost(
    rabbitmq_url: str, exchange: str, turns: int
) -> None:
    session = SessionParameters(address=parse_url(rabbitmq_url), exchange=exchange, timeout=PATIENT)
    first, second = await open_rabbitmq(session), await open_rabbitmq(session)
    leading = asyncio.ensure_future(first.run_scheduler())
    async with asyncio.timeout(HANGS):
        while len(first.duties) < len(Duty):  # noqa: ASYNC110 - nobody tells
            await asyncio.sleep(0.01)

        first._connection.raw.abort()
        await first._connection.lost.wait()
        for _ in range(turns):
            await asyncio.sleep(0)
        leading.cancel()
        await asyncio.wait({leading})

        standing_by = asyncio.ensure_future(second.run_scheduler())
        while len(second.duties) < len(Duty):  # noqa: ASYNC110 - as above
            await asyncio.sleep(0.01)
    standing_by.cancel()
    await asyncio.wait({standing_by})
    await first.close()
    await second.close()
