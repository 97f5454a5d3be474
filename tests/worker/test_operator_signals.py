"""Actions of an operator on a worker beyond stopping it: kill its jobs, look into them, quiet it, start it anew."""

import os
import re
import shutil
import signal
import sys
from contextlib import suppress
from pathlib import Path

import pytest

from tests.helpers import eventually
from tests.worker.site import PROGRAMS, Process, Site, exists

MODULE = "crew_limits"
LIMITS = (MODULE,)


def _running(site: Site, job: str, *more: object, arguments: tuple[str, ...] = ()) -> tuple[Process, str]:
    """A worker whose only slot runs this job, which has said so; and the job's id."""
    id = site.enqueue(job, str(site.notes_path), *more, module=MODULE)
    worker = site.start(*arguments, modules=LIMITS)
    eventually(lambda: "waits" in " ".join(site.notes()))
    return worker, id


@pytest.mark.parametrize("job", ["tidies", "hogs_the_gil"])
def test_usr1_fails_the_running_jobs_and_the_worker_goes_on(site: Site, job: str) -> None:
    worker, killed = _running(site, job)
    site.enqueue("tells_pid", str(site.notes_path), module=MODULE)

    worker.send(signal.SIGUSR1)

    eventually(lambda: site.notes()[-1].isdecimal())
    failure = ("palermo.errors.JobCrashed", "the job's process was killed by the operator (USR1)")
    eventually(lambda: site.errors() == {killed: failure})
    assert "on_failure JobCrashed" in site.notes()
    assert worker.alive


def test_usr1_harms_no_idle_worker(site: Site) -> None:
    worker = site.start(modules=LIMITS)
    site.ready(worker)
    children = worker.grown(2)

    worker.send(signal.SIGUSR1)
    eventually(lambda: "signal=USR1" in worker.log)

    assert worker.children() == children


def test_tstp_quiets_a_worker_and_cont_does_not_change_that(site: Site) -> None:
    site.hold()
    site.enqueue("note", str(site.notes_path), "next")
    worker = site.start()
    eventually(lambda: site.notes() == ["held begins"])

    worker.send(signal.SIGTSTP)
    eventually(lambda: site.worker()["state"] == "quiet")
    worker.send(signal.SIGUSR2)
    eventually(lambda: "action=pause" in worker.log)
    worker.send(signal.SIGCONT)
    eventually(lambda: "action=resume" in worker.log and "worker stays quiet" in worker.log)
    worker.send(signal.SIGCONT)
    eventually(lambda: "signal=CONT action=none" in worker.log)
    site.open_gate()
    eventually(lambda: site.notes() == ["held begins", "held ends"])
    eventually(lambda: worker.title() == "palermo worker: quiet")

    assert site.pending() == 1
    worker.send(signal.SIGTERM)
    assert worker.wait() == 0
    assert site.pending() == 1


@pytest.mark.parametrize(("job", "shown"), [("stubborn", "in stubborn"), ("hogs_the_gil", "in in_c")])
def test_ttin_logs_the_stacks_of_the_parent_and_of_a_job_without_stopping_it(site: Site, job: str, shown: str) -> None:
    worker, id = _running(site, job)

    for _ in range(2):
        before = worker.log.count(shown)
        worker.dump(lambda log, before=before: log.count(shown) > before)  # type: ignore[misc]

    assert f"stacks of a job id={id} job={MODULE}.{job} slot=1" in worker.log
    assert f"stacks of the worker pid={worker.pid}" in worker.log
    assert "in serve" in worker.log
    assert exists(int(site.notes()[0].split()[0]))
    assert site.errors() == {}


def test_ttin_names_every_running_job(site: Site) -> None:
    ids = [site.hold(), site.hold()]
    worker = site.start("-c", "2")
    eventually(lambda: len(site.notes()) == 2)

    # The lines of a stack are indented.
    stacks = [re.compile(rf"stacks of a job id={id} .*\n(?:    .*\n)*    .*crew\.py") for id in ids]
    worker.dump(lambda log: all(each.search(log) for each in stacks))


@pytest.fixture
def code(tmp_path: Path) -> Path:
    """A module of the test's own, to be changed."""
    folder = tmp_path / "code"
    folder.mkdir()
    shutil.copy(PROGRAMS / "crew.py", folder)
    (folder / "shop.py").write_text(_shop("old"))
    return folder


def _shop(version: str) -> str:
    return f"""import palermo
from crew import hold, write

@palermo.job
def version(path):
    write(path, "{version}")
"""


def _version(site: Site) -> None:
    site.enqueue("version", str(site.notes_path), module="shop")


