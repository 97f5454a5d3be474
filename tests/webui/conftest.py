"""The web pages as they are served: an HTTP server of the test's own, on a broker of the test's own."""

import os
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pika
import pytest

from palermo.settings.settings import Settings
from palermo.webui import tuning
from tests.harness.rig import Rig
from tests.tcp_proxy import TcpProxy
from tests.webui.process import WebProcess
from tests.webui.server import Web, answer_at_the_end

#: Serves the pages with these options of create_app, and an environment that knows only them.
Serve = Callable[..., Web]

#: Starts `palermo web` with these arguments, and these variables in its environment.
Start = Callable[..., WebProcess]

#: Seconds that pages and tests wait for a broker: none of them is about how fast it is.
BROKER_PATIENCE = 30.0


@pytest.fixture(autouse=True)
def _own_world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in list(os.environ):
        if name.startswith("PALERMO_") and not name.startswith(("PALERMO_TEST", "PALERMO_GOLDEN")):
            monkeypatch.delenv(name)
    monkeypatch.setenv("PALERMO_PUBLISH_TIMEOUT", f"{BROKER_PATIENCE:g}")
    # A page shows what there is at the end, however slow the machine is.
    for name, value in (("WAIT", 60.0), ("LONG_WAIT", 60.0), ("GLANCE", 2.0), ("PATIENCE", 2.0)):
        monkeypatch.setattr(tuning, name, value)
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    answer_at_the_end(monkeypatch)


@pytest.fixture
def serve() -> Iterator[Serve]:
    with ExitStack() as servers:

        def start(settings: Settings, **options: Any) -> Web:
            return servers.enter_context(Web(settings, **options))

        yield start


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    with ExitStack() as processes:

        def run(*arguments: str, **environment: str) -> WebProcess:
            return processes.enter_context(WebProcess(tmp_path, *arguments, **environment))

        yield run


@pytest.fixture
def web(settings: Settings, serve: Serve) -> Web:
    """The pages of an embedded broker."""
    return serve(settings)


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Web]:
    """The pages of an embedded broker, once for the module."""
    url = f"sqlite:///{tmp_path_factory.mktemp('shared')}/jobs.db"
    with Web(Settings(url=url, publish_timeout=BROKER_PATIENCE)) as web:
        yield web


@pytest.fixture
def shared_web(served: Web) -> Web:
    """The same with no job in it and in a browser of its own: for tests to which it is all one what was before."""
    served.clear()
    return served


@pytest.fixture
def rig(settings: Settings, tmp_path: Path) -> Iterator[Rig]:
    """Workers on the broker whose pages `web` serves."""
    with Rig(tmp_path, url=settings.url, exchange=settings.exchange) as rig:
        yield rig


@pytest.fixture
def proxied(rabbitmq_url: str, exchange: str) -> Iterator[tuple[TcpProxy, Settings]]:
    """The way to RabbitMQ, which fails when it is told to."""
    address = pika.URLParameters(rabbitmq_url)
    with TcpProxy(address.host, address.port) as proxy:
        url = rabbitmq_url.replace(f":{address.port}/", f":{proxy.port}/")
        yield proxy, Settings(url=url, exchange=exchange)
