"""`--prefetch`, by whole workers: what waits behind a job is never lost, run twice, or kept from others for long."""

import os
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

import palermo
from palermo.client.status import State
from palermo.errors import SettingInvalid
from tests.helpers import eventually
from tests.worker.site import Site


@pytest.fixture
def site(rabbitmq_url: str, tmp_path: Path, exchange: str) -> Iterator[Site]:
    """RabbitMQ, since no other broker has jobs wait anywhere but in their queue."""
    site = Site(tmp_path, url=rabbitmq_url, exchange=exchange)
    yield site
    site.close()


def numbers(count: int) -> list[str]:
    return [f"{number:04}" for number in range(count)]


@pytest.mark.parametrize("pool", ["process", "thread", "async"])
def test_short_jobs_keep_their_order_and_each_runs_once(site: Site, pool: str) -> None:
    for number in numbers(400):
        site.enqueue("note", str(site.notes_path), number)

    site.burst("--pool", pool, "--prefetch", "auto", "-q", "jobs")

    assert site.notes() == numbers(400)


def test_an_idle_worker_runs_what_waited_behind_a_long_job(site: Site) -> None:
    busy = site.start("--prefetch", "8", "-q", "jobs")
    site.ready(busy)
    site.hold("long")
    eventually(lambda: site.notes() == ["long begins"])
    for number in numbers(5):
        site.enqueue("note", str(site.notes_path), number)

    site.start("-q", "jobs")

    eventually(lambda: sorted(site.notes()[1:]) == numbers(5))
    site.open_gate()
    eventually(lambda: site.notes()[-1] == "long ends")


def test_what_a_killed_worker_held_runs_elsewhere_and_nothing_but_its_own_job_runs_twice(site: Site) -> None:
    for number in numbers(600):
        site.enqueue("note", str(site.notes_path), number)
    killed = site.start("--prefetch", "16", "-q", "jobs", "--log-level", "error")
    eventually(lambda: len(site.notes()) > 50)
    os.kill(killed.pid, signal.SIGKILL)
    # A burst ends if the broker has not yet taken back what the dead worker held.
    eventually(lambda: site.pending() + len(set(site.notes())) >= 600)
    site.burst("--prefetch", "auto", "-q", "jobs")

    counted = Counter(site.notes())
    assert sorted(counted) == numbers(600)
    # Those whose acknowledgements were on their way, to a broker that hands out so many before it has some of these.
    assert sum(counted.values()) <= 600 + 16
    assert site.errors() == {}


def test_jobs_that_keep_their_results_and_jobs_that_fail_come_from_what_is_held_too(site: Site) -> None:
    modules = ("crew", "crew_results")
    kept = [site.enqueue("add", 1, number, module="crew_results") for number in range(60)]
    failing = [site.enqueue("raises", "no") for _ in range(20)]

    site.burst("--prefetch", "8", "-q", "jobs", modules=modules)

    assert set(site.errors()) == set(failing)
    assert {site.client.job_by_id(id).wait(timeout=60).state for id in kept} == {State.DONE}


def test_a_wrong_number_is_one_line() -> None:
    command = [sys.executable, "-m", "palermo", "worker", "crew", "--prefetch", "0"]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=100, check=False)
    assert ended.returncode == 2
    assert "prefetch is '0'; it is a number from 1 to 1,000, or \"auto\"." in ended.stderr
    with pytest.raises(SettingInvalid, match="prefetch is 'some'"):
        palermo.start_worker(["crew"], prefetch="some", url="sqlite:///jobs.db")
