"""Queue names with line breaks and other control characters, as other programs write them."""

import json
import sys
import time
from typing import Any

import pika
import pytest

from palermo.errors import QueueNameInvalid
from palermo.settings.settings import Settings
from palermo.views.filter import JobFilter
from tests.contract.tools import PATIENT
from tests.harness.rig import Rig
from tests.helpers import eventually
from tests.webui.server import Web


def named(name: object, value: object = True) -> dict[str, object]:
    """The fact that there is a queue of this name."""
    return {"format": 1, "kind": "queue", "name": name, "value": value}


def facts(channel: Any, exchange: str) -> list[dict[str, object]]:
    """All records of the facts; fewer if the broker lets us wait."""
    channel.basic_qos(prefetch_count=100)
    records = []
    first = {"x-stream-offset": "first"}
    for method, _, body in channel.consume(f"{exchange}.~facts", arguments=first, inactivity_timeout=1):
        if method is None:
            break
        channel.basic_ack(method.delivery_tag)
        records.append(json.loads(body))
    channel.cancel()
    return records


def test_a_control_character_in_a_queue_name_stops_nobody(rig: Rig, exchange: str, channel: Any) -> None:
    rig.enqueue("note", str(rig.notes_path), "ran")
    properties, name = pika.BasicProperties(delivery_mode=2), "a\nb"
    for odd in (name, "a\x01b", ["no", "name"], 7, "n" * 300):
        channel.basic_publish("", f"{exchange}.~facts", json.dumps(named(odd)).encode(), properties)

    assert [row["name"] for row in rig.inspector.queues.list()] == ["failed", "jobs"]
    rig.burst("-q", "*")
    assert rig.lines() == ["ran"]

    done = rig.launch([sys.executable, "-m", "palermo", "delete", name, "--yes"])
    assert done.wait() == 0, done.log
    eventually(lambda: named(name, None) in facts(channel, exchange))


def test_pages_and_api_clear_a_queue_with_a_line_break(rabbitmq_url: str, exchange: str, channel: Any) -> None:
    with Web(Settings(url=rabbitmq_url, exchange=exchange, publish_timeout=PATIENT)) as web:
        web.client.enqueue("shop.mail", (), {}, queue="mail")
        for name in ("a\nb", "a\nc"):
            body = json.dumps(named(name)).encode()
            channel.basic_publish("", f"{exchange}.~facts", body, pika.BasicProperties(delivery_mode=2))

        for page in ("/", "/queues", "/api/queues", "/stats.txt", "/metrics"):
            assert web.http.get(page).status_code == 200, page
        done = web.form("/queues", "/queues/a%0Ab/delete")
        assert (done.status_code, done.url.path) == (200, "/queues")
        assert web.http.delete("/api/queues/a%0Ac").json() == {"removed": 0}
    eventually(lambda: facts(channel, exchange)[-2:] == [named("a\nb", None), named("a\nc", None)])


def test_due_jobs_of_impossible_queues_fail_and_those_behind_them_run(rig: Rig, exchange: str, channel: Any) -> None:
    rig.enqueue("note", str(rig.notes_path), "there")
    worker = rig.worker()
    rig.ready(worker)
    due = time.time() + 4
    behind = rig.enqueue("note", str(rig.notes_path), "behind", run_at=due)
    odd = {"odd": "a\nb", "odder": "a\x01b"}
    for id, queue in odd.items():
        headers = {"job-class": "crew.note", "queue": queue, "run-at": 1}
        properties = pika.BasicProperties(message_id=id, headers=headers, delivery_mode=2)
        channel.basic_publish("", f"{exchange}.~later.soon", b"[]", properties)

    eventually(lambda: rig.lines() == ["there", "behind"])
    for id in odd:
        kind, told = eventually(lambda id=id: rig.errors().get(id))
        assert (kind, "line break" in told) == ("palermo.errors.QueueNameInvalid", True)
    assert behind not in rig.errors()
    assert "connection lost" not in worker.log
    with pytest.raises(QueueNameInvalid, match="2 such jobs stay in `failed`"):
        rig.inspector.failed.requeue(JobFilter())
    rig.inspector.failed.requeue("odd", queue="jobs", args=(str(rig.notes_path), "again"))
    eventually(lambda: rig.lines() == ["there", "behind", "again"])
