"""The same stories, told by palermo.testing and by a real worker: nothing may differ."""

import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import pytest

from palermo.client.client import Client, lend
from palermo.settings.settings import Settings
from palermo.testing import Palermo
from tests.testing.conftest import PROGRAMS
from tests.testing.stories import about_hooks, about_keys, about_retries, about_work  # noqa: F401 - they add stories
from tests.testing.stories.telling import STORIES, Site, come_due, told

#: No story is longer.
MOST_ROUNDS = 5


@pytest.fixture(scope="module")
def real(tmp_path_factory: pytest.TempPathFactory, declared: None) -> dict[str, Any]:
    """All stories, told by `palermo worker --burst`: one process for each round of all stories."""
    path = tmp_path_factory.mktemp("real")
    memory = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
    with tempfile.TemporaryDirectory(dir=memory) as folder, pytest.MonkeyPatch.context() as patch:
        settings = Settings(url=f"sqlite:///{folder}/jobs.db", journal="all", publish_timeout=60.0)
        patch.setenv("PALERMO_TEST_STORIES", str(path / "stories"))
        patch.setenv("PALERMO_URL", settings.url)
        patch.setenv("PALERMO_JOURNAL", settings.journal)
        with lend(Client(settings)) as client:
            work(path)  # the groups of events subscribe
            sites = {name: Site(name, client, come_due) for name in STORIES}
            told_by = {name: STORIES[name](site) for name, site in sites.items()}
            for _ in range(MOST_ROUNDS):
                told_by = {name: rest for name, rest in told_by.items() if next(rest, "over") is None}
                if told_by:
                    work(path)
            assert not told_by
            client.close()
            return {name: told(site) for name, site in sites.items()}


def work(path: Path) -> None:
    command = [sys.executable, "-m", "palermo", "worker", "stories", "--burst", "-q", "*"]
    with (path / "log").open("a") as log:
        done = subprocess.run(
            command, cwd=PROGRAMS, stdin=subprocess.DEVNULL, stdout=log, stderr=log, timeout=60, check=False
        )
    assert done.returncode == 0, (path / "log").read_text()


@pytest.mark.parametrize("name", STORIES)
def test_a_story_is_the_same_with_a_real_worker(name: str, real: dict[str, Any]) -> None:
    with Palermo(raise_failures=False) as palermo:
        site = Site(name, palermo.client, lambda _, seconds: palermo.clock.advance(seconds))
        for _ in STORIES[name](site):
            palermo.work_until_idle()

        palermo.client.close()  # which writes its records into the journal
        assert told(site) == real[name]


def test_there_are_stories_enough() -> None:
    assert len(STORIES) >= 100
