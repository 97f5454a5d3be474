"""The lives of workers as the journal tells them."""

from typing import Any

import pytest

from palermo.history.worker_lives import GRACE, MOST_LIVES, WorkerLives
from tests.history.written import NOON, Record, batch, ended

LATER = NOON + 2 * GRACE


def up(worker: str = "pid:7@host", *, at: float = NOON) -> Record:
    return {"kind": "worker_up", "at": at, "worker": worker, "queues": ["mail"], "release": "r1"}


def started(id: str, *, at: float = NOON + 1, slot: int = 2) -> Record:
    return {"kind": "started", "at": at, "id": id, "job": "shop.resize", "queue": "mail", "slot": slot}


def lives(*records: Record) -> WorkerLives:
    found = WorkerLives()
    found.take(batch(*records))
    return found


def alive(id: str = "pid:7@host", pid: int | None = 7) -> dict[str, Any]:
    return {"id": id, "pid": pid}


def test_a_worker_that_vanished_died_with_the_jobs_that_it_ran() -> None:
    found = lives(up(), started("a", slot=1), started("b"), ended("b"), started("c", at=NOON + 3))

    [death] = found.deaths([alive("pid:8@host")], LATER)

    assert (death.id, death.started_at, death.heard_at, death.queues) == ("pid:7@host", NOON, NOON + 3, ("mail",))
    assert [(run.id, run.job) for run in death.last_jobs] == [("a", "shop.resize"), ("c", "shop.resize")]


@pytest.mark.parametrize(
    ("records", "workers", "now"),
    [
        ([up(), {"kind": "worker_down", "at": NOON + 5, "worker": "pid:7@host"}], [], LATER),
        ([up()], [alive()], LATER),
        ([up()], [], NOON + GRACE - 1),
        ([up()], [alive("?1", pid=None)], LATER),
        ([{"kind": "counts", "at": NOON, "queue": "mail", "job": "a", "succeeded": 3}], [], LATER),
    ],
    ids=["ended", "exists", "was heard of just now", "may be one that does not answer", "a client wrote"],
)
def test_a_worker_did_not_die(records: list[Record], workers: list[dict[str, Any]], now: float) -> None:
    assert lives(*records).deaths(workers, now) == []


def test_a_worker_is_known_by_its_runs_its_start_and_when_it_was_seen() -> None:
    found = lives(up(), started("a"), up(at=NOON + 9))
    [death] = found.deaths([alive()], NOON + 10)  # before its id began again
    newest = found.newest("pid:7@host")
    assert newest is not None
    assert ([run.id for run in death.last_jobs], newest.started_at, newest.runs) == (["a"], NOON + 9, {})

    [older] = lives(started("a")).deaths([], LATER)  # than the journal
    [seen] = lives(up()).deaths([], NOON + 1_000, seen={"pid:7@host": NOON + 900})

    assert (older.id, older.started_at, [run.id for run in older.last_jobs]) == ("pid:7@host", None, ["a"])
    assert seen.heard_at == NOON + 900


def test_the_lives_of_workers_are_bounded() -> None:
    found = WorkerLives()
    for nth in range(MOST_LIVES + 1):
        found.take(batch(up(f"pid:{nth}@host"), writer=f"pid:{nth}@host"))

    assert found.newest("pid:0@host") is None
    assert len(found.deaths([], LATER)) == MOST_LIVES


def test_records_that_make_no_sense_do_no_harm() -> None:
    found = lives(
        {"kind": ["started"], "at": NOON, "slot": 1},
        {"kind": "worker_up", "at": "noon", "worker": "pid:7@host", "queues": "mail"},
        {"kind": "started", "at": None, "slot": 1, "id": 7},
        {"kind": "succeeded", "at": NOON, "slot": [1]},
    )

    [death] = found.deaths([], LATER)
    assert (death.heard_at, death.queues, [run.id for run in death.last_jobs]) == (NOON, (), [""])
