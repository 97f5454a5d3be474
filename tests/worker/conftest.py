"""The worker's tests run against real processes; see site.py."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.brokers import BROKERS, url_of_broker
from tests.worker.site import Site


@pytest.fixture(params=BROKERS)
def any_site(request: pytest.FixtureRequest, tmp_path: Path, exchange: str) -> Iterator[Site]:
    """The same on each broker."""
    site = Site(tmp_path, url=url_of_broker(request, tmp_path), exchange=exchange)
    yield site
    site.close()


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    """A broker of the test's own, and its workers."""
    site = Site(tmp_path)
    yield site
    site.close()
