"""Hooks, and the processes they run in."""

import signal

import pytest

from palermo.jobs.hooks import HOOKS
from tests.harness.rig import Rig
from tests.helpers import eventually

MODULES = ("crew", "crew_hooks")


def test_each_hook_runs_in_the_process_that_the_catalogue_says(rig: Rig) -> None:
    worker = rig.idle(modules=MODULES)
    template, slot = worker.grown(2)
    where = {"template": template, "slot": slot}

    rig.enqueue("raises_twice", module="crew_hooks")
    rig.enqueue("note", str(rig.notes_path), "x")
    # The queues may be empty before the second one is there.
    told = {"on_exhausted", "queue_empty", "on_success"}
    eventually(lambda: told <= {line[0] for line in rig.trace()})
    worker.send(signal.SIGUSR2)
    eventually(lambda: any(line[0] == "before_pause" for line in rig.trace()))
    worker.send(signal.SIGCONT)
    eventually(lambda: any(line[0] == "after_pause" for line in rig.trace()))
    eventually(lambda: rig.trace(".sizes"))
    assert worker.stop() == 0

    names = [line[0] for line in rig.trace()]
    assert names.index("before_first_fork") < names.index("before_fork") < names.index("after_fork")
    assert names[-2:] == ["shutdown", "worker_exit"]
    ran = {line[0]: int(line[1]) for line in [*rig.trace(), *rig.trace(".sizes")]}
    wanted = {row.name: where[row.process] for row in HOOKS if row.process in where}
    assert {name: ran.get(name) for name in wanted} == wanted
    assert worker.pid not in ran.values()


def test_queue_empty_is_told_once_each_time_the_queues_become_empty(rig: Rig) -> None:
    worker = rig.idle(modules=MODULES)

    def told() -> int:
        return sum(line[0] == "queue_empty" for line in rig.trace())

    for times in (1, 2, 3):
        rig.enqueue("note", str(rig.notes_path), "x")
        eventually(lambda times=times: told() == times)  # type: ignore[misc]
    worker.send(signal.SIGTERM)
    worker.wait()

    assert told() == 3


@pytest.mark.parametrize(
    ("hook", "code"), [("before_first_fork", 1), ("before_fork", 0), ("after_fork", 0), ("worker_exit", 0)]
)
def test_a_worker_hook_that_raises(rig: Rig, hook: str, code: int) -> None:
    rig.enqueue("note", str(rig.notes_path), "ran")

    worker = rig.worker("--burst", modules=("crew", "crew_broken_hook"), PALERMO_TEST_HOOK=f"{hook} raises")

    assert worker.wait() == code
    assert "hook is broken" in worker.log
    assert rig.lines() == (["ran"] if code == 0 else [])


def test_a_worker_exit_hook_that_hangs_does_not_keep_the_worker(rig: Rig) -> None:
    soon = {"palermo.worker.parent.worker.EXIT_TIMEOUT": 0.5}

    log = rig.burst(modules=("crew", "crew_broken_hook"), times=soon, PALERMO_TEST_HOOK="worker_exit hangs")

    assert "worker_exit hook is still running" in log