def test_hup_finishes_the_running_job_and_starts_anew_with_fresh_code(any_site: Site, code: Path) -> None:
    site = any_site
    pidfile = site.path / "pid"
    worker = site.start("--pidfile", str(pidfile), modules=("shop",), within=code)
    _version(site)
    eventually(lambda: site.notes() == ["old"])
    site.hold()
    eventually(lambda: site.notes()[-1] == "held begins")
    (code / "shop.py").write_text(_shop("shiny"))

    worker.send(signal.SIGHUP)
    eventually(lambda: "action=renew" in worker.log)
    _version(site)
    worker.send(signal.SIGHUP)
    site.open_gate()

    eventually(lambda: site.notes() == ["old", "held begins", "held ends", "shiny"])
    assert pidfile.read_text() == f"{worker.pid}\n"
    assert site.errors() == {}
    eventually(lambda: [row["pid"] for row in site.workers()] == [worker.pid])
    worker.send(signal.SIGTERM)
    assert worker.wait() == 0


def test_a_module_that_is_broken_after_hup_ends_the_worker_with_a_reason(site: Site, code: Path) -> None:
    worker = site.start(modules=("shop",), within=code)
    site.ready(worker)
    (code / "shop.py").write_text("import nonsense_\n")

    worker.send(signal.SIGHUP)
    eventually(lambda: "action=renew" in worker.log)
    _version(site)

    assert worker.wait() == 1
    assert "cannot import module 'shop': ModuleNotFoundError: No module named 'nonsense_'" in worker.log
    assert site.pending() == 1


def test_term_after_hup_ends_the_worker(site: Site) -> None:
    site.hold()
    worker = site.start()
    eventually(lambda: site.notes() == ["held begins"])

    worker.send(signal.SIGHUP)
    eventually(lambda: "action=renew" in worker.log)
    worker.send(signal.SIGTERM)
    eventually(lambda: "action=stop" in worker.log)
    site.open_gate()

    assert worker.wait() == 0


def test_hup_while_the_modules_are_imported_imports_them_anew(site: Site) -> None:
    worker = site.start(modules=("slow_to_import",))
    eventually(lambda: worker.title() == "palermo worker: importing slow_to_import")

    worker.send(signal.SIGHUP)

    eventually(lambda: "starting anew" in worker.log)
    eventually(lambda: worker.title() == "palermo worker: importing slow_to_import")
    worker.send(signal.SIGTERM)
    assert worker.wait() == 0


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_with_resque_signals_term_and_int_kill_at_once_and_the_job_is_given_back(
    site: Site, number: signal.Signals
) -> None:
    worker, _ = _running(site, "tidies", arguments=("--resque-signals",))

    worker.send(number)

    assert worker.wait() == 1
    assert len(site.notes()) == 1
    assert site.errors() == {}
    assert site.pending() == 1


@pytest.mark.parametrize(
    ("job", "more"),
    [("tidies", ()), ("gives_up", ("key",)), ("gives_up", ("exit",))],
    ids=["tidies", "raises", "exits"],
)
def test_a_job_that_outlasts_the_timeout_may_clean_up_and_is_given_back_whatever_it_raises(
    any_site: Site, job: str, more: tuple[str, ...]
) -> None:
    site = any_site
    worker, _ = _running(site, job, *more, arguments=("--shutdown-timeout", "0.2"))

    worker.send(signal.SIGTERM)

    assert worker.wait() == 1
    assert site.notes()[1:] == (["tidied after JobTerminated"] if job == "tidies" else [])
    assert "told of" not in worker.log
    assert site.errors() == {}
    assert eventually(site.pending) == 1


def test_a_job_that_finishes_when_it_is_told_to_clean_up_has_finished(site: Site) -> None:
    worker, _ = _running(site, "finishes", arguments=("--shutdown-timeout", "0.2"))

    worker.send(signal.SIGTERM)

    assert worker.wait() == 1
    assert site.notes()[-1] == "finished all the same"
    assert (site.errors(), site.pending()) == ({}, 0)


def test_a_job_that_does_not_listen_is_killed_after_the_grace_and_given_back(site: Site) -> None:
    worker, _ = _running(site, "stubborn", arguments=("--shutdown-timeout", "0.2"))

    worker.send(signal.SIGTERM)

    assert worker.wait() == 1
    assert site.notes()[1:] == ["not impressed"]
    assert (site.errors(), site.pending()) == ({}, 1)


def test_a_stray_term_to_a_slot_does_not_disturb_its_job(site: Site) -> None:
    worker, _ = _running(site, "tidies")
    slot = int(site.notes()[0].split()[0])

    os.kill(slot, signal.SIGTERM)

    worker.dump(lambda log: "in tidies" in log)
    assert len(site.notes()) == 1


