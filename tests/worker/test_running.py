"""Jobs that run in real workers, on the embedded broker."""

import os
import signal
from multiprocessing import get_all_start_methods

import pytest

from tests.harness.rig import Rig
from tests.helpers import eventually


@pytest.mark.slow
def test_a_burst_runs_what_waits_in_its_order_and_leaves(rig: Rig) -> None:
    notes, large = str(rig.notes_path), 15 * 1024 * 1024
    for number in range(3):
        rig.enqueue("note", notes, str(number))
    rig.enqueue("waits", notes)
    rig.enqueue("measures", notes, "x" * large)
    for _ in range(2):
        rig.enqueue("tells_pids", notes)
    current = rig.enqueue("tells_current", notes)
    rig.enqueue("enqueues", notes, "from inside")

    worker = rig.worker("--burst")
    assert worker.wait() == 0, worker.log

    slot = f"pid:{worker.pid}@{os.uname().nodename}/worker-1"
    *first, pids, same_pids, told, inside = rig.lines()
    assert first == ["0", "1", "2", "waited", str(large)]
    assert pids == same_pids
    assert told == f"{current} jobs crew.tells_current 1 {slot}"
    assert inside == "from inside"
    assert (rig.pending(), rig.errors(), worker.log.count("job finished")) == (0, {}, 10)


def test_a_worker_warns_of_its_settings_once_also_if_its_jobs_enqueue(rig: Rig) -> None:
    id = rig.enqueue("enqueues", str(rig.notes_path), module="crew_families")
    (rig.path / "jobs.db").chmod(0o666)

    log = rig.burst(modules=("crew_families",))

    assert rig.client.job_by_id(id).status() == "done"
    assert log.count("all users of this machine can read the file of jobs") == 1


def test_jobs_get_no_input_lose_no_output_and_start_processes_that_obey_term(rig: Rig) -> None:
    methods = get_all_start_methods()
    rig.enqueue("reads_stdin", str(rig.notes_path))
    rig.enqueue("starts_a_program", str(rig.notes_path))
    for method in methods:
        rig.enqueue("starts_a_process", str(rig.notes_path), method)
    rig.enqueue("prints", "printed before the crash")
    rig.enqueue("killed", "SIGKILL")

    log = rig.burst()

    assert rig.lines() == ["''", *[str(-signal.SIGTERM)] * (1 + len(methods))]
    assert "printed before the crash" in log


def test_without_a_list_a_worker_serves_the_queues_its_jobs_name(rig: Rig) -> None:
    rig.enqueue("low", str(rig.notes_path), "low", queue="low")
    rig.enqueue("note", str(rig.notes_path), "plain")
    worker = rig.worker()

    eventually(lambda: sorted(rig.lines()) == ["low", "plain"])
    rig.ready(worker)
    assert rig.only_worker()["queues"] == ["jobs", "low"]
    assert worker.title() == "palermo worker: waiting for jobs,low"


def test_a_module_without_jobs_ends_the_worker_with_one_line(rig: Rig) -> None:
    worker = rig.worker(modules=("jobless",))

    assert worker.wait() == 1
    (line,) = worker.log.splitlines()
    assert "no job in jobless, so there is no queue to serve" in line


def test_a_module_that_enqueues_while_it_is_imported_is_named_once(rig: Rig) -> None:
    (rig.path / "eager.py").write_text("import eager_shop\n")
    (rig.path / "eager_shop.py").write_text(
        "import palermo\n@palermo.job\ndef index(definition): ...\n"
        "for nth in range(3):\n    index.enqueue(definition=nth)\n"
    )

    log = rig.burst(modules=("eager",), cwd=rig.path)

    assert log.count("module enqueues a job when imported") == 1
    assert "module=eager_shop line=5 job=eager_shop.index" in log
    assert rig.pending() == 0


def test_failed_jobs_above_the_limit_are_dropped_at_the_start(rig: Rig) -> None:
    ids = [rig.enqueue("raises", str(number)) for number in range(5)]
    rig.burst()
    assert len(rig.errors()) == 5

    worker = rig.worker(PALERMO_FAILED_MAX_COUNT="2")

    eventually(lambda: list(rig.errors()) == ids[3:])
    assert worker.alive
