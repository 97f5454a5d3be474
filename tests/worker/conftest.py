"""The worker's tests run against real processes; see tests/harness."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.brokers import BROKERS, url_of_broker
from tests.harness.rig import Rig
from tests.worker.bench import Bench


@pytest.fixture(params=BROKERS)
def any_rig(request: pytest.FixtureRequest, tmp_path: Path, exchange: str) -> Iterator[Rig]:
    """The same on each broker; a file of tests names the module with its jobs, MODULE."""
    module = getattr(request.module, "MODULE", "crew")
    with Rig(tmp_path, url_of_broker(request, tmp_path), exchange, module=module) as rig:
        yield rig


@pytest.fixture
def rig(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Rig]:
    """A broker of the test's own, and its workers."""
    with Rig(tmp_path, module=getattr(request.module, "MODULE", "crew")) as rig:
        yield rig


@pytest.fixture
def bench(own_world: None) -> Bench:
    """An executor; what a test registers for all jobs is gone behind it."""
    return Bench()
