"""The brokers that tests run on which are about what is built on brokers."""

from pathlib import Path

import pytest

#: Parameters of a fixture, for `url_of_broker`.
BROKERS = ("sqlite", "rabbitmq", "redis")


def url_of_broker(request: pytest.FixtureRequest, folder: Path) -> str:
    """The broker that the fixture's parameter names, which all tests share; a file in the folder for SQLite."""
    if request.param == "sqlite":
        return f"sqlite:///{folder}/jobs.db"
    url: str = request.getfixturevalue(f"{request.param}_url")
    return url
