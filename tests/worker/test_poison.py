"""Jobs whose worker, the parent itself, dies with them; and others that only look like it."""

import signal
from collections.abc import Callable

import pytest

from tests.harness.processes import WorkerProcess
from tests.harness.rig import Rig
from tests.helpers import eventually

pytestmark = pytest.mark.slow

#: Seconds. Long enough to be written down, unless the machine is slow; see docs/guides/long-jobs.md.
LONG_ENOUGH = 0.75


class Crew:
    """One worker at a time, replaced when it dies, as a supervisor does."""

    def __init__(self, rig: Rig, **environment: str) -> None:
        self._site = rig
        self._environment = environment
        self._workers: list[WorkerProcess] = []
        self._start()

    def keep(self, done: Callable[[], object]) -> None:
        """Replace each worker that dies until `done` is true."""
        eventually(lambda: self._replace() or done())

    @property
    def pids(self) -> list[int]:
        return [worker.pid for worker in self._workers]

    @property
    def unseen(self) -> int:
        """The most deaths that may go unseen: the first one, and each that a worker could not look up in time."""
        return 1 + sum(worker.log.count("cannot read earlier runs") for worker in self._workers)

    def _replace(self) -> None:
        if not self._workers[-1].alive:
            self._start()

    def _start(self) -> None:
        self._workers.append(self._site.worker(modules=("crew", "crew_poison"), **self._environment))


def poison(rig: Rig, after: float) -> str:
    return rig.enqueue("kills_worker", str(rig.notes_path), after, module="crew_poison")


def test_a_job_that_kills_three_workers_fails_and_the_others_are_done(any_rig: Rig) -> None:
    id = poison(any_rig, LONG_ENOUGH)
    for number in range(20):
        any_rig.enqueue("note", str(any_rig.notes_path), str(number))

    crew = Crew(any_rig)
    crew.keep(lambda: list(any_rig.errors()) == [id] and set(any_rig.lines()) == {"poison", *map(str, range(20))})

    # After one look RabbitMQ may count a job less for an instant.
    kind, text = eventually(lambda: any_rig.errors()[id])
    runs = any_rig.lines().count("poison")
    assert kind == "palermo.errors.WorkerDied"
    assert text.startswith("3 workers died while they ran it: ")
    assert sum(f"pid:{pid}@" in text for pid in crew.pids[:runs]) == 3
    assert 3 <= runs <= 3 + crew.unseen
    assert len(crew.pids) == runs + 1
    assert len(any_rig.lines()) == runs + 20
    eventually(lambda: any_rig.pending() == 0)


def test_a_requeued_job_begins_to_count_anew(any_rig: Rig) -> None:
    id = poison(any_rig, LONG_ENOUGH)
    crew = Crew(any_rig, PALERMO_MAX_DEATHS="1")
    crew.keep(lambda: list(any_rig.errors()) == [id])

    before = any_rig.lines().count("poison")
    any_rig.inspector.failed.requeue([id])

    crew.keep(lambda: any_rig.lines().count("poison") > before and list(any_rig.errors()) == [id])
    assert eventually(lambda: any_rig.errors()[id])[1].startswith("1 worker died")
    assert any_rig.lines().count("poison") <= before + 1 + crew.unseen


def test_a_job_that_kills_at_once_takes_one_worker_more_at_most(any_rig: Rig) -> None:
    id = poison(any_rig, 0.0)

    crew = Crew(any_rig)
    crew.keep(lambda: list(any_rig.errors()) == [id])

    assert eventually(lambda: any_rig.errors()[id])[1].startswith("3 workers died")
    assert 3 <= len(crew.pids) - 1 <= 3 + crew.unseen


def test_a_job_given_back_four_times_by_deploys_is_no_poison(any_rig: Rig) -> None:
    any_rig.hold()
    for deploy in range(1, 5):
        worker = any_rig.worker("--shutdown-timeout", "0.3")
        eventually(lambda deploy=deploy: len(any_rig.lines()) == deploy)  # type: ignore[misc]
        worker.send(signal.SIGTERM)
        assert worker.wait() == 1
    last = any_rig.worker()
    eventually(lambda: len(any_rig.lines()) == 5)

    any_rig.open_gate()

    eventually(lambda: any_rig.lines()[-1] == "held ends")
    any_rig.ready(last)
    assert any_rig.errors() == {}
    assert any_rig.lines().count("held begins") == 5
