"""The jobs of the stories, importable here as a worker imports them."""

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

PROGRAMS = Path(__file__).parent / "programs"
sys.path.insert(0, str(PROGRAMS))


@pytest.fixture(scope="session", autouse=True)
def stories_file(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The file to which the jobs of this process write."""
    path = tmp_path_factory.mktemp("stories") / "here"
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PALERMO_TEST_STORIES", str(path))
        yield path
