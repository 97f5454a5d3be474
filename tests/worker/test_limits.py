"""Limits: how long a job may run and wait, and how long a slot is used, on real processes."""

import re
import signal

import pytest

from tests.helpers import eventually
from tests.worker.site import Process, Site, exists

MODULE = "crew_limits"
LIMITS = (MODULE,)


def _enqueue(site: Site, job: str, *more: object, **options: object) -> str:
    return site.enqueue(job, str(site.notes_path), *more, module=MODULE, **options)


def test_a_job_that_runs_too_long_is_told_by_an_exception_and_its_slot_lives_on(any_site: Site) -> None:
    site = any_site
    slow = _enqueue(site, "tidies", timeout=2.0)
    _enqueue(site, "tells_pid")

    site.burst(modules=LIMITS)

    kind, text = site.errors()[slow]
    assert kind == "palermo.errors.JobTimeout"
    assert text == "the job ran longer than its timeout of 2 s"
    waits, tidied, told, pid = site.notes()
    assert (tidied, told) == ("tidied after JobTimeout", "on_failure JobTimeout")
    assert waits == f"{pid} waits"


def test_an_async_job_that_runs_too_long_is_told_too(site: Site) -> None:
    slow = _enqueue(site, "tidies_async", timeout=2.0)

    site.burst(modules=LIMITS)

    assert site.errors()[slow][0] == "palermo.errors.JobTimeout"
    assert site.notes() == ["tidied", "on_failure JobTimeout"]


@pytest.mark.parametrize("job", ["stubborn", "hogs_the_gil"])
def test_a_job_that_does_not_listen_is_killed_after_the_grace(site: Site, job: str) -> None:
    slow = _enqueue(site, job, timeout=2.0)
    _enqueue(site, "tells_pid")

    site.burst("--timeout-grace", "0.3", modules=LIMITS)

    kind, text = site.errors()[slow]
    assert kind == "palermo.errors.JobTimeout"
    assert text == "the job's process was killed: it ran 0.3 s longer than its timeout of 2 s"
    assert "on_failure JobTimeout" in site.notes()
    assert site.notes()[-1].isdecimal()
    assert site.notes()[-1] != site.notes()[0].split()[0]


def test_a_declared_timeout_holds_for_jobs_enqueued_by_name_and_the_workers_for_all_others(site: Site) -> None:
    declared = _enqueue(site, "short")
    other = _enqueue(site, "tidies")

    site.burst("--timeout", "0.3", modules=LIMITS)

    assert site.errors()[declared][1] == "the job ran longer than its timeout of 0.2 s"
    assert site.errors()[other][1] == "the job ran longer than its timeout of 0.3 s"


def test_a_job_that_was_not_started_in_time_fails_without_running_and_runs_when_requeued(any_site: Site) -> None:
    site = any_site
    late = _enqueue(site, "tells_pid", expires=0.001)
    timely = _enqueue(site, "tells_pid", expires=600)

    site.burst(modules=LIMITS)

    ((failed, (kind, text)),) = site.errors().items()
    assert (failed, kind) == (late, "palermo.errors.JobExpired")
    assert "was not started in time" in text
    assert len(site.notes()) == 1
    assert timely != late
    site.inspector.requeue([late])
    site.burst(modules=LIMITS)
    assert site.errors() == {}
    assert len(site.notes()) == 2


def test_c2_a_run_that_hangs_is_killed_when_its_claim_ends_and_runs_again(any_site: Site) -> None:
    site = any_site
    _enqueue(site, "hangs_once")

    log = site.burst(modules=LIMITS)

    assert site.errors() == {}
    first, told, again = site.notes()
    assert first.startswith("hangs ")
    assert (told, again) == ("on_failure LockExpired", "again False")
    assert "it had not ended when its claim did, after lock_for 3 s" in log


def test_c2_a_worker_that_stands_still_loses_its_claim_and_its_run_is_dead_before_the_next(any_site: Site) -> None:
    site = any_site
    # RabbitMQ takes back the jobs of a worker that misses its heartbeats, two seconds apart.
    url = site.settings.url + ("?heartbeat=2" if site.settings.url.startswith("amqp") else "")
    stalled = site.start(modules=LIMITS, PALERMO_URL=url)
    _enqueue(site, "hangs_once", lock_for=3.0)
    eventually(lambda: site.notes() != [])

    stalled.send(signal.SIGSTOP)
    site.start(modules=LIMITS, PALERMO_URL=url)

    eventually(lambda: len(site.notes()) == 2)
    assert site.notes()[1] == "again False"
    stalled.send(signal.SIGCONT)
    eventually(lambda: "result dropped" in stalled.log or not stalled.alive)
    assert sum(note.startswith("again") for note in site.notes()) == 1
    eventually(lambda: (site.errors(), site.pending()) == ({}, 0))


@pytest.mark.parametrize("pool", ["process", "thread"])
def test_c2_a_job_whose_claim_ends_a_third_time_has_failed(site: Site, pool: str) -> None:
    hung = _enqueue(site, "hangs_always")

    site.burst("--pool", pool, "--timeout-grace", "0.1", modules=LIMITS)

    assert site.errors()[hung][0] == "palermo.errors.LockExpired"
    assert [note for note in site.notes() if note.startswith("hangs")] == ["hangs 1", "hangs 2", "hangs 3"]


