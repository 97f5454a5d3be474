"""Messages that another program put straight into a job queue, to be run later (lines L1 to L8 of the feature list)."""

import json
import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import pika
import pytest

from palermo.brokers.rabbitmq.amqp.messages import Properties
from tests.helpers import eventually
from tests.worker.site import Site


@pytest.fixture
def site(rabbitmq_url: str, exchange: str, tmp_path: Path) -> Iterator[Site]:
    site = Site(tmp_path, url=rabbitmq_url, exchange=exchange)
    yield site
    site.close()


def publish(site: Site, text: str, after: float | None, *, since: float | None = None, **headers: Any) -> None:
    """As a program without Palermo does it."""
    if after is not None:
        headers["perform_job_at"] = (time.time() if since is None else since) + after
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
    # One slot: two would run at once what is due at once after the machine has stood still.
    site.start()
    site.enqueue("stamp", str(site.notes_path), "first")
    eventually(lambda: "first" in stamps(site))
    begun = time.time()

    for text, after in (("hour", 3_600.0), ("two", 6.0), ("one", 5.0), ("now", None), ("past", -50.0)):
        publish(site, text, after, since=begun)

    ran = eventually(lambda: found if len(found := stamps(site)) == 5 else {})
    assert list(ran) == ["first", *sorted(["now", "past"], key=lambda text: ran[text]), "one", "two"]
    assert ran["one"] >= begun + 5
    assert ran["two"] >= begun + 6
    eventually(lambda: [row["id"] for row in site.inspector.scheduled()] == ["id-hour"])
    eventually(lambda: site.inspector.jobs("jobs").total == 0)


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
    eventually(lambda: "first" in stamps(site))

    for turn in range(3):
        publish(site, f"again-{turn}", 0.5, **{"x-death": [death], "x-first-death-queue": "jobs", "CC": ["elsewhere"]})

    assert eventually(lambda: len(stamps(site)) == 4)


def test_a_worker_that_dies_with_held_jobs_loses_none_and_runs_none_early(site: Site) -> None:
    first = site.start()
    # It leads before the jobs are there, and dies before the first of them is due.
    eventually(lambda: any(row["clock"] for row in site.inspector.workers()))
    begun = time.time()
    due = [
        site.client.enqueue("crew.stamp", (str(site.notes_path), f"{n}"), {}, delay=8 + n / 10).id for n in range(20)
    ]
    first.end()

    site.start()

    ran = eventually(lambda: found if len(found := stamps(site)) == len(due) else {})
    assert min(at - begun - 8 - int(text) / 10 for text, at in ran.items()) >= 0
    assert len(site.notes()) == len(due)


def test_without_a_scheduler_nothing_comes_due_until_one_is_there(site: Site) -> None:
    site.start("--no-scheduler")
    site.enqueue("stamp", str(site.notes_path), "now")
    site.enqueue("stamp", str(site.notes_path), "later", delay=0.1)
    eventually(lambda: "now" in stamps(site))
    assert site.worker()["clock"] is False
    assert site.inspector.scheduled().total == 1

    site.start("-q", "others")

    assert eventually(lambda: "later" in stamps(site))


def test_each_runs_at_its_own_time_however_that_is_written_and_what_means_none_fails(site: Site) -> None:
    site.start("-c", "4")
    site.enqueue("stamp", str(site.notes_path), "first")
    eventually(lambda: "first" in stamps(site))
    due = int(time.time()) + 5
    moment = datetime.fromtimestamp(due, UTC)
    written = {
        "number": due,
        "text": str(due),
        "fraction": f"{due}.0",
        "milliseconds": due * 1_000,
        "iso": moment.isoformat(),
        "zulu": moment.strftime("%Y-%m-%dT%H:%M:%SZ"),
        "elsewhere": moment.astimezone(timezone(timedelta(hours=5, minutes=30))).isoformat(),
        "timestamp": moment,
    }
    nonsense = {
        "bool": True,
        "null": None,
        "huge": 1e300,
        "local": "2999-01-01T00:00:00",
        "word": "tomorrow",
        "table": {},
    }

    for text, at in (written | nonsense).items():
        publish(site, text, None, perform_job_at=at)

    ran = eventually(lambda: found if len(found := stamps(site)) == 1 + len(written) else {})
    assert set(ran) == {"first", *written}
    assert all(ran[text] >= due for text in written)
    failed = eventually(lambda: found if len(found := site.errors()) == len(nonsense) else {})
    assert set(failed) == {f"id-{text}" for text in nonsense}
    assert {kind for kind, _ in failed.values()} == {"palermo.errors.HeaderInvalid"}
