"""What other programs write: hostile messages are settled once, and odd names of queues stop nobody."""

import json
import os
import re
import time
from collections import Counter
from random import Random
from typing import Any
from urllib.parse import quote

import pika
import pytest

from palermo.brokers.rabbitmq.amqp.messages import read_properties
from palermo.errors import QueueNameInvalid
from palermo.views.filter import JobFilter
from tests import hostile
from tests.harness.rig import Rig
from tests.helpers import eventually, has_traceback
from tests.raw_amqp import RawClient, nested
from tests.scale import scaled
from tests.webui.server import Web

SEED = int(os.environ.get("PALERMO_SOAK_SEED") or 20_261_122)
COUNT = scaled(300, 10_000)


def work(rig: Rig) -> str:
    """The log of a worker that works until there is nothing to do."""
    environment = {"PALERMO_TEST_NOTES": str(rig.notes_path)}
    worker = rig.worker("--burst", "-c", "4", modules=("hostile",), **environment)
    assert worker.wait(scaled(150, 3_000)) == 0, worker.log[-5_000:]
    return worker.log


@pytest.mark.slow
@pytest.mark.timeout(scaled(400, 7_200))
def test_hostile_messages_are_shown_and_settled_once_and_others_run(rig: Rig) -> None:
    rig.client.enqueue("hostile.note", ("first",), {})
    blocking = [f"n{number:05}" for number in range(len(hostile.MESSAGES))]
    with client(rig) as publisher:
        for token, raw in zip(blocking, hostile.MESSAGES.values(), strict=True):
            publisher.publish("", f"{rig.exchange}.jobs", raw, f'["{token}"]'.encode())
    tokens = publish(rig, COUNT)
    rig.client.enqueue("hostile.note", ("last",), {})
    assert len(tokens) > COUNT * 0.95
    waiting = json.loads(seen(rig, "jobs", "jobs", "--limit", str(2 * COUNT), "--json"))
    assert len(waiting) == len(blocking) + len(tokens) + 2

    with Web(rig.settings) as web:
        shown(web, ["/", "/queues", "/queues/jobs", "/api/queues", "/api/queues/jobs/jobs?limit=500"])
        # What came without an id has another at each look.
        shown(web, [f"/jobs/{quote(row['id'], safe='')}" for row in waiting[:15] if "-" not in row["id"]])

        log = work(rig)

        assert (log.count(" connected "), has_traceback(log), "connection lost" in log) == (1, False, False)
        ran, failed = Counter(rig.lines()), Counter(tokens_in(rig))
        assert (ran.pop("first"), ran.pop("last")) == (1, 1)
        assert ran + failed == Counter([*blocking, *tokens]), f"seed {SEED}"
        assert {failed[token] for token in blocking} == {1}
        all_shown(rig, web, failed.total())
    with client(rig) as reader:
        raw = {body[2:-2].decode(): raw for raw, body in reader.messages(f"{rig.exchange}.failed")}
    dropped = {read_properties(raw[token], 0)["headers"].get("dropped-headers") for token in blocking}
    assert dropped == {None, "large", "job-class"}
    assert any(nested(600) in raw[token] for token in blocking)
    classes = {row["error"]["class"] for row in rig.inspector.failed.list(limit=2 * COUNT).rows}
    assert {len(name) for name in classes if "Long" in name} == {500}

    assert len(rig.inspector.failed.requeue(JobFilter())) == failed.total()
    log = work(rig)

    assert (log.count(" connected "), has_traceback(log)) == (1, False)
    everything = Counter([*blocking, *tokens, "first", "last"])
    assert Counter(rig.lines()) + Counter(tokens_in(rig)) == everything, f"seed {SEED}"


def client(rig: Rig) -> RawClient:
    return RawClient(rig.settings.url, timeout=120)


def tokens_in(rig: Rig) -> list[str]:
    """The tokens of the bodies in `failed`."""
    with client(rig) as reader:
        return [body[2:-2].decode() for _, body in reader.messages(f"{rig.exchange}.failed")]


def publish(rig: Rig, count: int) -> set[str]:
    """Publish this many messages by chance; the tokens of those that the broker took."""
    random, taken = Random(SEED), set[str]()
    with client(rig) as publisher:
        for number in range(count):
            token = f"t{number:05}"
            try:
                publisher.publish("", f"{rig.exchange}.jobs", *hostile.a_message(random, token))
                taken.add(token)
            except OSError:
                publisher.close()
                publisher.connect()
    return taken


def all_shown(rig: Rig, web: Web, count: int) -> None:
    """So many failed jobs, by commands, pages and the API."""
    rows = json.loads(seen(rig, "failed", "list", "--limit", str(2 * COUNT), "--json"))
    assert len(rows) == count
    for command in (["list"], ["groups"], ["show", rows[0]["id"]]):
        seen(rig, "failed", *command)
    eventually(lambda: web.http.get("/api/failed?limit=500").json()["total"] == count)
    shown(web, ["/", "/failures", "/failures?limit=100", "/history", "/tenants", "/workers", "/statistics"])
    shown(web, ["/api/failed/groups", "/api/history?limit=500", "/api/audit", "/metrics"])
    for row in rows[:15]:
        shown(web, [f"/jobs/{quote(row['id'], safe='')}", f"/api/failed/{quote(row['id'], safe='')}"])
    for row in rows[-5:]:
        shown(web, [f"/api/jobs/{quote(row['id'], safe='')}/status", f"/failures/{quote(row['id'], safe='')}/edit"])


def seen(rig: Rig, *command: str) -> str:
    """What a command prints, which has no byte in it that could drive a terminal."""
    printed = rig.palermo(*command)
    assert not re.search(r"[\x00-\x08\x0b-\x1f]", printed), command
    return printed


def shown(web: Web, pages: list[str]) -> None:
    """Ask for these pages; JSON must be so."""
    for page in pages:
        answer = web.http.get(page)
        assert answer.status_code == 200, (page, answer.text[:2_000])
        if page.startswith("/api/"):
            answer.json()


# -- names of queues with line breaks and other control characters


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


@pytest.mark.slow
def test_a_control_character_in_a_queue_name_stops_nobody(rig: Rig, exchange: str, channel: Any) -> None:
    rig.enqueue("note", str(rig.notes_path), "ran")
    for odd in ("a\nb", "a\nc", "a\nd", "a\x01b", ["no", "name"], 7, "n" * 300):
        body = json.dumps(named(odd)).encode()
        channel.basic_publish("", f"{exchange}.~facts", body, pika.BasicProperties(delivery_mode=2))

    assert [row["name"] for row in rig.inspector.queues.list()] == ["failed", "jobs"]
    rig.burst("-q", "*")
    assert rig.lines() == ["ran"]

    rig.palermo("delete", "a\nb", "--yes")
    with Web(rig.settings) as web:
        for page in ("/", "/queues", "/api/queues", "/stats.txt", "/metrics"):
            assert web.http.get(page).status_code == 200, page
        done = web.form("/queues", "/queues/a%0Ac/delete")
        assert (done.status_code, done.url.path) == (200, "/queues")
        assert web.http.delete("/api/queues/a%0Ad").json() == {"removed": 0}
    eventually(lambda: facts(channel, exchange)[-3:] == [named(f"a\n{end}", None) for end in "bcd"])


@pytest.mark.slow
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
    with pytest.raises(QueueNameInvalid, match="2 such jobs remain in `failed`"):
        rig.inspector.failed.requeue(JobFilter())
    rig.inspector.failed.requeue("odd", queue="jobs", args=(str(rig.notes_path), "again"))
    eventually(lambda: rig.lines() == ["there", "behind", "again"])
