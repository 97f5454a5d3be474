"""Jobs that run in real workers: common ones, those with odd names, and those whose module calls `connect`."""

import os
import signal
from multiprocessing import get_all_start_methods
from pathlib import Path

import pytest

from tests.harness.rig import Rig
from tests.helpers import eventually, has_traceback


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


@pytest.mark.slow
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


@pytest.mark.slow
def test_failed_jobs_above_the_limit_are_dropped_at_the_start(rig: Rig) -> None:
    ids = [rig.enqueue("raises", str(number)) for number in range(5)]
    rig.burst()
    assert len(rig.errors()) == 5

    worker = rig.worker(PALERMO_FAILED_MAX_COUNT="2")

    eventually(lambda: list(rig.errors()) == ids[3:])
    assert worker.alive


@pytest.mark.slow
def test_odd_jobs_end_in_failed_and_the_jobs_behind_them_run(any_rig: Rig) -> None:
    enqueue = any_rig.client.enqueue
    ids = [
        enqueue("hostile.no\0te", ("a",), {}).id,
        enqueue("hostile.\u2028\x1b[31m", ("a",), {}).id,
        enqueue("mixed.hostile", ("a",), {}, id="nul\0id").id,
        enqueue("mixed.hostile", ("a",), {}, id="é" * 127).id,
        enqueue("mixed.monster", ("a",), {}).id,
        enqueue("hostile.no\0te", ("a",), {}, delay=0.1, tenant="t\0").id,
        enqueue("mixed.hostile", ("a",), {}, limit=1, limit_key="k\0", unique="until_done", unique_key="u\0").id,
    ]
    enqueue("hostile.note", ("behind",), {})

    # Not a burst: that may be over before the leader has moved the delayed job to its queue.
    worker = any_rig.worker("-c", "2", modules=("hostile",), PALERMO_TEST_NOTES=str(any_rig.notes_path))

    eventually(lambda: len(any_rig.errors()) == len(ids) and any_rig.lines() == ["behind"])
    assert worker.stop() == 0
    failed, log = any_rig.errors(), worker.log
    assert set(failed) == set(ids)
    assert (log.count(" connected "), has_traceback(log)) == (1, False)
    assert len(failed[ids[4]][0]) == 500
    assert failed[ids[2]][0] == "ValueError"


JOBS = """
import palermo
palermo.connect({url!r}, {settings})

@palermo.job
def note(path):
    with open(path, "a") as file:
        file.write("done\\n")
"""


@pytest.mark.parametrize(
    ("url", "settings", "named"),
    [
        ("", "exchange='shop'", ["exchange 'shop'", "exchange 'palermo'"]),
        ("sqlite:////tmp/elsewhere/jobs.db", "exchange='palermo'", ["sqlite:////tmp/elsewhere/jobs.db"]),
        ("amqp://me:secret@rabbit:1/shop", "", ["amqp://me:***@rabbit:1/shop"]),
    ],
)
def test_a_worker_whose_module_connects_elsewhere_refuses_to_start(
    url: str, settings: str, named: list[str], rig: Rig, tmp_path: Path
) -> None:
    (tmp_path / "elsewhere.py").write_text(JOBS.format(url=url or rig.settings.url, settings=settings))

    worker = rig.worker("--burst", modules=("elsewhere",), cwd=tmp_path)

    assert worker.wait() == 1
    assert all(text in worker.log for text in [*named, str(rig.settings.address), "PALERMO_URL"]), worker.log
    assert "secret" not in worker.log


def test_a_worker_whose_module_connects_to_its_broker_runs_the_jobs(rig: Rig, tmp_path: Path) -> None:
    settings = "exchange='palermo', default_queue='own', publish_timeout=9"
    (tmp_path / "here.py").write_text(JOBS.format(url=rig.settings.url, settings=settings))
    rig.enqueue("note", str(rig.notes_path), module="here", queue="own")

    rig.burst(modules=("here",), cwd=tmp_path)

    assert rig.lines() == ["done"]
