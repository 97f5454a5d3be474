"""Workflows while workers are killed: each step runs, none runs before those before it, and each workflow ends once."""

import random
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.harness.rig import Rig
from tests.helpers import eventually
from tests.scale import scaled

CHAINS, GRAPHS, MEMBERS = scaled(20, 200), scaled(5, 20), scaled(300, 2_000)
KILLS = scaled(10, 60)


@pytest.fixture(params=["sqlite", "redis", "rabbitmq"])
def rig(request: pytest.FixtureRequest, tmp_path: Path, exchange: str) -> Iterator[Rig]:
    url = "" if request.param == "sqlite" else request.getfixturevalue(f"{request.param}_url")
    with Rig(tmp_path, url, exchange, module="storm") as rig:
        yield rig


def test_every_workflow_ends_right_whatever_workers_are_killed(rig: Rig) -> None:
    chance = random.Random(11)
    workers = [rig.worker("-c", "2") for _ in range(3)]
    rig.ready(*workers)
    chains = [rig.enqueue("chain", number) for number in range(CHAINS)]
    graphs = [rig.enqueue("graph", number) for number in range(1_000, 1_000 + GRAPHS)]
    fans = [rig.enqueue("fan", MEMBERS) for _ in range(3)]

    killed = 0
    for _ in range(KILLS):
        time.sleep(chance.uniform(0.05, 0.5))
        victim = chance.randrange(len(workers))
        if not rig.inspector.workflows.list():
            break
        workers[victim].kill9()
        workers[victim] = rig.worker("-c", "2")
        killed += 1

    results = {id: rig.client.job_by_id(id).result(timeout=300) for id in (*chains, *graphs, *fans)}
    assert killed
    assert [results[id] for id in chains] == [5] * CHAINS
    assert [results[id] for id in graphs] == [3] * GRAPHS
    assert [results[id] for id in fans] == [MEMBERS * (MEMBERS - 1) // 2] * 3
    eventually(lambda: rig.inspector.workflows.list() == [])
    for number in range(CHAINS):
        order = [int(line.split("/")[1]) for line in rig.lines("links") if line.startswith(f"{number}/")]
        assert order == sorted(order), "a step of a chain ran before the one before it had ended"
    members = Counter(map(int, rig.lines("members")))
    assert sorted(members) == list(range(MEMBERS))
    assert min(members.values()) == 3, "one for each map; more only where a worker was killed"
    assert rig.failed() == {}
