"""The pytest plugin with the fixture `palermo`. pytest loads it in every test run, so it imports as little as
possible.
"""

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from palermo.testing.palermo import Palermo


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line(
        "markers",
        "palermo(inline=False, raise_failures=True, accept=(), **settings): options of the fixture `palermo` for this"
        " test; see docs/guides/testing.md of Palermo.",
    )


@pytest.fixture
def palermo_options() -> Mapping[str, Any]:
    """Options of the fixture `palermo`. Override this fixture in conftest.py to change them for many tests."""
    return {}


@pytest.fixture
def palermo(request: pytest.FixtureRequest, palermo_options: Mapping[str, Any]) -> "Iterator[Palermo]":
    """An embedded broker for the test, and a worker in the test's process. See palermo.testing.Palermo."""
    from palermo.testing.palermo import Palermo

    options = dict(palermo_options)
    for mark in reversed([*request.node.iter_markers("palermo")]):
        options |= mark.kwargs
    with Palermo(**options) as fresh:
        yield fresh
