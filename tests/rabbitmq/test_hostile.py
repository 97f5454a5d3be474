"""Messages and records of hostile programs: each is read, shown, failed, requeued and settled once, or skipped."""

import asyncio
import json
import os
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Mapping
from random import Random
from typing import Any
from urllib.parse import quote

import pika
import pytest

from palermo.brokers.rabbitmq.amqp.messages import read_properties
from palermo.brokers.rabbitmq.broker import RabbitmqBroker
from palermo.client.client import Client
from palermo.core.election import Duty
from palermo.inspector.failed_filter import FailedFilter
from palermo.inspector.inspector import Inspector
from palermo.settings.settings import Settings
from tests import hostile
from tests.contract.timing import time_kept
from tests.contract.tools import PATIENT, until
from tests.harness.rig import Rig
from tests.helpers import eventually, has_traceback
from tests.raw_amqp import RawClient, long, nested, properties, short, table_of, text
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


def message(*headers: tuple[bytes, bytes], odd: str = "", job: bytes = b"hostile.raises") -> bytes:
    """Properties with these headers, and perhaps another that is 200 bytes that are not UTF-8."""
    more = {odd: short(b"\xff" * 200)} if odd else {}
    return properties(headers=table_of({b"job-class": text(job), **dict(headers)}), **more)


BLOCKING = {
    "450 tables": message((b"deep", nested(450))),
    "600 tables": message((b"deep", nested(600))),
    "600 lists": message((b"deep", nested(600, b"A"))),
    "a known header of 600 tables": message((b"attempts-log", nested(600))),
    "timestamp": message((b"at", b"T" + (2**63).to_bytes(8, "big"))),
    "timestamp in a list": message((b"at", b"A" + long(b"T" + (2**64 - 1).to_bytes(8, "big")))),
    "header name": message((b"\xff" * 100, b"V"), (b"\xfe" * 255, b"V")),
    "content_type": message(odd="content_type"),
    "content_encoding": message(odd="content_encoding"),
    "correlation_id": message(odd="correlation_id"),
    "reply_to": message(odd="reply_to"),
    "message_id": message(odd="message_id"),
    "type": message(odd="type"),
    "app_id": message(odd="app_id"),
    "header id": message((b"id", b"S" + long(b"i" * 300))),
    "count": message((b"retries", b"T" + (2**64 - 1).to_bytes(8, "big"))),
    "NUL": message(job=b"hostile.no\0te"),
    "class name": message(job=b"hostile.raises_at_length"),
    "128,000 bytes": message((b"large", b"x" + long(b"\xff" * 128_000))),
    "a name of 130,900 bytes": message(job=b"j" * 130_900),
}


def test_messages_that_cannot_be_read_or_written_again_fail_and_others_run(rig: Rig) -> None:
    rig.client.enqueue("hostile.note", ("first",), {})
    with client(rig) as publisher:
        for number, raw in enumerate(BLOCKING.values()):
            publisher.publish("", f"{rig.exchange}.jobs", raw, b'["n%d"]' % number)
    rig.client.enqueue("hostile.note", ("last",), {})

    log = work(rig)

    assert sorted(rig.lines()) == ["first", "last"]
    assert sorted(tokens_in(rig)) == sorted(f"n{number}" for number in range(len(BLOCKING)))
    assert (log.count(" connected "), has_traceback(log)) == (1, False)
    with client(rig) as reader:
        failed = [raw for raw, _ in reader.messages(f"{rig.exchange}.failed")]
    dropped = {read_properties(one, 0)["headers"].get("dropped-headers") for one in failed}
    assert dropped == {None, "large", "job-class"}
    assert any(nested(600) in one for one in failed)
    classes = {row["error"]["class"] for row in rig.inspector.failed(limit=100).rows}
    assert {len(name) for name in classes if "Long" in name} == {500}


@pytest.mark.timeout(scaled(400, 7_200))
def test_hostile_messages_are_settled_once_by_one_session_and_others_run(rig: Rig) -> None:
    rig.client.enqueue("hostile.note", ("first",), {})
    tokens = publish(rig, COUNT)
    rig.client.enqueue("hostile.note", ("last",), {})
    assert len(tokens) > COUNT * 0.95
    shown = rig.inspector.jobs("jobs", limit=COUNT + 2).rows
    json.dumps(shown, ensure_ascii=False).encode()
    assert len(shown) == len(tokens) + 2

    log = work(rig)

    assert (log.count(" connected "), has_traceback(log)) == (1, False)
    assert "connection lost" not in log
    ran, failed = Counter(rig.lines()), Counter(tokens_in(rig))
    assert (ran.pop("first"), ran.pop("last")) == (1, 1)
    assert ran + failed == Counter(tokens), f"seed {SEED}"

    assert len(rig.inspector.requeue(FailedFilter())) == failed.total()
    log = work(rig)

    assert (log.count(" connected "), has_traceback(log)) == (1, False)
    assert Counter(rig.lines()) + Counter(tokens_in(rig)) == Counter([*tokens, "first", "last"]), f"seed {SEED}"


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


