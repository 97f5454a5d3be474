"""The worker's tests run against real processes; see site.py."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.worker.site import Site


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    """A broker of the test's own, and its workers."""
    site = Site(tmp_path)
    yield site
    site.close()
