"""Delayed jobs through kills: of the broker, and of the worker that keeps the time."""

import asyncio

import pytest

from soak.survival import survive
from tests.rabbitmq_node import Node
from tests.scale import scaled


@pytest.mark.timeout(scaled(400, 1_800))
def test_a_broker_killed_amid_pending_delays_loses_none(private_node: Node) -> None:
    for seed in range(scaled(1, 10)):
        found = asyncio.run(
            survive(
                private_node,
                f"kill-{seed}",
                jobs=scaled(2_000, 20_000),
                spread=scaled(8, 20),
                kill_after=scaled(3, 10),
                seed=seed,
            )
        )

        assert (found.lost, found.early) == (0, 0), found
        assert found.last < 30, found
