"""Stopping, pausing and going on, by signal, with real processes."""

import signal
import time

import pytest

from tests.helpers import eventually
from tests.worker.site import Process, Site, exists

ENDING = [signal.SIGTERM, signal.SIGINT, signal.SIGQUIT]


def _holding(site: Site, *arguments: str) -> Process:
    """A worker with a job that runs until the gate opens, and one that waits behind it."""
    site.hold()
    site.enqueue("note", str(site.notes_path), "next")
    worker = site.start(*arguments)
    eventually(lambda: site.notes() == ["held begins"])
    return worker


@pytest.mark.parametrize("number", ENDING)
def test_an_idle_worker_ends_at_once(site: Site, number: signal.Signals) -> None:
    worker = site.start("-c", "2")
    site.ready(worker)
    children = worker.grown(3)

    worker.send(number)

    assert worker.wait() == 0
    assert not any(exists(pid) for pid in children)
    assert site.workers() == []


@pytest.mark.parametrize("number", ENDING)
def test_the_running_job_is_finished_and_no_other_is_taken(site: Site, number: signal.Signals) -> None:
    worker = _holding(site)

    worker.send(number)
    eventually(lambda: site.worker()["state"] == "stopping")
    eventually(lambda: worker.title() == "palermo worker: stopping, 1 of 1 slot busy")
    site.open_gate()

    assert worker.wait() == 0
    assert site.notes() == ["held begins", "held ends"]
    assert site.pending() == 1


def test_a_second_int_kills_at_once_and_gives_the_job_back_unharmed(site: Site) -> None:
    worker = _holding(site)

    worker.send(signal.SIGINT)
    eventually(lambda: "finishing 1 running job and ending; a second Ctrl-C kills what still runs" in worker.log)
    worker.send(signal.SIGINT)

    assert worker.wait() == 1
    assert "job interrupted, giving it back" in worker.log
    assert site.errors() == {}
    assert site.pending() == 2
    site.open_gate()
    site.burst()
    assert site.notes() == ["held begins", "held begins", "held ends", "next"]


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_job_that_outlasts_the_shutdown_timeout_is_killed_and_given_back(site: Site, number: signal.Signals) -> None:
    worker = _holding(site, "--shutdown-timeout", "0.3s")

    worker.send(number)

    assert worker.wait() == 1
    assert site.errors() == {}
    assert site.pending() == 2


def test_r3_after_quit_a_job_may_outlast_the_shutdown_timeout(site: Site) -> None:
    worker = _holding(site, "--shutdown-timeout", "0.1s")
    worker.send(signal.SIGQUIT)
    eventually(lambda: site.worker()["state"] == "stopping")
    sent = time.monotonic()
    eventually(lambda: time.monotonic() > sent + 0.5)

    site.open_gate()

    assert worker.wait() == 0
    assert site.notes() == ["held begins", "held ends"]


def test_a_paused_worker_takes_nothing_until_it_goes_on(site: Site) -> None:
    worker = _holding(site)

    worker.send(signal.SIGUSR2)
    eventually(lambda: site.worker()["state"] == "paused")
    site.open_gate()
    eventually(lambda: site.notes() == ["held begins", "held ends"])
    eventually(lambda: worker.title() == "palermo worker: paused")
    assert site.pending() == 1

    worker.send(signal.SIGCONT)

    eventually(lambda: site.notes()[-1] == "next")
    site.ready(worker)


def test_an_idle_worker_pauses_too_and_stops_while_paused(site: Site) -> None:
    worker = site.start()
    site.ready(worker)

    worker.send(signal.SIGUSR2)
    eventually(lambda: site.worker()["state"] == "paused")
    site.enqueue("note", str(site.notes_path), "x")
    worker.send(signal.SIGTERM)

    assert worker.wait() == 0
    assert site.notes() == []


def test_a_signal_while_the_modules_are_imported_ends_the_worker(site: Site) -> None:
    worker = site.start(modules=("slow_to_import",))
    eventually(lambda: worker.children())
    eventually(lambda: worker.title() == "palermo worker: importing slow_to_import")

    worker.send(signal.SIGTERM)

    assert worker.wait() == 0


def test_a_worker_that_waits_for_its_broker_stops_at_once(site: Site) -> None:
    worker = site.start("--url", "amqp://guest:guest@127.0.0.1:1/")
    eventually(lambda: "broker unavailable" in worker.log)

    worker.send(signal.SIGTERM)

    assert worker.wait() == 0
