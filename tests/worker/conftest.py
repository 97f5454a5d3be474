"""The worker's tests run against real processes; see tests/harness."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from palermo.jobs import hooks
from tests.brokers import BROKERS, url_of_broker
from tests.harness.rig import Rig
from tests.worker.bench import Bench


@pytest.fixture(params=BROKERS)
def any_rig(request: pytest.FixtureRequest, tmp_path: Path, exchange: str) -> Iterator[Rig]:
    """The same on each broker."""
    with Rig(tmp_path, url=url_of_broker(request, tmp_path), exchange=exchange) as rig:
        yield rig


@pytest.fixture
def rig(tmp_path: Path) -> Iterator[Rig]:
    """A broker of the test's own, and its workers."""
    with Rig(tmp_path) as rig:
        yield rig


@pytest.fixture
def bench() -> Iterator[Bench]:
    """An executor; what a test registers for all jobs is gone behind it."""
    before = hooks.registered._functions, hooks._backends
    yield Bench()
    hooks.registered._functions, hooks._backends = before
    hooks.registered._changed()
