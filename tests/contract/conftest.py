"""Sessions, and a Redis of its own, for the tests of what brokers promise."""

import asyncio
from collections.abc import Iterator

import pytest

from palermo.contract.broker import Broker
from tests import redis_node
from tests.redis_node import RedisNode


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