@pytest.mark.parametrize("retries", [0, 1])
def test_c2_a_job_whose_claim_ends_runs_again_as_often_as_its_retries_say(any_site: Site, retries: int) -> None:
    site = any_site
    hung = _enqueue(site, "hangs_always", retries=retries)

    site.burst(modules=LIMITS)

    assert site.errors()[hung][0] == "palermo.errors.LockExpired"
    assert [note for note in site.notes() if note.startswith("hangs")] == ["hangs 1", "hangs 2"][: retries + 1]


def _pids(site: Site, jobs: int, *arguments: str) -> list[str]:
    for _ in range(jobs):
        _enqueue(site, "tells_pid")
    site.burst(*arguments, modules=LIMITS)
    return site.notes()


def test_without_limits_a_slot_runs_all_jobs(site: Site) -> None:
    assert len(set(_pids(site, 4))) == 1


@pytest.mark.parametrize(("limit", "processes"), [("1", 5), ("2", 3)])
def test_a_slot_is_replaced_after_so_many_jobs(site: Site, limit: str, processes: int) -> None:
    pids = _pids(site, 5, "--max-jobs", limit)

    assert len(pids) == 5
    assert len(set(pids)) == processes
    assert site.errors() == {}


def test_a_slot_is_replaced_when_it_is_old_even_if_it_was_idle(site: Site) -> None:
    worker = site.start("--max-lifetime", "0.2", modules=LIMITS)
    site.ready(worker)
    _enqueue(site, "tells_pid")
    eventually(lambda: len(site.notes()) == 1)
    eventually(lambda: not exists(int(site.notes()[0])) or _enqueue(site, "tells_pid") == "")

    assert site.errors() == {}
    assert "slot replaced" in worker.log


def test_a_slot_that_has_grown_is_replaced_after_its_job(site: Site) -> None:
    # The worker looks every second: a look that comes between the job's growth and its end kills it.
    for _ in range(10):
        grown, after = _enqueue(site, "eats", 300, 0), _enqueue(site, "tells_pid")
        log = site.burst("--max-memory", "250", modules=LIMITS)
        if site.errors().get(grown, ("",))[0] != "palermo.errors.JobOutOfMemory":
            break
        site.notes_path.unlink()

    eater, other = site.notes()
    assert eater != f"{other} eats"
    assert site.errors().keys().isdisjoint({grown, after})
    assert "MB, above 250 MB" in log


def test_a_job_that_grows_above_the_limit_is_killed_and_says_why(site: Site) -> None:
    hungry = _enqueue(site, "eats", 300, 60)
    _enqueue(site, "tells_pid")

    site.burst("--max-memory", "250", modules=LIMITS)

    kind, text = site.errors()[hungry]
    assert kind == "palermo.errors.JobOutOfMemory"
    # A look may come while it grows.
    size = re.fullmatch(r"the job's process was killed: its resident size was (\d+) MB, above 250 MB", text)
    assert size, text
    assert 250 <= int(size[1]) < 400
    assert site.notes()[1] == "on_failure JobOutOfMemory"


def test_replacing_slots_and_stopping_do_not_meet(site: Site) -> None:
    for _ in range(200):
        _enqueue(site, "tells_pid")
    worker: Process = site.start("--max-jobs", "1", "-c", "2", modules=LIMITS)
    eventually(lambda: len(site.notes()) > 10)

    worker.send(signal.SIGTERM)

    assert worker.wait() == 0
    assert site.errors() == {}
    assert len(site.notes()) + site.pending() == 200


def test_replacing_slots_and_pausing_do_not_meet(site: Site) -> None:
    for _ in range(60):
        _enqueue(site, "tells_pid")
    worker = site.start("--max-jobs", "1", "-c", "2", modules=LIMITS)

    for pauses in range(1, 6):
        eventually(lambda wanted=pauses: len(site.notes()) > wanted * 5)  # type: ignore[misc]
        worker.send(signal.SIGUSR2)
        eventually(lambda wanted=pauses: worker.log.count("action=pause") == wanted)  # type: ignore[misc]
        worker.send(signal.SIGCONT)

    eventually(lambda: len(site.notes()) == 60)
    site.ready(worker)
    assert len(worker.grown(3)) == 3
    assert len(set(site.notes())) == 60
    assert site.errors() == {}


@pytest.mark.parametrize(
    "arguments",
    [
        ("--max-jobs", "0"),
        ("--max-jobs", "many"),
        ("--max-memory", "-1"),
        ("--max-memory", "nan"),
        ("--max-lifetime", "0"),
        ("--max-lifetime", "soon"),
        ("--timeout", "0"),
        ("--timeout-grace", "x"),
    ],
)
def test_a_limit_that_makes_no_sense_is_refused_in_one_line(site: Site, arguments: tuple[str, ...]) -> None:
    worker = site.start(*arguments)

    assert worker.wait() == 2
    assert worker.log.startswith("palermo: ")
    assert worker.log.count("\n") == 1