@pytest.mark.skipif(sys.platform != "linux", reason="pid namespaces are Linux's")
def test_as_process_1_it_reaps_orphans_and_obeys_term(site: Site) -> None:
    unshare = ["unshare", "--pid", "--fork", "--mount-proc", "--kill-child", sys.executable, "-m", "palermo"]
    if os.geteuid() != 0:
        unshare[1:1] = ["--user", "--map-root-user"]
    site.enqueue("leaves_an_orphan", str(site.notes_path), str(site.gate), module=MODULE)
    worker = site.run([*unshare, "worker", MODULE])
    inside = eventually(worker.children)[0]
    eventually(lambda: site.notes())
    orphans = eventually(lambda: _children_of(inside, site.notes()[0]))
    site.open_gate()

    eventually(lambda: not any(Path(f"/proc/{pid}").exists() for pid in orphans))

    eventually(lambda: any(row["pid"] == 1 for row in site.workers()))
    os.kill(inside, signal.SIGTERM)
    assert worker.wait() == 0


def _children_of(parent: int, inner: str) -> list[int]:
    """The children of a process that have this pid inside of its namespace."""
    children = Path(f"/proc/{parent}/task/{parent}/children").read_text().split()
    return [int(pid) for pid in children if _inner_pid(pid) == inner]


def _inner_pid(pid: str) -> str:
    """The pid inside of its namespace; "" for a process that has ended."""
    with suppress(FileNotFoundError, ProcessLookupError):
        for line in Path(f"/proc/{pid}/status").read_text().splitlines():
            if line.startswith("NSpid:"):
                return line.split()[-1]
    return ""


def test_R5_a_job_gets_the_term_timeout_to_clean_up(site: Site) -> None:
    arguments = ("--shutdown-timeout", "0.2", "--term-timeout", "10m")
    worker, _ = _running(site, "tidies_slowly", str(site.gate), arguments=arguments)

    worker.send(signal.SIGTERM)
    eventually(lambda: site.notes()[-1] == "begins to tidy")
    site.open_gate()

    assert worker.wait() == 1
    assert site.notes()[-1] == "has tidied"
    assert "grace=600.0" in worker.log
    assert site.pending() == 1


@pytest.mark.parametrize("seconds", ["0", "0.3s"])
def test_R5_a_job_that_cleans_up_longer_than_the_term_timeout_is_killed_and_given_back(
    site: Site, seconds: str
) -> None:
    arguments = ("--shutdown-timeout", "0.2", "--term-timeout", seconds)
    worker, _ = _running(site, "tidies_slowly", str(site.gate), arguments=arguments)

    worker.send(signal.SIGTERM)

    assert worker.wait() == 1
    assert "has tidied" not in site.notes()
    assert site.pending() == 1
    assert site.errors() == {}


@pytest.mark.parametrize("pool", ["process", "thread", "async"])
def test_R7_what_jobs_gave_to_atexit_runs_when_their_process_ends_if_the_worker_was_told_so(
    site: Site, pool: str
) -> None:
    for text in ("first", "second"):
        site.enqueue("leaves_something", str(site.notes_path), text, module=MODULE)

    site.burst("--pool", pool, "--run-atexit", modules=LIMITS)

    pid, _, _ = site.notes()[0].partition(" ")
    assert site.notes() == [f"{pid} ran", f"{pid} ran", f"second left by {pid}", f"first left by {pid}"]


def test_R7_a_function_of_atexit_that_hangs_is_logged_before_the_worker_has_stopped(site: Site) -> None:
    site.enqueue("leaves_a_hang", module=MODULE)

    log = site.burst("--run-atexit", modules=LIMITS)

    assert log.count("slot does not end by itself, killing it slot=1 ") == 1
    assert log.index("slot does not end by itself") < log.index("worker stopped")


def test_R7_a_process_for_each_job_runs_what_its_job_gave_to_atexit(site: Site) -> None:
    for text in ("first", "second"):
        site.enqueue("leaves_something", str(site.notes_path), text, module=MODULE)

    site.burst("--max-jobs", "1", "--run-atexit", modules=LIMITS)

    one, other = (line.partition(" ")[0] for line in site.notes() if line.endswith("ran"))
    assert {f"first left by {one}", f"second left by {other}"} <= set(site.notes())
    assert one != other


def test_R7_what_jobs_gave_to_atexit_does_not_run_unless_it_is_asked_for(site: Site) -> None:
    site.enqueue("leaves_something", str(site.notes_path), "first", module=MODULE)

    site.burst(modules=LIMITS)

    assert [line.partition(" ")[2] for line in site.notes()] == ["ran"]
