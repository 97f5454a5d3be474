"""Pools whose slots share a child: what jobs are to each other, and to their worker."""

import pytest

from tests.harness.rig import Rig
from tests.helpers import eventually

MODULE = "crew_pools"


def test_five_hundred_coroutines_run_at_once(rig: Rig) -> None:
    for _ in range(500):
        rig.enqueue("meets", str(rig.notes_path), 500)

    worker = rig.worker("--pool", "async", "-c", "500", "--log-level", "warning")

    eventually(lambda: len(rig.lines()) == 500, every=0.2)
    assert len(worker.grown(2)) == 2
    eventually(lambda: rig.pending() == 0)
    assert rig.errors() == {}


#: What jobs raise and do to the loop by pool, and the class of their errors: "" for none.
ODD = {
    "thread": [
        (("raises", "SystemExit"), "SystemExit"),
        (("raises", "KeyboardInterrupt"), "KeyboardInterrupt"),
        (("raises", "StopIteration"), "StopIteration"),
    ],
    "async": [
        (("araises", "SystemExit"), "SystemExit"),
        (("araises", "KeyboardInterrupt"), "KeyboardInterrupt"),
        (("araises", "Cancelled"), "asyncio.exceptions.CancelledError"),
        (("cancels_itself",), "asyncio.exceptions.CancelledError"),
        (("cancels_itself_late",), ""),
        (("cancels_everybody",), ""),
        (("leaves_a_task_that_exits",), ""),
        (("stops_the_loop",), ""),
    ],
}


@pytest.mark.parametrize("pool", ["thread", "async"])
def test_whatever_a_job_raises_or_does_to_the_loop_its_child_lives_on(rig: Rig, pool: str) -> None:
    worker = rig.idle("--pool", pool)
    child = worker.grown(2)[1]

    found = {rig.enqueue(*call): kind for call, kind in ODD[pool]}
    rig.enqueue("tells_pid", str(rig.notes_path))

    eventually(lambda: rig.lines() == [str(child)])
    wanted = {id: kind for id, kind in found.items() if kind}
    eventually(lambda: {id: error.class_name for id, error in rig.errors().items()} == wanted)


@pytest.mark.parametrize("pool", ["thread", "async"])
def test_of_several_jobs_in_a_process_that_dies_only_the_guilty_one_fails(rig: Rig, pool: str) -> None:
    for text in ("first", "second"):
        rig.enqueue("asurvives" if pool == "async" else "survives", str(rig.notes_path), text)
    crash = rig.enqueue("crash_after", str(rig.notes_path), str(rig.gate))
    worker = rig.worker("--pool", pool, "-c", "3")
    eventually(lambda: len(rig.lines()) == 3)

    rig.open_gate()

    eventually(lambda: {"first ends", "second ends", "on_failure JobCrashed"} <= set(rig.lines()))
    eventually(lambda: set(rig.errors()) == {crash})
    runs = [line.split() for line in rig.lines() if " begins" in line]
    assert [len([run for run in runs if run[0] == text]) for text in ("first", "second", "fuse")] == [2, 2, 2]
    assert len({run[2] for run in runs if len(run) == 3}) == 3
    assert worker.log.count("this one runs again alone") == 3
    eventually(lambda: len(worker.children()) == 2)
    assert rig.pending() == 0
