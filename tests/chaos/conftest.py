"""Places for tests that harm brokers and workers; see tests/acceptance/place.py."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.acceptance.place import Place
from tests.rabbitmq_node import Node, url_of


@pytest.fixture
def sqlite_place(tmp_path: Path) -> Iterator[Place]:
    with Place(tmp_path, f"sqlite:///{tmp_path}/jobs.db", "palermo") as place:
        yield place


@pytest.fixture
def private_place(private_node: Node, tmp_path: Path) -> Iterator[Place]:
    """On a RabbitMQ of the test's own, which it may restart."""
    with Place(tmp_path, url_of(private_node), "palermo") as place:
        yield place
