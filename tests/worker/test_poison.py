"""Jobs whose worker, the parent itself, dies with them; and others that only look like it."""

from collections.abc import Callable

import pytest

from tests.harness.processes import WorkerProcess
from tests.harness.rig import Rig
from tests.helpers import eventually

pytestmark = pytest.mark.slow

#: Seconds. Long enough to be written down, unless the machine is slow; see docs/guides/long-jobs.md.
LONG_ENOUGH = 0.75

#: Workers that may die; one less than without the setting.
DEATHS = 2


class Crew:
    """One worker at a time, replaced when it dies, as a supervisor does."""

    def __init__(self, rig: Rig) -> None:
        self._site = rig
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
        jobs = ("crew", "crew_poison")
        self._workers.append(self._site.worker(modules=jobs, PALERMO_MAX_DEATHS=f"{DEATHS}"))


def poison(rig: Rig, after: float) -> str:
    return rig.enqueue("kills_worker", str(rig.notes_path), after, module="crew_poison")


def test_a_job_that_kills_two_workers_fails_and_the_others_are_done(any_rig: Rig) -> None:
    id = poison(any_rig, LONG_ENOUGH)
    for number in range(20):
        any_rig.enqueue("note", str(any_rig.notes_path), str(number))

    crew = Crew(any_rig)
    crew.keep(lambda: list(any_rig.errors()) == [id] and set(any_rig.lines()) == {"poison", *map(str, range(20))})

    # After one look RabbitMQ may count a job less for an instant.
    kind, text = eventually(lambda: any_rig.errors()[id])
    runs = any_rig.lines().count("poison")
    assert kind == "palermo.errors.WorkerDied"
    assert text.startswith(f"{DEATHS} workers died while they ran it: ")
    assert sum(f"pid:{pid}@" in text for pid in crew.pids[:runs]) == DEATHS
    assert DEATHS <= runs <= DEATHS + crew.unseen
    assert len(crew.pids) == runs + 1
    assert len(any_rig.lines()) == runs + 20
    eventually(lambda: any_rig.pending() == 0)


#: Other brokers write down each start of a job, however short it is.
@pytest.mark.parametrize("any_rig", ["rabbitmq"], indirect=True)
def test_a_job_that_kills_at_once_takes_one_worker_more_at_most(any_rig: Rig) -> None:
    id = poison(any_rig, 0.0)

    crew = Crew(any_rig)
    crew.keep(lambda: list(any_rig.errors()) == [id])

    assert eventually(lambda: any_rig.errors()[id])[1].startswith(f"{DEATHS} workers died")
    assert DEATHS <= len(crew.pids) - 1 <= DEATHS + crew.unseen
