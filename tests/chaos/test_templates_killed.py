"""The template, from which slots are forked, killed again and again: the worker goes on, and every job has its end."""

import os
import random
import signal
from collections import Counter
from contextlib import suppress

import pytest

from tests.harness.processes import children
from tests.harness.rig import Rig
from tests.helpers import eventually, has_traceback
from tests.scale import scaled

JOBS = scaled(300, 3_000)

POOLS = (("-c", "3"), ("--pool", "thread", "-c", "3"), ("--pool", "async", "-c", "3"))


def pending(rig: Rig) -> int:
    return sum(row["pending"] + row["in_progress"] for row in rig.inspector.queues() if row["name"] != "failed")


@pytest.mark.parametrize("pool", POOLS, ids=["process", "thread", "async"])
def test_a_worker_survives_kills_of_its_template(sqlite_rig: Rig, pool: tuple[str, ...]) -> None:
    rig, chance = sqlite_rig, random.Random(5)
    worker = rig.worker(*pool, modules=("soaked",), times={"palermo.worker.parent.run._RESTART_EVERY": 0.1})
    rig.ready(worker)
    count = kills = 0
    # More jobs if these were done before enough was killed.
    while pending(rig) or kills <= 2:
        if not pending(rig):
            calls = [("soaked.work", (number, 0.01, False), {}) for number in range(count, count + JOBS)]
            rig.client.enqueue_many(calls)
            count += JOBS
        before, wait = len(rig.lines("runs")), chance.randrange(1, 60)
        eventually(lambda: len(rig.lines("runs")) > before + wait or not pending(rig))  # noqa: B023
        for template in children(worker.pid)[:1]:
            with suppress(ProcessLookupError):
                os.kill(template, signal.SIGKILL)
                kills += 1

    lines = [line.split() for line in rig.lines("runs")]
    ended = Counter(int(number) for what, number, *_ in lines if what == "ends")
    failed = {row["args"][0]: row["error"]["class"] for row in rig.failed().values()}
    assert {number for number in range(count) if not ended[number] and number not in failed} == set()
    assert set(failed.values()) <= {"palermo.errors.JobCrashed"}
    assert len(failed) + ended.total() - len(ended) <= 3 * kills
    assert worker.alive
    assert not has_traceback(worker.log)
    # What a worker shows of itself may be older than the last kill.
    eventually(lambda: len(worker.tree()) == (5 if pool[0] == "-c" else 3))
    rig.ready(worker)
