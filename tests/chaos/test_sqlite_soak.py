"""Workers on one SQLite file, of which one is killed every second: no job is lost."""

import itertools
from collections import Counter

import pytest

from soak.records import runs
from tests.harness.processes import WorkerProcess
from tests.harness.rig import Rig
from tests.helpers import eventually

QUEUES = ("mail", "images", "reports")
SELECTIONS = ("mail,images,reports", "reports,mail,images", "*", "images,*")

JOBS = 2_000

#: One job in so many raises, and belongs into `failed`.
FAILING = 100


def start(rig: Rig, turn: int) -> WorkerProcess:
    return rig.worker("-q", SELECTIONS[turn], "--log-level", "warning", modules=("soaked",))


def ran(rig: Rig) -> Counter[int]:
    return Counter(run.number for run in runs(rig.lines("runs")))


def left(rig: Rig) -> int:
    rows = [row for row in rig.inspector.queues() if row["name"] != "failed"]
    return sum(row["pending"] + row["in_progress"] for row in rows)


def test_every_job_runs_while_workers_on_sqlite_are_killed(sqlite_rig: Rig, capsys: pytest.CaptureFixture[str]) -> None:
    rig = sqlite_rig
    for offset, queue in enumerate(QUEUES):
        numbers = range(offset, JOBS, len(QUEUES))
        rig.client.enqueue_many([("soaked.work", (n, 0.008, n % FAILING == 0), {}) for n in numbers], queue=queue)
    workers = [start(rig, turn) for turn in range(4)]
    kills = 0
    for turn in itertools.cycle(range(4)):
        before = len(ran(rig))
        if before == JOBS:
            break
        eventually(lambda before=before: len(ran(rig)) >= min(before + 150, JOBS))
        workers[turn].kill9()
        workers[turn] = start(rig, turn)
        kills += 1
    eventually(lambda: left(rig) == 0)

    runs_of, failed = ran(rig), rig.inspector.failed(limit=JOBS)
    with capsys.disabled():
        print(f"\n{JOBS:,} jobs, {kills} kills: {runs_of.total() - JOBS} ran again, {failed.total} in failed")
    assert sorted(runs_of) == list(range(JOBS))
    assert sorted(row["args"][0] for row in failed) == list(range(0, JOBS, FAILING))
    assert {row["error"]["class"] for row in failed} == {"ArithmeticError"}
    # At least once: what was running when its worker died, and no more than that, ran again.
    assert runs_of.total() - JOBS <= kills
    assert all(worker.alive for worker in workers)
