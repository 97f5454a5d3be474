"""Workers that are started from Python."""

from pathlib import Path

import pytest

import palermo
from palermo.errors import QueueNameInvalid
from palermo.worker.handle import stop_worker
from tests.helpers import eventually
from tests.worker.site import PROGRAMS, Site, title


@pytest.fixture(autouse=True)
def _here(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(PROGRAMS)


def test_a_worker_started_from_python_works_and_stops(site: Site) -> None:
    site.enqueue("note", str(site.notes_path), "ran")

    with palermo.start_worker(["crew"], queues=["jobs"], concurrency=2, url=site.settings.url) as worker:
        eventually(lambda: site.notes() == ["ran"])
        eventually(lambda: [(row["pid"], row["slots"]) for row in site.workers()] == [(worker.pid, 2)])
        assert worker.alive

    assert not worker.alive
    assert site.workers() == []


def test_stopping_with_a_timeout_gives_the_running_job_back(site: Site) -> None:
    site.hold()
    worker = palermo.start_worker(["crew"], url=site.settings.url)
    try:
        eventually(lambda: site.notes() == ["held begins"])
    finally:
        stop_worker(worker, timeout=0.2)

    assert not worker.alive
    eventually(lambda: site.pending() == 1)


def test_the_url_is_not_on_the_command_line(site: Site) -> None:
    worker = palermo.start_worker(["crew"], url="amqp://guest:hunter2@127.0.0.1:1/")
    try:
        words = Path(f"/proc/{worker.pid}/cmdline").read_text()
        assert "hunter2" not in words
        eventually(lambda: title(worker.pid).startswith("palermo worker"))
    finally:
        worker.kill()


def test_a_burst_can_be_waited_for(site: Site) -> None:
    site.enqueue("note", str(site.notes_path), "ran")

    assert palermo.start_worker(["crew"], burst=True, url=site.settings.url).wait(20) == 0
    assert site.notes() == ["ran"]


def test_a_bad_queue_is_refused_before_anything_starts(site: Site) -> None:
    with pytest.raises(QueueNameInvalid):
        palermo.start_worker(["crew"], queues="failed", url=site.settings.url)
