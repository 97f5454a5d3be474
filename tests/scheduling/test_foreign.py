"""Messages that another program put straight into a job queue, to be run later."""

import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.harness.rig import Rig
from tests.helpers import eventually

pytestmark = pytest.mark.slow


@pytest.fixture
def rig(rabbitmq_url: str, exchange: str, tmp_path: Path) -> Iterator[Rig]:
    with Rig(tmp_path, url=rabbitmq_url, exchange=exchange) as rig:
        yield rig


def publish(rig: Rig, text: str, after: float | None, *, since: float | None = None, **headers: Any) -> None:
    """As a program without Palermo does it."""
    if after is not None:
        headers["perform_job_at"] = (time.time() if since is None else since) + after
    headers |= {"job-class": "crew.stamp", "id": f"id-{text}", "queue": "jobs"}
    body = json.dumps([str(rig.notes_path), text]).encode()
    rig.put("jobs", body, content_type="application/json", delivery_mode=2, headers=headers)


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
    publish(rig, "nonsense", None, perform_job_at={})

    ran = eventually(lambda: found if len(found := stamps(rig)) == 6 else {})
    assert list(ran) == ["first", *sorted(["now", "past"], key=lambda text: ran[text]), "one", "two", "again"]
    assert [ran[text] >= begun + after for text, after in (("one", 3), ("two", 4), ("again", 5))] == [True] * 3
    eventually(lambda: [row["id"] for row in rig.inspector.scheduled.list()] == ["id-hour"])
    eventually(lambda: rig.inspector.jobs.list("jobs").total == 0)
    assert {id: kind for id, (kind, _) in rig.errors().items()} == {"id-nonsense": "palermo.errors.HeaderInvalid"}


def test_without_a_scheduler_nothing_comes_due_until_one_is_there(rig: Rig) -> None:
    rig.worker("--no-scheduler")
    rig.enqueue("stamp", str(rig.notes_path), "now")
    rig.enqueue("stamp", str(rig.notes_path), "later", delay=0.1)
    eventually(lambda: "now" in stamps(rig))
    assert rig.only_worker()["clock"] is False
    assert rig.inspector.scheduled.list().total == 1

    rig.worker("-q", "others")

    assert eventually(lambda: "later" in stamps(rig))
