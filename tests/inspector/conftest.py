"""An inspector on each broker: every test in this folder that asks for one runs on all."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from palermo.client.client import Client
from palermo.inspector.inspector import Inspector
from palermo.settings.settings import Settings
from tests.brokers import BROKERS, url_of_broker


@pytest.fixture(params=BROKERS)
def settings(request: pytest.FixtureRequest, tmp_path: Path, exchange: str) -> Settings:
    """With patience: these tests are not about how fast a broker is."""
    return Settings(url=url_of_broker(request, tmp_path), exchange=exchange, publish_timeout=30)


@pytest.fixture
def client(settings: Settings) -> Iterator[Client]:
    client = Client(settings)
    yield client
    client.close()


@pytest.fixture
def inspector(client: Client) -> Inspector:
    return Inspector(client)
