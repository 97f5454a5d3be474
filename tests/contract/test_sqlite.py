"""The embedded broker keeps the contract, in a file and in memory."""

import uuid
from pathlib import Path

import pytest

from palermo.brokers.sqlite.broker import SqliteBroker
from palermo.contract.broker import Broker, SessionParameters
from palermo.core.address import parse_url
from tests.contract.broker_contract import BrokerContract
from tests.contract.tools import PATIENT


class Embedded(BrokerContract):
    async def take_away_behind_our_back(self, broker: Broker) -> None:
        assert isinstance(broker, SqliteBroker)
        await broker._store.write(lambda db: db.execute("delete from job"))


class TestSqlite(Embedded):
    @pytest.fixture
    def session(self, tmp_path: Path) -> SessionParameters:
        return SessionParameters(address=parse_url(f"sqlite:///{tmp_path}/jobs.db"), timeout=PATIENT)


class TestSqliteInMemory(Embedded):
    @pytest.fixture
    def session(self) -> SessionParameters:
        # One store for the whole process: an exchange of its own keeps each test apart.
        return SessionParameters(address=parse_url("sqlite:///:memory:"), exchange=f"test-{uuid.uuid4().hex[:8]}")
