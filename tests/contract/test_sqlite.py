"""The embedded broker keeps the contract in a file."""

from pathlib import Path

import pytest

from palermo.contract.broker import SessionParameters
from palermo.core.address import parse_url
from tests.contract.embedded import Embedded
from tests.contract.tools import PATIENT


class TestSqlite(Embedded):
    @pytest.fixture
    def session(self, tmp_path: Path) -> SessionParameters:
        return SessionParameters(address=parse_url(f"sqlite:///{tmp_path}/jobs.db"), timeout=PATIENT)
