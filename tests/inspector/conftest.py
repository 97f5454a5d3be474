"""An inspector on each broker: every test in this folder that asks for one runs on both."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from palermo.client.client import Client
from palermo.inspector.inspector import Inspector
from palermo.settings.settings import Settings


@pytest.fixture(params=["sqlite", "rabbitmq"])
def settings(request: pytest.FixtureRequest, tmp_path: Path) -> Settings:
    """With patience: these tests are not about how fast a broker is."""
    if request.param == "sqlite":
        return Settings(url=f"sqlite:///{tmp_path}/jobs.db", publish_timeout=30)
    url, exchange = request.getfixturevalue("rabbitmq_url"), request.getfixturevalue("exchange")
    return Settings(url=url, exchange=exchange, publish_timeout=30)


@pytest.fixture
def client(settings: Settings) -> Iterator[Client]:
    client = Client(settings)
    yield client
    client.close()


@pytest.fixture
def inspector(client: Client) -> Inspector:
    return Inspector(client)
