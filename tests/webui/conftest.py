"""The web pages as they are served: an HTTP server of the test's own, on a broker of the test's own."""

import os
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from palermo.config import Settings
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
