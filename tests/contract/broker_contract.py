"""The contract of every broker. A broker's own test module subclasses BrokerContract and gives it a session."""

import asyncio
from typing import Any

import pytest
from msgspec.structs import replace

from palermo.contract.broker import Broker, SessionParameters, open_broker
from tests.contract.batching import BatchingContract, SavingContract
from tests.contract.browsing import LookingContract, SweepingContract
from tests.contract.combining import CombiningContract
from tests.contract.events import EventsContract
from tests.contract.journaling import JournalingContract
from tests.contract.limiting import LimitingContract
from tests.contract.offering import OfferingContract
from tests.contract.pausing import MarkingContract
from tests.contract.prioritizing import PrioritizingContract
from tests.contract.publishing import ConsumingContract, PublishingContract
from tests.contract.recurring import RecurringContract
from tests.contract.separating import SeparatingContract
from tests.contract.tenants import TenantingContract
from tests.contract.timing import RetryingContract, TimingContract
from tests.contract.tools import Open
from tests.contract.unique_jobs import KeyingContract
from tests.contract.worker_commands import SteeringContract


class BrokerContract(
    PublishingContract,
    ConsumingContract,
    OfferingContract,
    BatchingContract,
    SavingContract,
    RetryingContract,
    LookingContract,
    SweepingContract,
    SteeringContract,
    MarkingContract,
    TimingContract,
    RecurringContract,
    JournalingContract,
    EventsContract,
    PrioritizingContract,
    LimitingContract,
    KeyingContract,
    TenantingContract,
    CombiningContract,
    SeparatingContract,
):
    @pytest.fixture
    def session(self) -> SessionParameters:
        """A broker that holds nothing of this exchange."""
        raise NotImplementedError

    @pytest.fixture
    def another(self, session: SessionParameters, sessions: list[Broker]) -> Open:
        """Opens a session, with some parameters changed."""

        async def another(**changes: Any) -> Broker:
            sessions.append(await open_broker(replace(session, **changes)))
            return sessions[-1]

        return another

    @pytest.fixture
    def broker(self, runner: asyncio.Runner, another: Open) -> Broker:
        return runner.run(another())
