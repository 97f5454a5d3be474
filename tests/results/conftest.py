"""Those who wait for jobs: coroutine tests as in the contract, on both brokers."""

import secrets
from collections.abc import Iterator
from pathlib import Path

import pytest

from palermo.contract.broker import SessionParameters
from palermo.settings.settings import Settings
from tests.contract.conftest import pytest_pyfunc_call, runner
from tests.rabbitmq_tidy import Tidy
from tests.worker.conftest import any_site, site

__all__ = ["any_site", "pytest_pyfunc_call", "runner", "site"]


@pytest.fixture(params=["sqlite", "rabbitmq"])
def settings(request: pytest.FixtureRequest, tidy: Tidy, tmp_path: Path) -> Iterator[Settings]:
    """Each broker, with nothing in it. With patience: these tests are not about how fast a broker is."""
    if request.param == "sqlite":
        yield Settings(url=f"sqlite:///{tmp_path}/jobs.db", publish_timeout=30)
        return
    url, exchange = request.getfixturevalue("rabbitmq_url"), f"test-{secrets.token_hex(6)}"
    settings = Settings(url=url, exchange=exchange, publish_timeout=30)
    yield settings
    tidy(settings.url, settings.exchange)


@pytest.fixture
def session(settings: Settings) -> SessionParameters:
    return settings.session("test")
