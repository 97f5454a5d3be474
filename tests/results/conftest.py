"""Programs that wait for jobs: on SQLite, and on each broker where it matters to them."""

import pytest

from palermo.contract.broker import SessionParameters
from palermo.settings.settings import Settings
from tests.worker.conftest import rig

__all__ = ["rig"]


@pytest.fixture
def session(settings: Settings) -> SessionParameters:
    """A broker with nothing in it."""
    return settings.session("test")


@pytest.fixture
def any_session(any_settings: Settings) -> SessionParameters:
    """Each broker, with nothing in it."""
    return any_settings.session("test")
