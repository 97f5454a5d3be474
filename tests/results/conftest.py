"""Those who wait for jobs, on each broker."""

from pathlib import Path

import pytest

from palermo.contract.broker import SessionParameters
from palermo.settings.settings import Settings
from tests.brokers import BROKERS, url_of_broker
from tests.worker.conftest import any_rig, rig

__all__ = ["any_rig", "rig"]


@pytest.fixture(params=BROKERS)
def settings(request: pytest.FixtureRequest, tmp_path: Path, exchange: str) -> Settings:
    """Each broker, with nothing in it. With patience: these tests are not about how fast a broker is."""
    return Settings(url=url_of_broker(request, tmp_path), exchange=exchange, publish_timeout=30)


@pytest.fixture
def session(settings: Settings) -> SessionParameters:
    return settings.session("test")
