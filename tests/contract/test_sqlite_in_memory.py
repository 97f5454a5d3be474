"""The embedded broker keeps the contract in memory."""

import uuid

import pytest

from palermo.contract.broker import SessionParameters
from palermo.core.address import parse_url
from tests.contract.embedded import Embedded

pytestmark = pytest.mark.slow


class TestSqliteInMemory(Embedded):
    @pytest.fixture
    def session(self) -> SessionParameters:
        # One store for the whole process: an exchange of its own keeps each test apart.
        return SessionParameters(address=parse_url("sqlite:///:memory:"), exchange=f"test-{uuid.uuid4().hex[:8]}")
