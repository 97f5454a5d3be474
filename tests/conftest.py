"""The brokers that tests run on, and exchanges of their own to run on them.

A node is started when the first test asks for it, and never for tests that do not.
"""

import asyncio
import contextlib
import gc
import inspect
import os
import secrets
import signal
from collections.abc import Callable, Generator, Iterator
from pathlib import Path

import hypothesis
import pika
import pytest
from pika.adapters.blocking_connection import BlockingChannel

from palermo.client import client as clients
from palermo.client.client import Client
from palermo.core.address import parse_url
from palermo.inspector.inspector import Inspector
from palermo.jobs import hooks, registry
from palermo.settings.settings import Settings
from tests import chromium_found, promtool_found, rabbitmq_found, redis_node
from tests.brokers import BROKERS, url_of_broker
from tests.debian import NotInstalled
from tests.harness.rig import Rig
from tests.rabbitmq.patience import have_patience
from tests.rabbitmq_node import Node, url_of, with_durable_streams
from tests.rabbitmq_tidy import Tidy
from tests.scale import scaled
from tests.tcp_proxy import TcpProxy

# A shell that starts the tests in the background has SIGINT ignored, and what is ignored stays so in every program
# that a test starts: none of them would hear of Ctrl-C.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# How long an example takes says something about the machine, which is shared, and nothing about the code.
hypothesis.settings.register_profile(
    "shared",
    deadline=None,
    max_examples=scaled(40, 200),
    suppress_health_check=[hypothesis.HealthCheck.too_slow],
    print_blob=True,
)
hypothesis.settings.load_profile("shared")

#: What has to be installed before any test that asks for one of these fixtures.
_NEEDED: dict[str, Callable[[], object]] = {
    "rabbitmq_url": lambda: rabbitmq_found.given_url() or rabbitmq_found.find(),
    "module_node": rabbitmq_found.find,
    "redis_url": redis_node.find_server,
    "chromium": chromium_found.find,
    "promtool": promtool_found.find,
}


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Spare the garbage collector what is imported and collected, which stays until the end.

    It would search half a million objects again and again, while tests are collected and while they run.
    """
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


@pytest.fixture
def own_world(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """No settings in the environment, no hooks, no back ends, no default client; jobs of the test's own end with it."""
    for name in [name for name in os.environ if name.startswith("PALERMO_") and "TEST" not in name]:
        monkeypatch.delenv(name)
    monkeypatch.setattr(hooks, "registered", hooks.Hooks(hooks.JOB_HOOKS + hooks.WORKER_HOOKS))
    monkeypatch.setattr(hooks, "_backends", ())
    monkeypatch.setattr(registry, "_jobs", dict(registry._jobs))
    monkeypatch.setattr(clients, "_default", None)
    yield
    if clients._default is not None:
        clients._default.close()


@pytest.fixture
def runner() -> Iterator[asyncio.Runner]:
    """The loop of a coroutine test, for fixtures that use the same one."""
    with asyncio.Runner() as runner:
        yield runner


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    """Run a coroutine test on a loop of its own: that of the fixture `runner`, if its fixtures use one."""
    if not inspect.iscoroutinefunction(pyfuncitem.obj):
        return None
    given = pyfuncitem.funcargs
    test = pyfuncitem.obj(**{name: given[name] for name in inspect.signature(pyfuncitem.obj).parameters})
    given["runner"].run(test) if "runner" in given else asyncio.run(test)
    return True


def pytest_collection_finish(session: pytest.Session) -> None:
    """Install what the collected tests need: here no test's time limit runs, and a download may take minutes."""
    if session.config.option.collectonly:
        return
    wanted = {name for item in session.items for name in getattr(item, "fixturenames", ())}
    for name, install in _NEEDED.items():
        # What cannot be had fails the tests that ask for it, not those that do not.
        if name in wanted:
            with contextlib.suppress(NotInstalled):
                install()


