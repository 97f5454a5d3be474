"""Pools whose slots share a child: what jobs are to each other, and to their worker."""

import os
import signal

import pytest

from tests.helpers import eventually
from tests.worker.site import Site, exists, title

MODULE = "crew_pools"

#: Pools, each with what its jobs' names begin with: "a" for coroutines. Plain functions run in an async pool as well.
POOLS = pytest.mark.parametrize(("pool", "a"), [("thread", ""), ("async", "a"), ("async", "")])
BOTH = pytest.mark.parametrize("pool", ["thread", "async"])


def enqueue(site: Site, job: str, *args: object, **options: object) -> str:
    return site.enqueue(job, *args, module=MODULE, **options)


def burst(site: Site, pool: str, *arguments: str) -> str:
    return site.burst("--pool", pool, *arguments, modules=(MODULE, "crew"))


@POOLS
def test_all_jobs_run_in_one_process_that_the_parent_is_not(site: Site, pool: str, a: str) -> None:
    for _ in range(20):
        enqueue(site, f"{a}tells_pid", str(site.notes_path))

    worker = site.start("--pool", pool, "-c", "4", modules=(MODULE,))

    eventually(lambda: len(site.notes()) == 20)
    assert len(set(site.notes())) == 1
    assert int(site.notes()[0]) == worker.grown(2)[1]


@BOTH
def test_the_same_on_every_broker(any_site: Site, pool: str) -> None:
    site = any_site
    for number in range(30):
        site.enqueue("note", str(site.notes_path), str(number))
        site.enqueue("waits", str(site.notes_path))
    failing = site.enqueue("waits_in_vain")

    burst(site, pool, "-c", "8")

    assert sorted(site.notes()) == sorted([str(number) for number in range(30)] + ["waited"] * 30)
    assert site.errors() == {failing: ("LookupError", "nobody came")}


def test_five_hundred_coroutines_run_at_once(any_site: Site) -> None:
    site = any_site
    for _ in range(500):
        enqueue(site, "meets", str(site.notes_path), 500)

    worker = site.start("--pool", "async", "-c", "500", "--log-level", "warning", modules=(MODULE,))

    eventually(lambda: len(site.notes()) == 500, every=0.2)
    assert len(worker.grown(2)) == 2
    eventually(lambda: site.pending() == 0)
    assert site.errors() == {}


@POOLS
def test_every_job_has_its_own_context_and_its_lines_name_it(site: Site, pool: str, a: str) -> None:
    ids = [enqueue(site, f"{a}remembers", str(site.notes_path), str(number)) for number in range(20)]
    logging = site.enqueue("logs", "of its own")

    log = burst(site, pool, "-c", "4")

    assert sorted(site.notes()) == sorted(f"nothing {id}" for id in ids)
    assert f"of its own id={logging} job=crew.logs" in log
    assert f"as libraries do id={logging} job=crew.logs" in log


@BOTH
def test_hooks_and_failure_back_ends_run_as_in_processes(site: Site, pool: str) -> None:
    site.enqueue("note", str(site.notes_path), "x")
    site.enqueue("waits_in_vain")
    site.enqueue("exits", 3)

    site.burst("--pool", pool, modules=("crew", "crew_hooks"))

    told = [line[0] for line in site.trace()]
    assert told.count("before_fork") == told.count("after_fork")
    assert (told.count("before_process"), told.count("after_process")) == (3, 1)
    assert [line[2] for line in site.trace() if line[0] == "on_failure"] == ["LookupError", "JobCrashed"]
    assert [line[2] for line in site.trace() if line[0] == "tracker"] == [
        "LookupError",
        "palermo.errors.JobCrashed",
    ]


@pytest.mark.parametrize(
    ("pool", "job", "args", "kind"),
    [
        ("thread", "raises", ("SystemExit",), "SystemExit"),
        ("thread", "raises", ("KeyboardInterrupt",), "KeyboardInterrupt"),
        ("thread", "raises", ("StopIteration",), "StopIteration"),
        ("async", "araises", ("SystemExit",), "SystemExit"),
        ("async", "araises", ("KeyboardInterrupt",), "KeyboardInterrupt"),
        ("async", "araises", ("Cancelled",), "asyncio.exceptions.CancelledError"),
        ("async", "cancels_itself", (), "asyncio.exceptions.CancelledError"),
        ("async", "cancels_itself_late", (), ""),
        ("async", "cancels_everybody", (), ""),
        ("async", "leaves_a_task_that_exits", (), ""),
        ("async", "stops_the_loop", (), ""),
    ],
)
def test_whatever_a_job_raises_or_does_to_the_loop_its_child_lives_on(
    site: Site, pool: str, job: str, args: tuple[str, ...], kind: str
) -> None:
    worker = site.start("--pool", pool, modules=(MODULE,))
    site.ready(worker)
    child = worker.grown(2)[1]

    id = enqueue(site, job, *args)
    enqueue(site, "tells_pid", str(site.notes_path))

    eventually(lambda: site.notes() == [str(child)])
    eventually(lambda: {id: error[0] for id, error in site.errors().items()} == ({id: kind} if kind else {}))


