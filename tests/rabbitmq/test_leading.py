"""A leader that is stopped while it stops: nothing of it may stay, or no other session could lead."""

import asyncio

import pytest

from palermo.brokers.rabbitmq.broker import open_rabbitmq
from palermo.contract.broker import SessionParameters
from palermo.core.address import parse_url
from palermo.core.election import Duty
from palermo.errors import BrokerRefused, BrokerUnavailable
from tests.contract.tools import PATIENT
from tests.contract.unique_jobs import ask, keyed
from tests.helpers import HANGS
from tests.rabbitmq_node import Node, add_user, set_permissions, url_of


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


async def test_a_user_who_may_not_read_is_told_which_permissions_a_unique_job_needs(
    module_node: Node, exchange: str
) -> None:
    add_user(module_node, "writer", "secret")
    set_permissions(module_node, "writer", ".*", ".*", "^$")
    url = url_of(module_node, user="writer", password="secret")
    broker = await open_rabbitmq(SessionParameters(address=parse_url(url), exchange=exchange, timeout=PATIENT))

    with pytest.raises(BrokerRefused, match=r"refused for user 'writer'.* read permission"):
        await ask(broker, keyed("1"))

    await broker.close()


async def test_a_session_that_is_being_closed_asks_no_leader_any_more(session: SessionParameters) -> None:
    broker = await open_rabbitmq(session)
    await broker._leader_client.close()

    with pytest.raises(BrokerUnavailable, match="is being closed"):
        await ask(broker, keyed("1"))

    await broker.close()
