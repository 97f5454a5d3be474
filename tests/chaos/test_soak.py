"""The tools of the soak for some seconds, with the same faults each time, so that they keep working."""

import asyncio
from pathlib import Path

import pytest

from soak.parts import ALL
from soak.run import soak
from soak.survival import survive
from tests.rabbitmq_node import Node
from tests.scale import scaled


@pytest.mark.timeout(600)
def test_every_job_is_accounted_for_after_a_short_soak(private_node: Node, tmp_path: Path) -> None:
    assert soak(tmp_path, private_node, seconds=8.0, seed="suite", parts=ALL, say=print) == []


@pytest.mark.timeout(scaled(400, 1_800))
def test_a_broker_killed_amid_pending_delays_loses_none_and_doubles_few(private_node: Node) -> None:
    jobs = scaled(2_000, 20_000)
    for seed in range(scaled(1, 10)):
        size = {"jobs": jobs, "spread": scaled(8, 20), "kill_after": scaled(3, 10)}
        found = asyncio.run(survive(private_node, f"kill-{seed}", **size, seed=seed))

        assert (found.lost, found.early) == (0, 0), found
        # More than a third are published before the kill.
        assert found.doubled < jobs / 5, found
        assert found.last < 30, found
