"""The contract as the embedded broker keeps it, in a file and in memory."""

from palermo.brokers.sqlite.broker import SqliteBroker
from palermo.contract.broker import Broker
from tests.contract.broker_contract import BrokerContract


class Embedded(BrokerContract):
    async def take_away_behind_our_back(self, broker: Broker) -> None:
        assert isinstance(broker, SqliteBroker)
        await broker._store.write(lambda db: db.execute("delete from job"))
