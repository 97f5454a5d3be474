"""What is said of priorities that change nothing: the queue was made without them."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
from msgspec.structs import replace

from palermo.contract.broker import Broker, SessionParameters, open_broker
from tests.contract.prioritizing import urgent
from tests.contract.tools import consume, message

#: What the log says of such a queue.
_SAID = "priorities change little or nothing in this queue queue=mail"


@asynccontextmanager
async def opened(*sessions: SessionParameters) -> AsyncIterator[list[Broker]]:
    brokers = [await open_broker(session) for session in sessions]
    try:
        yield brokers
    finally:
        for broker in brokers:
            await broker.close()


async def test_a_program_says_once_that_its_priorities_change_nothing(
    session: SessionParameters, caplog: pytest.LogCaptureFixture
) -> None:
    async with opened(session, session) as (other, program):
        await other.publish(message("plain", "mail"))

        for number in range(3):
            await program.publish(urgent(f"urgent-{number}", 9, "mail"))

    assert caplog.text.count(_SAID) == 1
    assert "`palermo migrate mail --type priority` makes it anew with them" in caplog.text


async def test_a_worker_says_once_that_its_declared_priorities_change_nothing(
    session: SessionParameters, caplog: pytest.LogCaptureFixture
) -> None:
    async with opened(session, replace(session, prioritized=frozenset({"mail", "new"}))) as (other, worker):
        await other.publish(message("plain", "mail"))

        await consume(worker, "mail,new")

    assert caplog.text.count(_SAID) == 1
    assert "queue=new" not in caplog.text
