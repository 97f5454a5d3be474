"""The template, from which slots are forked, killed again and again: the worker goes on, and every job has its end."""

import os
import random
import signal
from collections import Counter
from contextlib import suppress

import pytest

from tests.acceptance.place import Place, children
from tests.helpers import eventually, has_traceback
from tests.scale import scaled

JOBS = scaled(300, 3_000)

POOLS = (("-c", "3"), ("--pool", "thread", "-c", "3"), ("--pool", "async", "-c", "3"))


def pending(place: Place) -> int:
    return sum(row["pending"] + row["in_progress"] for row in place.inspector.queues() if row["name"] != "failed")


@pytest.mark.parametrize("pool", POOLS, ids=["process", "thread", "async"])
def test_a_worker_whose_template_is_killed_at_random_goes_on_and_loses_nothing(
    sqlite_place: Place, pool: tuple[str, ...]
) -> None:
    place, chance = sqlite_place, random.Random(5)
    worker = place.worker(*pool, modules=("soaked",), times={"palermo.worker.parent.run._RESTART_EVERY": 0.1})
    place.ready(worker)
    count = kills = 0
    # More jobs if these were done before enough was killed.
    while pending(place) or kills <= 2:
        if not pending(place):
            calls = [("soaked.work", (number, 0.01, False), {}) for number in range(count, count + JOBS)]
            place.client.enqueue_many(calls)
            count += JOBS
        before, wait = len(place.lines("runs")), chance.randrange(1, 60)
        eventually(lambda: len(place.lines("runs")) > before + wait or not pending(place))  # noqa: B023
        for template in children(worker.pid)[:1]:
            with suppress(ProcessLookupError):
                os.kill(template, signal.SIGKILL)
                kills += 1

    lines = [line.split() for line in place.lines("runs")]
    ended = Counter(int(number) for what, number, *_ in lines if what == "ends")
    failed = {row["args"][0]: row["error"]["class"] for row in place.failed().values()}
    assert {number for number in range(count) if not ended[number] and number not in failed} == set()
    assert set(failed.values()) <= {"palermo.errors.JobCrashed"}
    assert len(failed) + ended.total() - len(ended) <= 3 * kills
    assert worker.alive
    assert not has_traceback(worker.log)
    # What a worker shows of itself may be older than the last kill.
    eventually(lambda: len(worker.tree()) == (5 if pool[0] == "-c" else 3))
    place.ready(worker)
