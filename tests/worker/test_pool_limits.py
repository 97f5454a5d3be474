"""Limits and signals where slots share a child: what they do to a job, and what to its neighbours."""

import signal

import pytest

from tests.helpers import eventually
from tests.worker.site import Process, Site, exists

MODULE = "crew_pools"

#: Pools, each with what its jobs' names begin with: "a" for coroutines.
POOLS = pytest.mark.parametrize(("pool", "a"), [("thread", ""), ("async", "a")])


def enqueue(site: Site, job: str, *more: object, **options: object) -> str:
    return site.enqueue(job, str(site.notes_path), *more, module=MODULE, **options)


def start(site: Site, pool: str, *arguments: str) -> Process:
    return site.start("--pool", pool, *arguments, modules=(MODULE, "crew"))


def held(site: Site, a: str) -> str:
    """Enqueue a job that runs until the gate opens."""
    return enqueue(site, "ahold", str(site.gate)) if a else site.hold()


def waiting(site: Site, pool: str, job: str, a: str, *arguments: str) -> tuple[Process, str, str]:
    """A worker that runs this job, beside one that waits for the gate; and the ids of both."""
    id, neighbour = enqueue(site, f"{a}{job}"), held(site, a)
    worker = start(site, pool, "-c", "2", *arguments)
    eventually(lambda: {"waits", "held begins"} <= set(site.notes()))
    return worker, id, neighbour


@POOLS
def test_a_job_that_runs_too_long_is_told_and_its_neighbours_are_not(site: Site, pool: str, a: str) -> None:
    slow = enqueue(site, f"{a}tidies", timeout=2.0)
    held(site, a)
    worker = start(site, pool, "-c", "2")
    eventually(lambda: "on_failure JobTimeout" in site.notes())
    children = worker.grown(2)

    site.open_gate()

    eventually(lambda: "held ends" in site.notes())
    assert ("tidied" if a else "tidied after JobTimeout") in site.notes()
    # The hook writes its note before the job is in `failed`.
    failure = ("palermo.errors.JobTimeout", "the job ran longer than its timeout of 2 s")
    eventually(lambda: site.errors() == {slow: failure})
    assert worker.children() == children


def test_a_coroutine_in_a_thread_is_told_where_it_awaits(site: Site) -> None:
    slow = enqueue(site, "atidies", timeout=2.0)

    site.burst("--pool", "thread", modules=(MODULE,))

    assert site.errors()[slow][1] == "the job ran longer than its timeout of 2 s"
    assert "tidied" in site.notes()


@POOLS
def test_a_job_that_does_not_listen_is_killed_once_its_neighbours_have_finished(site: Site, pool: str, a: str) -> None:
    held(site, a)
    stuck = enqueue(site, f"{a}stubborn", timeout=2.0)
    worker = start(site, pool, "-c", "2", "--timeout-grace", "4")
    eventually(lambda: "did not end" in worker.log)

    site.open_gate()

    eventually(lambda: site.errors().keys() == {stuck})
    message = "the job's process was killed: it ran 4 s longer than its timeout of 2 s"
    assert site.errors()[stuck] == ("palermo.errors.JobTimeout", message)
    assert site.notes().count("held ends") == site.notes().count("held begins") == 1
    assert "on_failure JobTimeout" in site.notes()


@POOLS
def test_a_neighbour_that_does_not_finish_in_time_is_given_back_and_named(site: Site, pool: str, a: str) -> None:
    neighbour = held(site, a)
    stuck = enqueue(site, f"{a}stubborn", timeout=2.0)
    worker = start(site, pool, "-c", "2", "--timeout-grace", "0.3")
    eventually(lambda: site.errors().keys() == {stuck})
    site.open_gate()

    eventually(lambda: "held ends" in site.notes())
    assert site.notes().count("held begins") == 2
    assert f"process killed under a job that did nothing wrong id={neighbour}" in worker.log
    assert f"because_of={stuck}" in worker.log
    assert f"job interrupted, giving it back id={neighbour}" in worker.log


