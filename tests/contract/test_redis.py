"""Redis keeps the contract."""

import uuid

import pytest

from palermo.brokers.redis.broker import RedisBroker
from palermo.contract.broker import Broker, SessionParameters
from palermo.core.address import parse_url
from tests.contract.broker_contract import BrokerContract
from tests.contract.tools import PATIENT
from tests.redis_node import RedisNode


class TestRedis(BrokerContract):
    @pytest.fixture
    def session(self, node: RedisNode) -> SessionParameters:
        # One server for all tests: an exchange of its own keeps each of them apart.
        return SessionParameters(address=parse_url(node.url), exchange=f"test-{uuid.uuid4().hex[:8]}", timeout=PATIENT)

    async def take_away_behind_our_back(self, broker: Broker) -> None:
        assert isinstance(broker, RedisBroker)
        await broker._store.call("DEL", broker._store.key("jobs"), broker._store.key("queue:jobs"))