@pytest.fixture(scope="session")
def tidy() -> Tidy:
    """Deletes what a test left on the broker that all share."""
    return Tidy()


@pytest.fixture(scope="session")
def rabbitmq_url(tidy: Tidy) -> Iterator[str]:
    """A broker that all tests share and none may harm."""
    if url := rabbitmq_found.given_url():
        yield url
        return
    with rabbitmq_found.find()() as node:
        if node.evaluates_at_once:
            tidy.nodes[url_of(node)] = node
        yield url_of(node)


@pytest.fixture(scope="session")
def redis_url() -> Iterator[str]:
    """A Redis that all tests share and none may harm."""
    with redis_node.running() as node:
        yield node.url


@pytest.fixture
def exchange(request: pytest.FixtureRequest, tidy: Tidy) -> Iterator[str]:
    """An exchange name of this test's own, so that tests on one broker never meet; what it left there is deleted."""
    name = f"test-{secrets.token_hex(6)}"
    yield name
    if "rabbitmq_url" in request.fixturenames:
        tidy(request.getfixturevalue("rabbitmq_url"), name)


@pytest.fixture
def proxy(rabbitmq_url: str) -> Iterator[TcpProxy]:
    """A way to the broker that all tests share."""
    with TcpProxy(*parse_url(rabbitmq_url).hosts[0]) as proxy:
        yield proxy


@pytest.fixture
def channel(rabbitmq_url: str) -> Iterator[BlockingChannel]:
    """Another program's way to the broker."""
    with pika.BlockingConnection(pika.URLParameters(rabbitmq_url)) as connection:
        yield connection.channel()


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    """An embedded broker of the test's own, with patience: few tests are about how fast a broker is."""
    return Settings(url=f"sqlite:///{tmp_path}/jobs.db", publish_timeout=30.0)


@pytest.fixture(params=BROKERS)
def any_settings(request: pytest.FixtureRequest, tmp_path: Path, exchange: str) -> Settings:
    """Like `settings`, for each broker."""
    return Settings(url=url_of_broker(request, tmp_path), exchange=exchange, publish_timeout=30.0)


@pytest.fixture
def client(settings: Settings) -> Iterator[Client]:
    """A client of the broker that the fixture `settings` names."""
    with Client(settings) as client:
        yield client


@pytest.fixture
def inspector(client: Client) -> Inspector:
    return Inspector(client)


@pytest.fixture
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """What this process asks of workers has an answer of each that lives: on a busy machine it may take seconds."""
    have_patience(monkeypatch)


@pytest.fixture
def sqlite_rig(tmp_path: Path) -> Iterator[Rig]:
    with Rig(tmp_path, module="shop") as rig:
        yield rig


@pytest.fixture
def rabbitmq_rig(rabbitmq_url: str, exchange: str, tmp_path: Path) -> Iterator[Rig]:
    """A user's place, with workers of programs/shop.py, on the broker that all tests share."""
    with Rig(tmp_path, rabbitmq_url, exchange, module="shop") as rig:
        yield rig


@pytest.fixture(params=BROKERS)
def any_rig(request: pytest.FixtureRequest, tmp_path: Path, exchange: str) -> Iterator[Rig]:
    """The same on each broker; a file of tests names the module with its jobs, MODULE."""
    module = getattr(request.module, "MODULE", "crew")
    with Rig(tmp_path, url_of_broker(request, tmp_path), exchange, module=module) as rig:
        yield rig


@pytest.fixture(scope="module")
def module_node() -> Iterator[Node]:
    """A running node of this module's own: for several tests that harm a broker and leave it running."""
    with rabbitmq_found.find()() as node:
        yield with_durable_streams(node)


@pytest.fixture(scope="module")
def shared_node(request: pytest.FixtureRequest, rabbitmq_url: str, tidy: Tidy) -> Node:
    """The node that all share, where a test may make users and stop a process. If it is not ours, the module's own."""
    node: Node = tidy.nodes.get(rabbitmq_url) or request.getfixturevalue("module_node")
    return node
