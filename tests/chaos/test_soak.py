"""A bad day: jobs by the thousand while workers are killed every second and the broker restarts.

Promise 1: no job is lost. Every job has run at least once, nothing is left, and `failed` holds
exactly the jobs that raised.
"""

import itertools
import time
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tests.acceptance.place import Place, Worker
from tests.helpers import eventually
from tests.rabbitmq_node import Node

QUEUES = ("mail", "images", "reports")
SELECTIONS = ("mail,images,reports", "reports,mail,images", "*", "images,*")

#: One job in so many raises, and belongs into `failed`.
FAILING = 100

#: Seconds for a whole soak.
LIMIT = 100.0


def enqueue(place: Place, first: int, last: int, *, takes: float) -> None:
    calls: dict[str, list[Any]] = {queue: [] for queue in QUEUES}
    for number in range(first, last):
        calls[QUEUES[number % 3]].append(("soaked.work", (number, takes, number % FAILING == 0), {}))
    for queue, jobs in calls.items():
        place.client.enqueue_many(jobs, queue=queue)


def killed_every_second(place: Place) -> Iterator[None]:
    """Four workers, of which at each step the next is killed and replaced."""
    workers = [start(place, turn) for turn in range(4)]
    while True:
        yield
        for turn in range(4):
            workers[turn].kill9()
            workers[turn] = start(place, turn)
            yield


def start(place: Place, turn: int) -> Worker:
    return place.worker("-q", SELECTIONS[turn], "--log-level", "warning", modules=("soaked",))


def soak(place: Place, jobs: int, *, takes: float, restart: Callable[[], None] | None = None) -> int:
    """Work through so many jobs, with two restarts at a third and two thirds of them; how many workers were killed."""
    began = time.monotonic()
    enqueue(place, 0, jobs // 2, takes=takes)
    killing = killed_every_second(place)
    next(killing)
    enqueue(place, jobs // 2, jobs, takes=takes)
    restarts = 0
    for kills in itertools.count():
        done = len(ran(place))
        assert time.monotonic() - began < LIMIT, f"{done:,} of {jobs:,} jobs have run: {place.inspector.queues()}"
        if done == jobs:
            assert restart is None or restarts == 2
            return kills
        if restart is not None and done > (restarts + 1) * jobs // 3 and restarts < 2:
            restarts += 1
            restart()
        due = time.monotonic() + 1
        eventually(lambda due=due: time.monotonic() >= due, within=5)
        next(killing)
    raise AssertionError


def ran(place: Place) -> Counter[int]:
    return Counter(int(line) for line in place.lines("ran"))


def check(place: Place, jobs: int, kills: int, capsys: pytest.CaptureFixture[str]) -> None:
    """All that must hold when the day is over. One worker that nobody kills finishes what was given back."""
    last = place.worker("-q", "*", "--log-level", "warning", modules=("soaked",))
    eventually(lambda: all(row["pending"] + row["in_progress"] == 0 for row in queues(place)), within=30)
    runs = ran(place)
    failed = place.inspector.failed(limit=jobs)
    numbers = Counter(row["args"][0] for row in failed)

    with capsys.disabled():
        print(f"\n{jobs:,} jobs, {kills} kills: {sum(runs.values()) - jobs} ran again, {failed.total} in failed")
    assert sorted(runs) == list(range(jobs))
    assert sorted(numbers) == list(range(0, jobs, FAILING))
    assert {row["error"]["class"] for row in failed} == {"ArithmeticError"}
    # At least once: what was running when its worker died, and no more than that, ran again.
    assert sum(runs.values()) - jobs <= 4 * (kills + 8)
    assert last.alive


def queues(place: Place) -> list[dict[str, object]]:
    return [row for row in place.inspector.queues() if row["name"] != "failed"]


@pytest.mark.timeout(240)
def test_every_job_runs_while_workers_are_killed_and_rabbitmq_restarts_twice(
    private_place: Place, private_node: Node, capsys: pytest.CaptureFixture[str]
) -> None:
    kills = soak(private_place, 10_000, takes=0.004, restart=private_node.restart)

    check(private_place, 10_000, kills, capsys)


@pytest.mark.timeout(240)
def test_every_job_runs_while_workers_on_sqlite_are_killed(
    sqlite_place: Place, capsys: pytest.CaptureFixture[str]
) -> None:
    kills = soak(sqlite_place, 2_000, takes=0.008)

    check(sqlite_place, 2_000, kills, capsys)
