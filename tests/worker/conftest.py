"""The worker's tests run against real processes; see tests/harness."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.harness.rig import Rig
from tests.worker.bench import Bench


@pytest.fixture
def rig(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Rig]:
    """A broker of the test's own, and its workers."""
    with Rig(tmp_path, module=getattr(request.module, "MODULE", "crew")) as rig:
        yield rig


@pytest.fixture
def bench(own_world: None) -> Bench:
    """An executor; what a test registers for all jobs is gone behind it."""
    return Bench()
