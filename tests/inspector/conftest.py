"""An inspector on the embedded broker; tests/contract holds the brokers to the same answers."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from palermo.client.client import Client
from palermo.inspector.inspector import Inspector
from palermo.settings.settings import Settings


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    """With patience: these tests are not about how fast a broker is."""
    return Settings(url=f"sqlite:///{tmp_path}/jobs.db", publish_timeout=30)


@pytest.fixture
def client(settings: Settings) -> Iterator[Client]:
    with Client(settings) as client:
        yield client


@pytest.fixture
def inspector(client: Client) -> Inspector:
    return Inspector(client)
