"""Limits and rates over several workers, on real processes."""

import signal
from bisect import bisect_left

import pytest

from tests.harness.rig import Rig
from tests.helpers import HANGS, eventually
from tests.journal.reading import Journal
from tests.scale import FULL, scaled

MODULE = "crew_limited"

#: Jobs, workers and kills where a limit is kept; and jobs where a rate is, 20 seconds of them if all is asked for.
JOBS, WORKERS, KILLS = scaled(30, 300), scaled(4, 20), scaled(2, 20)
PACED, SLOTS = scaled(100, 1_000), 8


@pytest.mark.slow
def test_no_more_than_the_limit_run_while_workers_are_killed(any_rig: Rig) -> None:
    rig = any_rig
    running = rig.path / "running"
    running.mkdir()
    workers = [rig.worker("-c", "2") for _ in range(WORKERS)]
    rig.ready(*workers)  # one alone would not reach the limit
    for number in range(JOBS):
        rig.enqueue("probed", str(rig.notes_path), str(running), 0.2, number, limit=3)
    for _ in range(KILLS):
        done = len(rig.lines())
        eventually(lambda done=done: len(rig.lines()) >= done + 4)  # type: ignore[misc]
        workers.pop(0).end()
        if FULL:
            workers.append(rig.worker("-c", "2"))

    eventually(lambda: {int(note.split()[1]) for note in rig.lines()} == set(range(JOBS)), within=300)
    assert max(int(note.split()[0]) for note in rig.lines()) == 3
    eventually(lambda: rig.pending() == 0)
    assert rig.errors() == {}
    # A run whose worker was killed is run again, and nothing else is.
    assert len(rig.lines()) <= JOBS + 2 * KILLS


@pytest.mark.slow
@pytest.mark.parametrize("any_rig", ["rabbitmq"], indirect=True)
def test_a_new_leader_says_why_limited_jobs_wait_for_a_silent_worker(any_rig: Rig) -> None:
    rig = any_rig
    silent = rig.idle("-q", "other", "--no-scheduler")
    silent.send(signal.SIGSTOP)
    leader = rig.worker()
    rig.open_gate()
    rig.enqueue("one_of_each", str(rig.notes_path), "a", str(rig.gate), limit=1)

    eventually(lambda: "jobs with limits are waiting for a worker that does not answer" in leader.log)
    assert rig.lines() == []

    silent.send(signal.SIGCONT)
    eventually(lambda: rig.lines() != [])


def test_a_limit_is_kept_for_each_key(rig: Rig) -> None:
    for account in ("a", "b") * 3:
        rig.enqueue("one_of_each", str(rig.notes_path), account, str(rig.gate), limit=1, limit_key=account)

    rig.worker("-c", "4", PALERMO_JOURNAL="all")

    journal, wanted = Journal(rig.client), {(f"crew_limited.one_of_each:{name}", 1) for name in "ab"}
    eventually(lambda: {(one["key"], one["limit"]) for one in journal.records("limited")} == wanted)
    rig.open_gate()
    eventually(lambda: len(rig.lines()) == 12)
    for account in ("a", "b"):
        own = [note for note in rig.lines() if note.startswith(account)]
        assert own == [f"{account} begins", f"{account} ends"] * 3


@pytest.mark.slow
def test_a_rate_is_kept_over_all_workers_and_in_every_second(any_rig: Rig) -> None:
    rig = any_rig
    for _ in range(2):
        rig.idle("-c", f"{SLOTS // 2}")
    rig.client.enqueue_many([("crew_limited.paced", (str(rig.notes_path),), {}) for _ in range(PACED)], rate="50/s")

    eventually(lambda: len(rig.lines()) == PACED)

    began = sorted(float(note) for note in rig.lines())
    # 51 is what docs/guides/limits.md says. On a machine that stands still, each slot may have a job begin late.
    late = scaled(SLOTS, 0)
    assert max(bisect_left(began, start + 1) - number for number, start in enumerate(began)) <= 51 + late
    least, most = (PACED - 1 - late) / 50 * 0.97, (PACED - 1) / 50
    assert least < began[-1] - began[0] < scaled(HANGS, most * 1.03)
