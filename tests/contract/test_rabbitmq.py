"""RabbitMQ keeps the contract."""

import asyncio
import uuid
from collections.abc import Iterator
from contextlib import suppress

import pytest

from palermo.broker import Session, open_broker
from palermo.core.address import parse_url
from palermo.errors import NotFound
from tests.contract.broker_contract import BrokerContract


class TestRabbitmq(BrokerContract):
    @pytest.fixture
    def session(self, rabbitmq_url: str, runner: asyncio.Runner) -> Iterator[Session]:
        session = Session(address=parse_url(rabbitmq_url), exchange=f"test-{uuid.uuid4().hex[:8]}")
        yield session

        async def tidy(exchange: str) -> None:
            broker = await open_broker(Session(address=session.address, exchange=exchange))
            for queue in await broker.queues():
                with suppress(NotFound):  # it may be paused and not be there
                    await broker.delete(queue.name)
            await broker.close()

        runner.run(tidy(session.exchange))
        runner.run(tidy(f"{session.exchange}-2"))
