"""Workflows while workers, the leader and the broker are killed: soak/storm.py says what must hold."""

from pathlib import Path

import pytest

from soak.storm import BROKERS, Size, place, storm
from tests.scale import FULL

SMALL = Size(chains=15, graphs=4, maps=1, members=150, worker_kills=12, broker_kills=1)


@pytest.mark.timeout(1_800)
@pytest.mark.parametrize("broker", BROKERS)
def test_every_workflow_ends_right_whatever_is_killed(tmp_path: Path, broker: str) -> None:
    with place(broker, tmp_path) as (rig, restart):
        books = storm(rig, restart, seed=11, size=Size() if FULL else SMALL)

    print(books)
    assert books.kills
    assert books.wrongs == []
