"""The session that many tests of the adapter for RabbitMQ use."""

import pytest

from palermo.contract.broker import SessionParameters
from palermo.core.address import parse_url
from tests.contract.tools import PATIENT


@pytest.fixture
def session(rabbitmq_url: str, exchange: str) -> SessionParameters:
    return SessionParameters(address=parse_url(rabbitmq_url), exchange=exchange, timeout=PATIENT)
