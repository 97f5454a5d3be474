"""Messages that another program put straight into a job queue, to be run later."""

import json
import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import pika
import pytest

from palermo.brokers.rabbitmq.amqp.messages import Properties
from tests.harness.rig import Rig
from tests.helpers import eventually

pytestmark = pytest.mark.slow


@pytest.fixture
def rig(rabbitmq_url: str, exchange: str, tmp_path: Path) -> Iterator[Rig]:
    rig = Rig(tmp_path, url=rabbitmq_url, exchange=exchange)
    yield rig
    rig.close()


def publish(rig: Rig, text: str, after: float | None, *, since: float | None = None, **headers: Any) -> None:
    """As a program without Palermo does it."""
    if after is not None:
        headers["perform_job_at"] = (time.time() if since is None else since) + after
    with pika.BlockingConnection(pika.URLParameters(rig.settings.url)) as connection:
        channel = connection.channel()
        channel.basic_publish(
            rig.settings.exchange,
            "jobs",
            json.dumps([str(rig.notes_path), text]).encode(),
            Properties(  # pika's own cannot write a double, which other clients can
                content_type="application/json",
                delivery_mode=2,
                headers={"job-class": "crew.stamp", "id": f"id-{text}", "queue": "jobs", **headers},
            ),
        )


def stamps(rig: Rig) -> dict[str, float]:
    """When each ran."""
    return {text: float(at) for text, _, at in (line.rpartition(" ") for line in rig.lines())}


def test_each_runs_at_its_own_time_and_without_one_at_once(rig: Rig) -> None:
    # One slot: two would run at once what is due at once after the machine has stood still.
    rig.worker()
    rig.enqueue("stamp", str(rig.notes_path), "first")
    eventually(lambda: "first" in stamps(rig))
    begun = time.time()
    death = {"queue": "jobs", "reason": "expired", "count": 3, "exchange": rig.settings.exchange}
    circle = {"x-death": [death | {"routing-keys": ["jobs"]}], "x-first-death-queue": "jobs", "CC": ["elsewhere"]}

    for text, after in (("hour", 3_600.0), ("two", 4.0), ("one", 3.0), ("now", None), ("past", -50.0)):
        publish(rig, text, after, since=begun)
    # RabbitMQ drops a message that goes in a circle: this one has been in one before.
    publish(rig, "again", 5.0, since=begun, **circle)

    ran = eventually(lambda: found if len(found := stamps(rig)) == 6 else {})
    assert list(ran) == ["first", *sorted(["now", "past"], key=lambda text: ran[text]), "one", "two", "again"]
    assert [ran[text] >= begun + after for text, after in (("one", 3), ("two", 4), ("again", 5))] == [True] * 3
    eventually(lambda: [row["id"] for row in rig.inspector.scheduled.list()] == ["id-hour"])
    eventually(lambda: rig.inspector.jobs.list("jobs").total == 0)


def test_a_worker_that_dies_with_held_jobs_loses_none_and_runs_none_early(rig: Rig) -> None:
    first = rig.worker()
    # It leads before the jobs are there, and dies before the first of them is due.
    eventually(lambda: any(row["clock"] for row in rig.inspector.workers.list()))
    begun = time.time()
    due = [rig.client.enqueue("crew.stamp", (str(rig.notes_path), f"{n}"), {}, delay=3 + n / 10).id for n in range(20)]
    first.end()

    rig.worker()

    ran = eventually(lambda: found if len(found := stamps(rig)) == len(due) else {})
    assert min(at - begun - 3 - int(text) / 10 for text, at in ran.items()) >= 0
    assert len(rig.lines()) == len(due)


def test_without_a_scheduler_nothing_comes_due_until_one_is_there(rig: Rig) -> None:
    rig.worker("--no-scheduler")
    rig.enqueue("stamp", str(rig.notes_path), "now")
    rig.enqueue("stamp", str(rig.notes_path), "later", delay=0.1)
    eventually(lambda: "now" in stamps(rig))
    assert rig.only_worker()["clock"] is False
    assert rig.inspector.scheduled.list().total == 1

    rig.worker("-q", "others")

    assert eventually(lambda: "later" in stamps(rig))


def test_foreign_due_times_are_read_and_meaningless_ones_fail(rig: Rig) -> None:
    rig.worker("-c", "4")
    rig.enqueue("stamp", str(rig.notes_path), "first")
    eventually(lambda: "first" in stamps(rig))
    due = int(time.time()) + 3
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
        publish(rig, text, None, perform_job_at=at)

    ran = eventually(lambda: found if len(found := stamps(rig)) == 1 + len(written) else {})
    assert set(ran) == {"first", *written}
    assert all(ran[text] >= due for text in written)
    failed = eventually(lambda: found if len(found := rig.errors()) == len(nonsense) else {})
    assert set(failed) == {f"id-{text}" for text in nonsense}
    assert {kind for kind, _ in failed.values()} == {"palermo.errors.HeaderInvalid"}