@POOLS
def test_the_title_says_how_many_slots_are_busy(site: Site, pool: str, a: str) -> None:
    for _ in range(2):
        enqueue(site, f"{a}hold", str(site.notes_path), str(site.gate)) if a else site.hold()
    worker = site.start("--pool", pool, "-c", "3", modules=(MODULE, "crew"))
    eventually(lambda: len(site.notes()) == 2)
    child = worker.grown(2)[1]

    eventually(lambda: title(child) == f"palermo {pool} pool: 2 of 3 slots busy")
    site.open_gate()
    eventually(lambda: title(child) == f"palermo {pool} pool: idle")


@POOLS
def test_a_job_that_kills_its_process_alone_fails_and_the_next_one_runs(site: Site, pool: str, a: str) -> None:
    site.open_gate()
    crash = enqueue(site, f"{a}crash_after", str(site.notes_path), str(site.gate))
    enqueue(site, f"{a}tells_pid", str(site.notes_path))

    burst(site, pool)

    message = "the job's process was killed by SIGSEGV (segmentation fault)"
    assert site.errors() == {crash: ("palermo.errors.JobCrashed", message)}
    assert "on_failure JobCrashed" in site.notes()
    assert site.notes()[-1].isdecimal()


@POOLS
def test_of_several_jobs_in_a_process_that_dies_only_the_guilty_one_fails(any_site: Site, pool: str, a: str) -> None:
    site = any_site
    for text in ("first", "second"):
        enqueue(site, f"{a}survives", str(site.notes_path), text)
    crash = enqueue(site, f"{a}crash_after", str(site.notes_path), str(site.gate))
    worker = site.start("--pool", pool, "-c", "3", modules=(MODULE,))
    eventually(lambda: len(site.notes()) == 3)

    site.open_gate()

    eventually(lambda: {"first ends", "second ends", "on_failure JobCrashed"} <= set(site.notes()))
    eventually(lambda: set(site.errors()) == {crash})
    runs = [line.split() for line in site.notes() if " begins" in line]
    assert [len([run for run in runs if run[0] == text]) for text in ("first", "second", "fuse")] == [2, 2, 2]
    assert len({run[2] for run in runs if len(run) == 3}) == 3
    assert worker.log.count("this one runs again alone") == 3
    eventually(lambda: len(worker.children()) == 2)
    assert site.pending() == 0


@BOTH
def test_a_child_killed_while_it_idles_is_replaced_without_a_word_to_any_job(site: Site, pool: str) -> None:
    worker = site.start("--pool", pool, modules=(MODULE,))
    site.run_one(worker)
    child = worker.grown(2)[1]

    os.kill(child, signal.SIGKILL)
    eventually(lambda: "slots ended while idle" in worker.log)
    enqueue(site, "tells_pid", str(site.notes_path))

    eventually(lambda: len(site.notes()) == 1)
    assert site.errors() == {}


@BOTH
def test_when_the_template_dies_its_jobs_fail_and_the_worker_begins_anew(site: Site, pool: str) -> None:
    ids = {site.hold()}
    worker = site.start("--pool", pool, "-c", "2")
    eventually(lambda: site.notes() == ["held begins"])
    ids.add(site.enqueue("kills_template"))

    eventually(lambda: set(site.errors()) == ids)
    site.enqueue("note", str(site.notes_path), "after")

    eventually(lambda: "after" in site.notes())
    assert worker.log.count("worker started") == 2


@BOTH
def test_killing_the_parent_ends_its_child_and_the_jobs_run_elsewhere(site: Site, pool: str) -> None:
    site.hold("first")
    site.hold("second")
    worker = site.start("--pool", pool, "-c", "2")
    eventually(lambda: len(site.notes()) == 2)
    children = worker.grown(2)

    worker.send(signal.SIGKILL)

    eventually(lambda: not any(exists(pid) for pid in children))
    site.open_gate()
    site.start("--pool", pool, "-c", "2")
    eventually(lambda: {"first ends", "second ends"} <= set(site.notes()))
    assert site.errors() == {}


def test_a_pool_that_there_is_not_is_refused_in_one_line(site: Site) -> None:
    worker = site.start("--pool", "fibre")

    assert worker.wait() == 2
    assert "'fibre' is not one of 'process', 'thread', 'async'" in worker.log
