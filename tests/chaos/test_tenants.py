"""Jobs of tenants while the leader, which deals them out, is killed."""

import signal
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.helpers import Stopwatch, eventually
from tests.scale import scaled
from tests.worker.site import Process, Site


@pytest.fixture
def site(rabbitmq_url: str, exchange: str, tmp_path: Path) -> Iterator[Site]:
    site = Site(tmp_path, url=rabbitmq_url, exchange=exchange, publish_timeout=60.0)
    yield site
    site.close()


def leader(site: Site) -> int:
    """The pid of the worker that keeps the time, and deals; 0 if none does."""
    return next((int(row["pid"]) for row in site.inspector.workers() if row["clock"]), 0)


def test_f8_each_job_runs_exactly_once_while_dealers_are_killed(site: Site) -> None:
    some, count = scaled(2_400, 6_000), 0

    def enqueue() -> None:
        nonlocal count
        calls = [(str(site.notes_path), f"{number}") for number in range(count, count + some)]
        for tenant in range(3):
            site.client.enqueue_many([("crew.note", call, {}) for call in calls[tenant::3]], tenant=f"t{tenant}")
        count += some

    enqueue()
    # What runs the jobs is not killed: else a job may rightly run twice.
    runner = site.start("--no-scheduler", "-c", "2", "-q", "jobs")
    keepers: dict[int, Process] = {}
    for _ in range(2):
        process = site.start("-q", "idle")
        keepers[process.pid] = process
    kills = 0
    while kills < 3 or len(site.notes()) < count:
        first = eventually(lambda: leader(site))
        watch, noted = Stopwatch(), len(site.notes())
        eventually(lambda: len(site.notes()) >= min(count, noted + some // 12))  # noqa: B023
        if kills < 3 and len(site.notes()) >= count:
            enqueue()  # all were done before enough was killed
        if kills < 4 and len(site.notes()) < count:
            keepers.pop(first).send(signal.SIGKILL)
            process = site.start("-q", "idle")
            keepers[process.pid] = process
            kills += 1
            eventually(lambda: leader(site) not in (0, first))  # noqa: B023
            assert watch.seconds() < 60
    site.ready(runner)

    found = Counter(site.notes())
    assert kills >= 3
    assert len(found) == count
    assert {note: times for note, times in found.items() if times != 1} == {}
    assert site.pending() == 0
