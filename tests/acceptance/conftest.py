"""Each test here runs on every broker, unless it is about one of them."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests import redis_node
from tests.acceptance.restarting import RestartingBroker
from tests.brokers import BROKERS, url_of_broker
from tests.harness.rig import Rig
from tests.rabbitmq.patience import have_patience
from tests.rabbitmq_node import url_of


def pytest_itemcollected(item: pytest.Item) -> None:
    item.add_marker("slow")


@pytest.fixture(params=BROKERS)
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """A broker; on those that are shared, `exchange` is the test's own."""
    return url_of_broker(request, tmp_path)


@pytest.fixture
def rig(url: str, exchange: str, tmp_path: Path) -> Iterator[Rig]:
    """The user's place, on each broker."""
    with Rig(tmp_path, url, exchange, module="shop") as rig:
        yield rig


@pytest.fixture
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """What this process asks of workers has an answer of each that lives: on a busy machine it may take seconds."""
    have_patience(monkeypatch)


@pytest.fixture(scope="module", params=["rabbitmq", "redis"])
def restarting(request: pytest.FixtureRequest) -> Iterator[RestartingBroker]:
    """A broker of this module's own, to stop and kill."""
    if request.param == "redis":
        with redis_node.running() as node:
            yield RestartingBroker(node, url=node.url, listens_at=str(node.socket))
    else:
        node = request.getfixturevalue("module_node")
        yield RestartingBroker(node, url=url_of(node), listens_at=f"{node.host}:{node.port}")


@pytest.fixture
def sqlite_rig(exchange: str, tmp_path: Path) -> Iterator[Rig]:
    """The user's place, on the embedded broker."""
    with Rig(tmp_path, f"sqlite:///{tmp_path}/jobs.db", exchange, module="shop") as rig:
        yield rig


@pytest.fixture
def rabbitmq_rig(rabbitmq_url: str, exchange: str, tmp_path: Path) -> Iterator[Rig]:
    """The user's place, on RabbitMQ."""
    with Rig(tmp_path, rabbitmq_url, exchange, module="shop") as rig:
        yield rig
