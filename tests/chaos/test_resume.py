"""Loops that go on while their workers are stopped and killed, and their jobs fail: no item is skipped."""

import random
import signal
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.harness.rig import Rig
from tests.helpers import eventually
from tests.scale import scaled

JOBS, ROWS = scaled(6, 20), scaled(300, 2_000)


@pytest.fixture(params=["sqlite", "redis", "rabbitmq"])
def rig(request: pytest.FixtureRequest, tmp_path: Path, exchange: str) -> Iterator[Rig]:
    url = "" if request.param == "sqlite" else request.getfixturevalue(f"{request.param}_url")
    with Rig(tmp_path, url, exchange, module="storm") as rig:
        yield rig


def test_each_row_of_an_import_is_done_whatever_workers_are_killed(
    rig: Rig, request: pytest.FixtureRequest, capsys: pytest.CaptureFixture[str]
) -> None:
    chance = random.Random(7)
    everlasting = {"PALERMO_MAX_DEATHS": "none"}
    workers = [rig.worker("-c", "2", **everlasting) for _ in range(2)]
    rig.ready(*workers)
    for number in range(JOBS):
        rig.enqueue("import_rows", number, ROWS, chance.random())

    ends = Counter[str]()
    while not rig.drained() or rig.inspector.scheduled.list():
        time.sleep(chance.uniform(0.5, 2.5))
        victim = chance.randrange(len(workers))
        number = chance.choice([signal.SIGKILL, signal.SIGTERM, signal.SIGUSR1])
        workers[victim].send(number)
        ends[number.name] += 1
        if number is not signal.SIGUSR1:
            workers[victim].wait()
            workers[victim] = rig.worker("-c", "2", **everlasting)

    # A job that was just delivered again is neither pending nor in progress, until its worker reports that it runs.
    wanted = {f"{number}/{row}" for number in range(JOBS) for row in range(1, ROWS + 1)}
    eventually(lambda: set(rig.lines("rows")) == wanted)
    assert rig.failed() == {}
    done = Counter(rig.lines("rows"))
    again = sum(count - 1 for count in done.values())
    with capsys.disabled():
        print(f"\n{request.node.name}: {len(done):,} rows, {again:,} done again after {dict(ends)}")
    eventually(rig.drained)
