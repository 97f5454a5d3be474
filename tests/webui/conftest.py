"""The web pages as they are served: an HTTP server of the test's own, on a broker of the test's own."""

import os
import secrets
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from palermo.config import Settings
from tests.rabbitmq_tidy import delete_all
from tests.webui.server import Web

#: Serves the pages with these options of create_app, and an environment that knows only them.
Serve = Callable[..., Web]


@pytest.fixture(autouse=True)
def _own_world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in os.environ if name.startswith("PALERMO_") and "TEST" not in name]:
        monkeypatch.delenv(name)
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    return Settings(url=f"sqlite:///{tmp_path}/jobs.db")


@pytest.fixture(params=["sqlite", "rabbitmq"])
def any_settings(request: pytest.FixtureRequest, tmp_path: Path) -> Settings:
    """The same on each broker."""
    if request.param == "sqlite":
        return Settings(url=f"sqlite:///{tmp_path}/jobs.db")
    return Settings(url=request.getfixturevalue("rabbitmq_url"), exchange=request.getfixturevalue("exchange"))


@pytest.fixture
def serve() -> Iterator[Serve]:
    with ExitStack() as servers:

        def start(settings: Settings, **options: Any) -> Web:
            return servers.enter_context(Web(settings, **options))

        yield start


@pytest.fixture
def web(settings: Settings, serve: Serve) -> Web:
    """The pages of an embedded broker."""
    return serve(settings)


@pytest.fixture
def any_web(any_settings: Settings, serve: Serve) -> Web:
    """The same on each broker."""
    return serve(any_settings)


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Web]:
    """The pages of an embedded broker, once for the module."""
    with Web(Settings(url=f"sqlite:///{tmp_path_factory.mktemp('shared')}/jobs.db")) as web:
        yield web


@pytest.fixture
def shared_web(served: Web) -> Web:
    """The same with no job in it and in a browser of its own: for tests to which it is all one what was before."""
    served.clear()
    return served


@pytest.fixture(scope="module", params=["sqlite", "rabbitmq"])
def any_served(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Web]:
    """The pages of each broker, once for the module; what tests leave there stays until its end."""
    if request.param == "sqlite":
        with Web(Settings(url=f"sqlite:///{tmp_path_factory.mktemp('shared')}/jobs.db")) as web:
            yield web
        return
    settings = Settings(url=request.getfixturevalue("rabbitmq_url"), exchange=f"test-{secrets.token_hex(6)}")
    with Web(settings) as web:
        yield web
    delete_all(settings.url, settings.exchange)
