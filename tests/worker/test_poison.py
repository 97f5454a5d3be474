"""Jobs whose worker, the parent itself, dies with them; and others that only look like it."""

import signal
from collections.abc import Callable

from tests.helpers import eventually
from tests.worker.site import Process, Site

#: Seconds. Long enough to be written down, unless the machine is slow; see docs/guides/long-jobs.md.
LONG_ENOUGH = 0.75


class Crew:
    """One worker at a time, replaced when it dies, as a supervisor does."""

    def __init__(self, site: Site, **environment: str) -> None:
        self._site = site
        self._environment = environment
        self._workers: list[Process] = []
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
        return 1 + sum(worker.log.count("cannot tell who ran jobs before") for worker in self._workers)

    def _replace(self) -> None:
        if not self._workers[-1].alive:
            self._start()

    def _start(self) -> None:
        self._workers.append(self._site.start(modules=("crew", "crew_poison"), **self._environment))


def poison(site: Site, after: float) -> str:
    return site.enqueue("kills_worker", str(site.notes_path), after, module="crew_poison")


def test_a_job_that_kills_three_workers_is_in_failed_with_their_names_and_the_others_are_done(any_site: Site) -> None:
    id = poison(any_site, LONG_ENOUGH)
    for number in range(20):
        any_site.enqueue("note", str(any_site.notes_path), str(number))

    crew = Crew(any_site)
    crew.keep(lambda: list(any_site.errors()) == [id] and set(any_site.notes()) == {"poison", *map(str, range(20))})

    # After one look RabbitMQ may count a job less for an instant.
    kind, text = eventually(lambda: any_site.errors()[id])
    runs = any_site.notes().count("poison")
    assert kind == "palermo.errors.WorkerDied"
    assert text.startswith("3 workers died while they ran it: ")
    assert sum(f"pid:{pid}@" in text for pid in crew.pids[:runs]) == 3
    assert 3 <= runs <= 3 + crew.unseen
    assert len(crew.pids) == runs + 1
    assert len(any_site.notes()) == runs + 20
    eventually(lambda: any_site.pending() == 0)


def test_a_requeued_job_begins_to_count_anew(any_site: Site) -> None:
    id = poison(any_site, LONG_ENOUGH)
    crew = Crew(any_site, PALERMO_MAX_DEATHS="1")
    crew.keep(lambda: list(any_site.errors()) == [id])

    before = any_site.notes().count("poison")
    any_site.inspector.requeue([id])

    crew.keep(lambda: any_site.notes().count("poison") > before and list(any_site.errors()) == [id])
    assert eventually(lambda: any_site.errors()[id])[1].startswith("1 worker died")
    assert any_site.notes().count("poison") <= before + 1 + crew.unseen


def test_a_job_that_kills_at_once_takes_one_worker_more_at_most(any_site: Site) -> None:
    id = poison(any_site, 0.0)

    crew = Crew(any_site)
    crew.keep(lambda: list(any_site.errors()) == [id])

    assert eventually(lambda: any_site.errors()[id])[1].startswith("3 workers died")
    assert 3 <= len(crew.pids) - 1 <= 3 + crew.unseen


def test_a_job_given_back_ten_times_by_deploys_is_no_poison(any_site: Site) -> None:
    any_site.hold()
    for deploy in range(1, 11):
        worker = any_site.start("--shutdown-timeout", "0.3")
        eventually(lambda deploy=deploy: len(any_site.notes()) == deploy)  # type: ignore[misc]
        worker.send(signal.SIGTERM)
        assert worker.wait() == 1
    last = any_site.start()
    eventually(lambda: len(any_site.notes()) == 11)

    any_site.open_gate()

    eventually(lambda: any_site.notes()[-1] == "held ends")
    any_site.ready(last)
    assert any_site.errors() == {}
    assert any_site.notes().count("held begins") == 11
