"""Programs that wait for jobs: on SQLite, and on each broker where it matters to them."""

from pathlib import Path

import pytest

from palermo.contract.broker import SessionParameters
from palermo.settings.settings import Settings
from tests.brokers import BROKERS, url_of_broker
from tests.worker.conftest import rig

__all__ = ["rig"]

#: Seconds for the broker: these tests are not about how fast it is.
PATIENT = 30


@pytest.fixture
def session(tmp_path: Path) -> SessionParameters:
    """A broker with nothing in it."""
    return Settings(url=f"sqlite:///{tmp_path}/jobs.db", publish_timeout=PATIENT).session("test")


@pytest.fixture(params=BROKERS)
def any_session(request: pytest.FixtureRequest, tmp_path: Path, exchange: str) -> SessionParameters:
    """Each broker, with nothing in it."""
    settings = Settings(url=url_of_broker(request, tmp_path), exchange=exchange, publish_timeout=PATIENT)
    return settings.session("test")
