"""Coroutine tests: each runs on a loop of its own, the same one that its fixtures use."""

import asyncio
import inspect
from collections.abc import Iterator

import pytest

from palermo.contract.broker import Broker
from tests import redis_node
from tests.redis_node import RedisNode


@pytest.fixture(autouse=True)
def runner() -> Iterator[asyncio.Runner]:
    with asyncio.Runner() as runner:
        yield runner


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    if not inspect.iscoroutinefunction(pyfuncitem.obj):
        return None
    runner = pyfuncitem.funcargs["runner"]
    assert isinstance(runner, asyncio.Runner)
    names = inspect.signature(pyfuncitem.obj).parameters
    runner.run(pyfuncitem.obj(**{name: pyfuncitem.funcargs[name] for name in names}))
    return True


@pytest.fixture(scope="module")
def node() -> Iterator[RedisNode]:
    """A Redis of the module's own."""
    with redis_node.running() as node:
        yield node


@pytest.fixture
def sessions(runner: asyncio.Runner) -> Iterator[list[Broker]]:
    """The sessions that the test opens; they are closed at its end."""
    opened: list[Broker] = []
    yield opened
    for broker in reversed(opened):
        runner.run(broker.close())
