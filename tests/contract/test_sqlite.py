"""The embedded broker keeps the contract."""

from pathlib import Path

import pytest

from palermo.brokers.sqlite.broker import SqliteBroker
from palermo.contract.broker import Broker, SessionParameters
from palermo.core.address import parse_url
from tests.contract.broker_contract import BrokerContract
from tests.contract.tools import PATIENT


class TestSqlite(BrokerContract):
    @pytest.fixture
    def session(self, tmp_path: Path) -> SessionParameters:
        return SessionParameters(address=parse_url(f"sqlite:///{tmp_path}/jobs.db"), timeout=PATIENT)

    async def take_away_behind_our_back(self, broker: Broker) -> None:
        assert isinstance(broker, SqliteBroker)
        await broker._store.write(lambda db: db.execute("delete from job"))