@POOLS
def test_a_fresh_child_takes_jobs_while_a_stuck_one_is_waited_out(site: Site, pool: str, a: str) -> None:
    held(site, a)
    enqueue(site, f"{a}stubborn", timeout=2.0)
    worker = start(site, pool, "-c", "3", "--timeout-grace", "5")
    eventually(lambda: "did not end" in worker.log)

    enqueue(site, f"{a}tells_pid")

    eventually(lambda: any(note.isdecimal() for note in site.notes()))
    site.open_gate()
    eventually(lambda: len(site.errors()) == 1)
    notes = ["pid" if note.isdecimal() else note for note in site.notes()]
    assert notes.index("pid") < notes.index("on_failure JobTimeout")


@POOLS
def test_a_job_that_stops_everything_is_killed_at_once_after_its_grace(site: Site, pool: str, a: str) -> None:
    stuck = enqueue(site, f"{a}hogs", timeout=2.0)
    worker = start(site, pool, "-c", "2", "--timeout-grace", "0.5")

    eventually(lambda: site.errors().keys() == {stuck})
    enqueue(site, f"{a}tells_pid")

    eventually(lambda: site.notes()[-1].isdecimal())
    assert worker.alive


@pytest.mark.parametrize(("limit", "processes"), [("1", 6), ("2", 3)])
@POOLS
def test_a_child_is_replaced_after_so_many_jobs(site: Site, pool: str, a: str, limit: str, processes: int) -> None:
    for _ in range(6):
        enqueue(site, f"{a}tells_pid")

    site.burst("--pool", pool, "-c", "2", "--max-jobs", limit, modules=(MODULE,))

    assert len(site.notes()) == 6
    assert len(set(site.notes())) == processes
    assert site.errors() == {}


@POOLS
def test_a_child_is_replaced_when_it_is_old_and_what_runs_in_it_finishes(site: Site, pool: str, a: str) -> None:
    held(site, a)
    worker = start(site, pool, "-c", "2", "--max-lifetime", "0.2")
    eventually(lambda: site.notes() == ["held begins"])
    old = worker.grown(2)[1]

    def replaced() -> bool:
        enqueue(site, f"{a}tells_pid")
        return len({note for note in site.notes() if note.isdecimal()}) > 1

    eventually(replaced, every=0.1)
    site.open_gate()
    eventually(lambda: "held ends" in site.notes())
    eventually(lambda: not exists(old))
    assert site.errors() == {}


@pytest.mark.parametrize("pool", ["thread", "async"])
def test_of_several_jobs_in_a_process_that_grows_only_the_greedy_one_fails(site: Site, pool: str) -> None:
    enqueue(site, "eats", 1, 1.5)
    hungry = enqueue(site, "eats", 600, 60)

    worker = start(site, pool, "-c", "2", "--max-memory", "250", "--timeout-grace", "0.5")

    eventually(lambda: site.errors().keys() == {hungry})
    kind, text = site.errors()[hungry]
    assert kind == "palermo.errors.JobOutOfMemory"
    assert text.endswith(" MB, above 250 MB")
    eventually(lambda: any(note.endswith(" ate") for note in site.notes()))
    assert worker.alive


@POOLS
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGQUIT])
def test_the_running_jobs_are_finished_and_no_other_is_taken(
    site: Site, pool: str, a: str, number: signal.Signals
) -> None:
    for _ in range(3):
        held(site, a)
    worker = start(site, pool, "-c", "2")
    eventually(lambda: len(site.notes()) == 2)

    worker.send(number)
    eventually(lambda: "signal received" in worker.log)
    site.open_gate()

    assert worker.wait() == 0
    assert site.notes().count("held ends") == 2
    assert site.pending() == 1


@POOLS
def test_jobs_that_outlast_the_timeout_may_clean_up_and_are_given_back(any_site: Site, pool: str, a: str) -> None:
    site = any_site
    for _ in range(3):
        enqueue(site, f"{a}tidies")
    worker = start(site, pool, "-c", "3", "--shutdown-timeout", "0.2")
    eventually(lambda: site.notes() == ["waits"] * 3)

    worker.send(signal.SIGTERM)

    assert worker.wait() == 1
    assert site.notes()[3:] == [("tidied" if a else "tidied after JobTerminated")] * 3
    assert site.errors() == {}
    assert eventually(site.pending) == 3


