"""An inspector on the embedded broker; tests/contract holds the brokers to the same answers."""

from pathlib import Path

import pytest

from palermo.settings.settings import Settings


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    """With patience: these tests are not about how fast a broker is."""
    return Settings(url=f"sqlite:///{tmp_path}/jobs.db", publish_timeout=30)
