"""Messages that another program put straight into a job queue, to be run later (lines L1 to L8 of the feature list)."""

import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pika
import pytest

from palermo.brokers.rabbitmq.properties import Properties
from tests.helpers import eventually
from tests.worker.site import Site


@pytest.fixture
def site(rabbitmq_url: str, exchange: str, tmp_path: Path) -> Iterator[Site]:
    site = Site(tmp_path, url=rabbitmq_url, exchange=exchange)
    yield site
    site.close()


def publish(site: Site, text: str, after: float | None, **headers: Any) -> None:
    """As a program without Palermo does it."""
    if after is not None:
        headers["perform_job_at"] = time.time() + after
    with pika.BlockingConnection(pika.URLParameters(site.settings.url)) as connection:
        channel = connection.channel()
        channel.basic_publish(
            site.settings.exchange,
            "jobs",
            json.dumps([str(site.notes_path), text]).encode(),
            Properties(  # pika's own cannot write a double, which other clients can
                content_type="application/json",
                delivery_mode=2,
                headers={"job-class": "crew.stamp", "id": f"id-{text}", "queue": "jobs", **headers},
            ),
        )


def stamps(site: Site) -> dict[str, float]:
    """When each ran."""
    return {text: float(at) for text, _, at in (line.rpartition(" ") for line in site.notes())}


def test_each_runs_at_its_own_time_and_without_one_at_once(site: Site) -> None:
    site.start("-c", "2")
    site.enqueue("stamp", str(site.notes_path), "first")
    eventually(lambda: "first" in stamps(site), within=20)
    begun = time.time()

    for text, after in (("hour", 3_600.0), ("two", 2.0), ("one", 1.0), ("now", None), ("past", -50.0)):
        publish(site, text, after)

    ran = eventually(lambda: found if len(found := stamps(site)) == 5 else {}, within=20)
    assert list(ran) == ["first", *sorted(["now", "past"], key=lambda text: ran[text]), "one", "two"]
    assert ran["one"] >= begun + 1
    assert ran["two"] >= begun + 2
    assert [row["id"] for row in site.inspector.scheduled()] == ["id-hour"]
    assert site.inspector.jobs("jobs").total == 0


def test_one_that_was_dead_lettered_in_a_circle_before_is_not_dropped(site: Site) -> None:
    site.start()
    death = {
        "queue": "jobs",
        "reason": "expired",
        "count": 3,
        "exchange": site.settings.exchange,
        "routing-keys": ["jobs"],
    }
    site.enqueue("stamp", str(site.notes_path), "first")
    eventually(lambda: "first" in stamps(site), within=20)

    for turn in range(3):
        publish(site, f"again-{turn}", 0.5, **{"x-death": [death], "x-first-death-queue": "jobs", "CC": ["elsewhere"]})

    assert eventually(lambda: len(stamps(site)) == 4, within=20)


def test_a_worker_that_dies_with_held_jobs_loses_none_and_runs_none_early(site: Site) -> None:
    first = site.start()
    begun = time.time()
    due = [
        site.client.enqueue("crew.stamp", (str(site.notes_path), f"{n}"), {}, delay=4 + n / 10).id for n in range(20)
    ]
    eventually(lambda: any(row["clock"] for row in site.inspector.workers()), within=20)
    first.end()

    site.start()

    ran = eventually(lambda: found if len(found := stamps(site)) == len(due) else {}, within=30)
    assert min(at - begun - 4 - int(text) / 10 for text, at in ran.items()) >= 0
    assert len(site.notes()) == len(due)


def test_without_a_scheduler_nothing_comes_due_until_one_is_there(site: Site) -> None:
    site.start("--no-scheduler")
    site.enqueue("stamp", str(site.notes_path), "now")
    site.enqueue("stamp", str(site.notes_path), "later", delay=0.1)
    eventually(lambda: "now" in stamps(site), within=20)
    assert [row["clock"] for row in site.inspector.workers()] == [False]
    assert site.inspector.scheduled().total == 1

    site.start("-q", "others")

    assert eventually(lambda: "later" in stamps(site), within=20)
