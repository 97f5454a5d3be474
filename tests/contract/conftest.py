"""Sessions for the tests of what brokers promise: on a file of the test's own, and on a Redis of the module's own."""

import asyncio
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from palermo.brokers.redis.broker import RedisBroker
from palermo.brokers.sqlite import SqliteBroker
from palermo.contract.broker import Broker, SessionParameters, open_broker
from palermo.core.address import parse_url
from palermo.core.queue_selection import QueueSelection
from tests import redis_node
from tests.contract.files import opened
from tests.contract.offering import Slots, Start
from tests.contract.tools import PATIENT, OpenRedis
from tests.contract.workers import Report
from tests.redis_node import RedisNode


@pytest.fixture
def sessions(runner: asyncio.Runner) -> Iterator[list[Broker]]:
    """The sessions that the test opens; they are closed at its end."""
    opened: list[Broker] = []
    yield opened
    for broker in reversed(opened):
        runner.run(broker.close())


@pytest.fixture
def start(runner: asyncio.Runner) -> Iterator[Start]:
    """Starts slots that take plain jobs as they are offered, and stops them after the test."""
    made: list[Slots] = []

    async def slots(broker: Broker, queues: str = "jobs", *, count: int = 1, takes: bool = True) -> Slots:
        report = Report(queues, slots=count)
        consumer = await broker.consume(QueueSelection.parse(queues), slots=count, tag=report.info.id, report=report)
        made.append(Slots(consumer, count, takes=takes))
        return made[-1]

    async def stop() -> None:
        for slots in made:
            for receiving in slots.receiving.values():
                receiving.cancel()
            await asyncio.gather(*slots.receiving.values(), return_exceptions=True)
            await slots.consumer.close()

    yield slots
    runner.run(stop())


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "jobs.db"


@pytest.fixture
def broker(runner: asyncio.Runner, path: Path) -> Iterator[SqliteBroker]:
    broker = runner.run(opened(path))
    yield broker
    runner.run(broker.close())


@pytest.fixture(scope="module")
def node() -> Iterator[RedisNode]:
    with redis_node.running() as node:
        yield node


@pytest.fixture
def redis_session(node: RedisNode) -> SessionParameters:
    """One server for all tests: an exchange of its own keeps each of them apart."""
    return SessionParameters(address=parse_url(node.url), exchange=f"test-{uuid.uuid4().hex[:8]}", timeout=PATIENT)


@pytest.fixture
def open_redis(redis_session: SessionParameters, sessions: list[Broker]) -> OpenRedis:
    async def opened(parameters: SessionParameters = redis_session) -> RedisBroker:
        broker = await open_broker(parameters)
        assert isinstance(broker, RedisBroker)
        sessions.append(broker)
        return broker

    return opened


@pytest.fixture
def redis_broker(runner: asyncio.Runner, open_redis: OpenRedis) -> RedisBroker:
    return runner.run(open_redis())
