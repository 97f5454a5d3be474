"""Unique jobs under kills: one holder of each key, and no key that stays taken."""

import subprocess
import sys
from pathlib import Path

import pytest

from tests.brokers import BROKERS, url_of_broker
from tests.helpers import eventually, whole_lines
from tests.rabbitmq_node import Node, url_of
from tests.scale import scaled

#: Kills of workers, enqueuers, and with them of the leader.
KILLS = scaled(25, 1_000)


@pytest.fixture(params=BROKERS)
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    return url_of_broker(request, tmp_path)


@pytest.fixture
def notes(tmp_path: Path) -> Path:
    """The folder in which the crew writes."""
    (tmp_path / "notes").mkdir()
    return tmp_path / "notes"


@pytest.mark.timeout(scaled(400, 1_800))
def test_whoever_is_killed_no_key_stays_taken_and_none_has_two_holders(url: str, exchange: str, notes: Path) -> None:
    command = [sys.executable, "-m", "tests.chaos.key_crew", url, exchange, str(KILLS), str(notes)]
    subprocess.run(command, check=True)

    assert [whole_lines(notes / name) for name in ("errors", "two", "stale")] == [[], [], []]
    ran = set(whole_lines(notes / "ran"))
    assert set(whole_lines(notes / "stored")) <= ran | set(whole_lines(notes / "duplicates"))
    assert len(ran) > KILLS // 3


@pytest.mark.timeout(scaled(400, 900))
def test_a_killed_broker_leaves_no_key_taken_or_held_twice(module_node: Node, exchange: str, notes: Path) -> None:
    url = url_of(module_node)
    command = [sys.executable, "-m", "tests.chaos.key_crew", url, exchange, str(scaled(12, 100)), str(notes), "meddled"]

    with subprocess.Popen(command) as crew:
        for number in range(scaled(2, 10)):
            before = len(whole_lines(notes / "ran"))
            eventually(lambda before=before: crew.poll() is not None or len(whole_lines(notes / "ran")) > before + 3)  # type: ignore[misc]
            if crew.poll() is not None:  # a slow machine was killed less often
                assert number
                break
            module_node.kill9()
            module_node.start()
        assert crew.wait() == 0

    assert [whole_lines(notes / name) for name in ("errors", "two", "stale")] == [[], [], []]
