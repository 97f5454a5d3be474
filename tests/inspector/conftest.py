"""An inspector on each broker: every test in this folder that asks for one runs on both."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from palermo.client import Client
from palermo.config import Settings
from palermo.inspector import Inspector


@pytest.fixture(params=["sqlite", "rabbitmq"])
def settings(request: pytest.FixtureRequest, tmp_path: Path) -> Settings:
    if request.param == "sqlite":
        return Settings(url=f"sqlite:///{tmp_path}/jobs.db")
    return Settings(url=request.getfixturevalue("rabbitmq_url"), exchange=request.getfixturevalue("exchange"))


@pytest.fixture
def client(settings: Settings) -> Iterator[Client]:
    client = Client(settings)
    yield client
    client.close()


@pytest.fixture
def inspector(client: Client) -> Inspector:
    return Inspector(client)