@POOLS
@pytest.mark.parametrize("job", ["stubborn", "hogs"])
def test_jobs_that_do_not_listen_are_killed_after_the_grace_and_given_back(
    site: Site, pool: str, a: str, job: str
) -> None:
    enqueue(site, f"{a}{job}")
    worker = start(site, pool, "--shutdown-timeout", "0.2")
    eventually(lambda: site.notes() == ["waits"])

    worker.send(signal.SIGTERM)

    assert worker.wait() == 1
    assert (site.errors(), site.pending()) == ({}, 1)


@POOLS
def test_a_second_int_kills_at_once_and_gives_back(site: Site, pool: str, a: str) -> None:
    worker, _, _ = waiting(site, pool, "stubborn", a)

    worker.send(signal.SIGINT)
    eventually(lambda: "action=interrupt" in worker.log)
    worker.send(signal.SIGINT)

    assert worker.wait() == 1
    assert (site.errors(), site.pending()) == ({}, 2)


@POOLS
def test_usr1_fails_all_running_jobs_and_the_worker_goes_on(site: Site, pool: str, a: str) -> None:
    worker, first, second = waiting(site, pool, "tidies", a)
    enqueue(site, f"{a}tells_pid")

    worker.send(signal.SIGUSR1)

    eventually(lambda: len(site.errors()) == 2 and any(note.isdecimal() for note in site.notes()))
    killed = ("palermo.errors.JobCrashed", "the job's process was killed by the operator (USR1)")
    assert site.errors() == {first: killed, second: killed}
    assert site.notes().count("on_failure JobCrashed") == 2
    assert worker.alive


@POOLS
def test_usr2_pauses_and_cont_goes_on(site: Site, pool: str, a: str) -> None:
    worker = start(site, pool)
    site.ready(worker)
    worker.send(signal.SIGUSR2)
    eventually(lambda: site.worker()["state"] == "paused")

    enqueue(site, f"{a}tells_pid")
    worker.send(signal.SIGTTIN)
    eventually(lambda: "stacks of the worker" in worker.log)
    assert site.pending() == 1
    worker.send(signal.SIGCONT)

    eventually(lambda: len(site.notes()) == 1)


@POOLS
def test_tstp_quiets(site: Site, pool: str, a: str) -> None:
    held(site, a)
    held(site, a)
    worker = start(site, pool)
    eventually(lambda: site.notes() == ["held begins"])

    worker.send(signal.SIGTSTP)
    eventually(lambda: site.worker()["state"] == "quiet")
    site.open_gate()

    eventually(lambda: worker.title() == "palermo worker: quiet")
    assert site.pending() == 1


@POOLS
@pytest.mark.parametrize(("job", "shown"), [("tidies", "in {job}"), ("hogs", "in {job}")], ids=["waits", "hogs"])
def test_ttin_shows_where_each_job_is_without_stopping_it(site: Site, pool: str, a: str, job: str, shown: str) -> None:
    neighbour = held(site, a)
    worker = start(site, pool, "-c", "2")
    eventually(lambda: site.notes() == ["held begins"])
    id = enqueue(site, f"{a}{job}")
    eventually(lambda: "waits" in site.notes())

    wanted = [f"stacks of a job id={id}", f"stacks of a job id={neighbour}", shown.format(job=f"{a}{job}")]
    if job != "hogs":
        wanted.append(f"in {a}hold")
    worker.dump(lambda log: all(text in log for text in wanted))
    assert site.errors() == {}


@POOLS
def test_hup_finishes_the_running_jobs_and_starts_anew(site: Site, pool: str, a: str) -> None:
    held(site, a)
    worker = start(site, pool)
    eventually(lambda: site.notes() == ["held begins"])

    worker.send(signal.SIGHUP)
    eventually(lambda: "action=renew" in worker.log)
    enqueue(site, f"{a}tells_pid")
    site.open_gate()

    eventually(lambda: len(site.notes()) == 3)
    assert worker.log.count("worker started") == 2
    assert site.errors() == {}


@pytest.mark.parametrize("pool", ["thread", "async"])
def test_replacing_children_and_stopping_do_not_meet(site: Site, pool: str) -> None:
    for _ in range(100):
        enqueue(site, "tells_pid")
    worker = start(site, pool, "--max-jobs", "3", "-c", "4")
    eventually(lambda: len(site.notes()) > 10)

    worker.send(signal.SIGTERM)

    assert worker.wait() == 0
    assert site.errors() == {}
    assert len(site.notes()) + site.pending() == 100
