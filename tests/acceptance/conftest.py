"""Stories of whole programs, as a user runs them: on each broker, unless one is enough or the story is about it."""

from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from tests import redis_node
from tests.brokers import BROKERS, url_of_broker
from tests.harness.rig import Rig
from tests.rabbitmq_node import Node, url_of
from tests.redis_node import RedisNode


def pytest_itemcollected(item: pytest.Item) -> None:
    item.add_marker("slow")


@pytest.fixture(params=BROKERS)
def rig(request: pytest.FixtureRequest, exchange: str, tmp_path: Path) -> Iterator[Rig]:
    """On each broker."""
    with Rig(tmp_path, url_of_broker(request, tmp_path), exchange, module="shop") as rig:
        yield rig


class RestartingBroker(NamedTuple):
    """A server that a test may harm. Its data outlives its process."""

    node: Node | RedisNode
    url: str
    #: What an error names if the server does not answer.
    listens_at: str


@pytest.fixture(scope="module", params=["rabbitmq", "redis"])
def restarting(request: pytest.FixtureRequest) -> Iterator[RestartingBroker]:
    """A broker of this module's own, to stop and kill."""
    if request.param == "redis":
        with redis_node.running() as node:
            yield RestartingBroker(node, node.url, str(node.socket))
    else:
        node = request.getfixturevalue("module_node")
        yield RestartingBroker(node, url_of(node), f"{node.host}:{node.port}")
