"""Those who wait for jobs: coroutine tests as in the contract, on both brokers."""

import secrets
from collections.abc import Iterator
from pathlib import Path

import pytest

from palermo.broker import Session
from palermo.config import Settings
from tests.contract.conftest import pytest_pyfunc_call, runner
from tests.rabbitmq_tidy import delete_all
from tests.worker.conftest import any_site, site

__all__ = ["any_site", "pytest_pyfunc_call", "runner", "site"]


@pytest.fixture(params=["sqlite", "rabbitmq"])
def settings(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Settings]:
    """Each broker, with nothing in it."""
    if request.param == "sqlite":
        yield Settings(url=f"sqlite:///{tmp_path}/jobs.db")
        return
    settings = Settings(url=request.getfixturevalue("rabbitmq_url"), exchange=f"test-{secrets.token_hex(6)}")
    yield settings
    delete_all(settings.url, settings.exchange)


@pytest.fixture
def session(settings: Settings) -> Session:
    return settings.session("test")