def test_hostile_messages_are_shown_by_commands_pages_and_api(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PALERMO_JOURNAL", "all")
    rig.client.enqueue("hostile.note", ("first",), {})
    count = 1 + len(publish(rig, 50))
    with Web(rig.settings) as web:
        seen(rig, ["jobs", "jobs", "--limit", "1000"])
        waiting = json.loads(seen(rig, ["jobs", "jobs", "--limit", "1000", "--json"]))
        assert len(waiting) == count
        shown(web, ["/", "/queues", "/queues/jobs", "/api/queues", "/api/queues/jobs/jobs?limit=500"])
        # What came without an id has another at each look.
        shown(web, [f"/jobs/{quote(row['id'], safe='')}" for row in waiting[:15] if "-" not in row["id"]])

        work(rig)

        rows = json.loads(seen(rig, ["failed", "list", "--limit", "1000", "--json"]))
        seen(rig, ["failed", "list", "--limit", "1000"])
        seen(rig, ["failed", "groups"])
        seen(rig, ["history"])
        seen(rig, ["queues"])
        assert count / 2 < len(rows) < count
        for row in rows[:2]:
            seen(rig, ["failed", "show", row["id"]])
            seen(rig, ["status", row["id"]])
        eventually(lambda: web.http.get("/api/failed?limit=500").json()["total"] == len(rows))
        shown(web, ["/", "/failures", "/failures?limit=100", "/history", "/tenants", "/workers", "/statistics"])
        shown(web, ["/api/failed/groups", "/api/history?limit=500", "/api/audit", "/metrics"])
        for row in rows[:15]:
            shown(web, [f"/jobs/{quote(row['id'], safe='')}", f"/api/failed/{quote(row['id'], safe='')}"])
        for row in rows[-5:]:
            id = quote(row["id"], safe="")
            shown(web, [f"/api/jobs/{id}/status", f"/failures/{id}/edit"])


def seen(rig: Rig, command: list[str]) -> str:
    """What a command prints, which has no byte in it that could drive a terminal."""
    done = subprocess.run(
        [sys.executable, "-m", "palermo", *command],
        env={**os.environ, "PALERMO_URL": rig.settings.url, "PALERMO_EXCHANGE": rig.exchange},
        capture_output=True,
        check=False,
    )
    assert done.returncode == 0, (command, done.stderr.decode())
    assert not re.search(r"[\x00-\x08\x0b-\x1f]", done.stdout.decode()), command
    return done.stdout.decode()


def shown(web: Web, pages: list[str]) -> None:
    """Ask for these pages; JSON must be so."""
    for page in pages:
        answer = web.http.get(page)
        assert answer.status_code == 200, (page, answer.text[:2_000])
        if page.startswith("/api/"):
            answer.json()


# -- records in Palermo's own queues stop no process that reads them

Connect = Callable[[], Client]

Connect = Callable[[], Client]


@pytest.fixture
def connect(rabbitmq_url: str, exchange: str) -> Connect:
    return lambda: Client(Settings(url=rabbitmq_url, exchange=exchange, publish_timeout=PATIENT))


@pytest.mark.parametrize("rate", ["often", "1/0s"])
async def test_the_leader_continues_after_a_rate_that_means_nothing(
    broker: RabbitmqBroker, rabbitmq_url: str, exchange: str, rate: str, caplog: pytest.LogCaptureFixture
) -> None:
    question = {"ask": "limits", "do": "ask", "key": "k", "limit": 1, "rate": rate, "id": "a", "worker": "b"}
    async with time_kept(broker):
        assert await broker.limits() == []
        await asyncio.to_thread(_write, rabbitmq_url, f"{exchange}.~leader", json.dumps(question).encode())
        assert await broker.limits() == []
        await until(lambda: asyncio.sleep(0, "cannot be read" in caplog.text), True)
        assert Duty.TIME in broker.duties


#: What a leader writes into `~unique`, with one value that no version of Palermo writes.
_KEY: Mapping[str, Any] = {
    "name": "k",
    "serial": 1,
    "holder": {
        **dict.fromkeys(("id", "call", "job", "queue"), "a"),
        **dict.fromkeys(("serial", "starts", "since"), 1),
        "mode": "until_done",
        "phase": "running",
    },
}
_END = {"key": "k", "id": "a", "how": "done", "serial": 1, "starts": 1, "at": 5.0}
_BATCH = {"n": 9, "by": "x", "sure": 0}
_ODD_KEYS: tuple[Mapping[str, Any], ...] = (
    *({**_BATCH, "keys": {"k": {**_KEY, **odd}}, "jobs": []} for odd in ({"serial": []}, {"due": "x"})),
    *(
        {**_BATCH, "keys": {"k": {**_KEY, "holder": {**_KEY["holder"], **odd}}}, "jobs": []}
        for odd in ({"until": "x"}, {"starts": "x"}, {"since": None}, {"content": []}, {"run_at": {}})
    ),
    {**_BATCH, "keys": {"k": {**_KEY, "closed": {"until": "x", "id": "a"}}}, "jobs": []},
    {
        "n": 9,
        "by": "x",
        "sure": 0,
        "keys": {"k": {**_KEY, "ended": [{"id": "a", "call": "c", "until": "x"}]}},
        "jobs": [],
    },
    {**_BATCH, "keys": {"k": []}, "jobs": []},
    {**_BATCH, "keys": {}, "jobs": [1, {"id": "z"}]},
    {**_BATCH, "keys": {}, "jobs": [], "all": "x"},
    {**_BATCH, "keys": {}, "jobs": [], "owed": 1},
    {"n": "x", "end": _END},
    *({"end": {**_END, **odd}} for odd in ({"at": "x"}, {"starts": "x"}, {"run_at": []}, {"how": 7}, {"key": []})),
)


def test_records_of_keys_with_values_of_other_types_stop_no_leader(
    connect: Connect, rabbitmq_url: str, exchange: str
) -> None:
    def write_all() -> None:
        for record in _ODD_KEYS:
            _write(rabbitmq_url, f"{exchange}.~unique", json.dumps(record).encode())

    with connect() as client:
        assert client.enqueue("shop.mail", queue="mail", unique="until_done").enqueued
    write_all()
    with connect() as client:
        assert not client.enqueue("shop.mail", queue="mail", unique="until_done").enqueued
        write_all()
        assert client.enqueue("shop.sms", queue="mail", unique="until_done").enqueued
        assert not client.enqueue("shop.sms", queue="mail", unique="until_done").enqueued


#: Of the state of a recurring job, parts with a value that no version of Palermo writes.
_ODD_STATES: tuple[tuple[str, Any], ...] = (
    *(("since", odd) for odd in (1e300, -1.0, "nan", [])),
    *(("version", odd) for odd in (float("inf"), "x")),
    ("last_run", float("nan")),
    *(("message.content_type", odd) for odd in (7, None)),
    ("message.headers", [1]),
    ("message.properties", {"correlation_id": 7}),
    ("recurring.every", 1e-9),
)


def test_recurring_states_with_values_of_other_types_stop_no_leader(
    connect: Connect, rabbitmq_url: str, exchange: str
) -> None:
    with connect() as client:
        inspector = Inspector(client)
        inspector.put_recurring("sweep", "shop.sweep", every=86_400)
        stored = json.dumps(_taken(rabbitmq_url, f"{exchange}.~recurring"))
        inspector.put_recurring("other", "shop.other", every=86_400)
        for part, odd in _ODD_STATES:
            state = json.loads(stored) | {"version": 1_000}
            *folders, name = part.split(".")
            place = state
            for folder in folders:
                place = place[folder]
            place[name] = odd
            _write(rabbitmq_url, f"{exchange}.~recurring", json.dumps(state).encode())

            assert [row["name"] for row in inspector.recurring()] == ["other", "sweep"], part
            assert inspector.run_recurring("other"), part


def _taken(url: str, queue: str) -> dict[str, Any]:
    """The one record that is in the queue; it stays there."""

    def take() -> dict[str, Any]:
        with pika.BlockingConnection(pika.URLParameters(url)) as connection:
            _, _, body = connection.channel().basic_get(queue)
            found: dict[str, Any] = json.loads(body or b"{}")
            return found

    return eventually(take)


def _write(url: str, queue: str, body: bytes) -> None:
    with pika.BlockingConnection(pika.URLParameters(url)) as connection:
        channel = connection.channel()
        channel.confirm_delivery()
        channel.basic_publish("", queue, body, mandatory=True)
