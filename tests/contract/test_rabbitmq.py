"""RabbitMQ keeps the contract."""

import asyncio
import uuid
from collections.abc import Iterator
from contextlib import suppress

import pytest

from palermo.broker import Broker, Session, open_broker
from palermo.core.address import parse_url
from palermo.errors import NotBrowsable, NotFound
from tests.contract.broker_contract import BrokerContract
from tests.contract.consuming import ConsumingContract
from tests.contract.kit import message
from tests.contract.publishing import PublishingContract


class TestRabbitmq(BrokerContract):
    queue_type = "classic"

    @pytest.fixture
    def session(self, rabbitmq_url: str, runner: asyncio.Runner) -> Iterator[Session]:
        session = Session(
            address=parse_url(rabbitmq_url), exchange=f"test-{uuid.uuid4().hex[:8]}", queue_type=self.queue_type
        )
        yield session

        async def tidy(exchange: str) -> None:
            broker = await open_broker(Session(address=session.address, exchange=exchange))
            for queue in await broker.queues():
                with suppress(NotFound):  # it may be paused and not be there
                    await broker.delete(queue.name)
            await broker.close()

        runner.run(tidy(session.exchange))
        runner.run(tidy(f"{session.exchange}-2"))


class TestRabbitmqWithQuorumQueues(TestRabbitmq):
    """What publishers and workers are promised; a quorum queue is not read in order to be shown."""

    queue_type = "quorum"

    async def test_a_queue_is_not_browsed(self, broker: Broker) -> None:
        await broker.publish(message())

        with pytest.raises(NotBrowsable, match="quorum"):
            await broker.browse("jobs")


for _name in dir(BrokerContract):
    if _name.startswith("test_") and not hasattr(PublishingContract, _name) and not hasattr(ConsumingContract, _name):
        setattr(TestRabbitmqWithQuorumQueues, _name, None)
