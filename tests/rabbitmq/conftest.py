"""The session and the loop that many tests of the adapter for RabbitMQ use."""

import asyncio
from collections.abc import Iterator

import pytest

from palermo.contract.broker import SessionParameters
from palermo.core.address import parse_url
from tests.contract.tools import PATIENT


@pytest.fixture
def session(rabbitmq_url: str, exchange: str) -> SessionParameters:
    return SessionParameters(address=parse_url(rabbitmq_url), exchange=exchange, timeout=PATIENT)


@pytest.fixture(scope="module")
def loop() -> Iterator[asyncio.AbstractEventLoop]:
    """A loop for all tests of the module."""
    loop = asyncio.new_event_loop()
    yield loop
    loop.close()
