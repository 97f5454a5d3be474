"""The session and the loop that many tests of the adapter for RabbitMQ use."""

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest

from palermo.contract.broker import SessionParameters
from palermo.core.address import parse_url
from tests.contract.tools import PATIENT
from tests.harness.rig import Rig


@pytest.fixture
def session(rabbitmq_url: str, exchange: str) -> SessionParameters:
    return SessionParameters(address=parse_url(rabbitmq_url), exchange=exchange, timeout=PATIENT)


@pytest.fixture(scope="module")
def loop() -> Iterator[asyncio.AbstractEventLoop]:
    """A loop for all tests of the module."""
    loop = asyncio.new_event_loop()
    yield loop
    loop.close()


@pytest.fixture
def rig(tmp_path: Path, rabbitmq_url: str, exchange: str) -> Iterator[Rig]:
    """Workers on the broker that all tests share."""
    rig = Rig(tmp_path, url=rabbitmq_url, exchange=exchange)
    yield rig
    rig.close()
