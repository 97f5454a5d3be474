"""Places for tests that harm brokers and workers; see tests/harness/rig.py."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from palermo.contract.broker import SessionParameters
from palermo.core.address import parse_url
from tests.chaos.outpost import Outpost
from tests.contract.tools import PATIENT
from tests.harness.rig import Rig
from tests.rabbitmq_node import Node, url_of


def pytest_itemcollected(item: pytest.Item) -> None:
    item.add_marker("chaos")


@pytest.fixture
def session(rabbitmq_url: str, exchange: str) -> SessionParameters:
    return SessionParameters(address=parse_url(rabbitmq_url), exchange=exchange, timeout=PATIENT)


@pytest.fixture(scope="module")
def shared(
    request: pytest.FixtureRequest, module_node: Node, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Outpost]:
    """Two workers and a program that enqueues, on a RabbitMQ that the tests of a module harm one after the other.

    A module that wants no line to be lost says so with a HEARTBEAT that a machine which stands still does not miss.
    """
    heartbeat = getattr(request.module, "HEARTBEAT", 2)
    with Outpost(Path(tmp_path_factory.mktemp("outpost")), module_node, heartbeat=heartbeat) as outpost:
        yield outpost


@pytest.fixture
def outpost(shared: Outpost) -> Outpost:
    """The same, for one test."""
    shared.seen()
    return shared


@pytest.fixture
def rig(module_node: Node, exchange: str, tmp_path: Path) -> Iterator[Rig]:
    """The user's place, on a RabbitMQ that the tests of a module may harm."""
    with Rig(tmp_path, url_of(module_node), exchange, module="shop") as rig:
        yield rig
