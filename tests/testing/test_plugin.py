"""The pytest plugin, in runs of pytest of its own."""

import subprocess
import sys
from pathlib import Path

import pytest

_CONFTEST = """
import pytest


@pytest.fixture
def palermo_options():
    return {"default_queue": "of the suite"}
"""

_JOBS = """
import palermo

ran = []


@palermo.job
def add(a, b):
    ran.append(a + b)


@palermo.job
def broken():
    raise ValueError("it broke")
"""

_TESTS = """
import pytest

import shop
from palermo.testing import Palermo


@pytest.fixture(autouse=True)
def clear():
    shop.ran.clear()


@pytest.mark.parametrize("number", range(4))
def test_fixture(palermo: Palermo, number: int) -> None:
    shop.add.enqueue(number, 1)
    palermo.refute_enqueued(shop.add, number + 1, 1)
    assert palermo.assert_enqueued(shop.add, number, 1).queue == "of the suite"
    palermo.work()
    assert shop.ran == [number + 1]


@pytest.mark.palermo(inline=True, default_queue="of the test")
class TestMarker:
    def test_inline(self, palermo):
        assert shop.add.enqueue(1, 2).queue == "of the test"
        assert shop.ran == [3]

    @pytest.mark.palermo(inline=False)
    def test_not_inline(self, palermo):
        shop.add.enqueue(1, 2)
        assert shop.ran == []


@pytest.fixture
def anyio_backend():
    return "asyncio"


@pytest.mark.anyio
async def test_asyncio(palermo):
    await shop.add.enqueue_async(3, 4)
    await palermo.work_async()
    assert shop.ran == [7]


def test_broken(palermo):
    shop.broken.enqueue()
    palermo.work()
"""

#: Plugins of this environment that take seconds to import.
NEEDLESS = ("-p", "no:cacheprovider", "-p", "no:schemathesis", "-p", "no:hypothesispytest")


@pytest.fixture
def project(tmp_path: Path) -> Path:
    for name, text in {"conftest": _CONFTEST, "shop": _JOBS, "test_shop": _TESTS}.items():
        (tmp_path / f"{name}.py").write_text(text)
    (tmp_path / "pytest.ini").write_text("[pytest]\nfilterwarnings = error\naddopts = --strict-markers\n")
    return tmp_path


def run(project: Path) -> str:
    command = [sys.executable, "-m", "pytest", *NEEDLESS]
    done = subprocess.run(command, cwd=project, capture_output=True, text=True, timeout=120, check=False)
    return done.stdout + done.stderr


@pytest.mark.slow
def test_pytest_finds_fixture_and_marker_and_shows_the_jobs_code(project: Path) -> None:
    output = run(project)

    assert "7 passed" in output, output
    assert 'raise ValueError("it broke")' in output
    assert "Raised by job shop.broken" in output
    assert "in perform" not in output
    assert "local_pool.py" not in output.partition("Captured")[0]


@pytest.mark.slow
def test_a_suite_without_the_fixture_pays_for_no_worker() -> None:
    heavy = ("asyncio", "sqlite3", "pika", "palermo.client.client", "palermo.testing.palermo", "palermo.worker")
    program = f"import sys, palermo.testing.plugin; print([name for name in {heavy} if name in sys.modules])"
    # pytest itself imports asyncio in some versions.
    before = f"import sys, pytest; print([name for name in {heavy} if name in sys.modules])"

    runs = [[sys.executable, "-c", source] for source in (program, before)]
    found = [subprocess.run(run, capture_output=True, text=True, check=True).stdout for run in runs]

    assert found[0] == found[1]
