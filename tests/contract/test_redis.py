"""Redis keeps the contract."""

import pytest

from palermo.brokers.redis.broker import RedisBroker
from palermo.contract.broker import Broker, SessionParameters
from tests.contract.broker_contract import BrokerContract


class TestRedis(BrokerContract):
    @pytest.fixture
    def session(self, redis_session: SessionParameters) -> SessionParameters:
        return redis_session

    async def take_away_behind_our_back(self, broker: Broker) -> None:
        assert isinstance(broker, RedisBroker)
        await broker._store.call("DEL", broker._store.key("jobs"), broker._store.key("queue:jobs"))
