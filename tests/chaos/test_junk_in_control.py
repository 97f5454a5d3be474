"""Junk in all queues and streams that workers have among themselves: nothing dies or loops, and orders are obeyed."""

import json
from itertools import cycle
from typing import Any

import pytest

from palermo.core.topology import internal
from palermo.inspector.doctor import broker_findings
from tests.chaos.junk import RECORDS
from tests.harness.rig import Rig
from tests.helpers import eventually, has_traceback
from tests.hostile import MESSAGES
from tests.rabbitmq.patience import have_patience
from tests.rabbitmq_node import Node, queues_of, version_of
from tests.raw_amqp import RawClient, properties, short, table, table_of, text

#: The deepest that a JSON text of a few kilobytes can be.
_DEEP = b"[" * 5_000 + b"]" * 5_000

#: What would be understood but for one thing, and what would not.
JUNK: tuple[bytes, ...] = (
    b"",
    b"\0" * 100,
    b"\xff\xfe{",
    b"null",
    b"[]",
    b'"report"',
    b"1e999",
    _DEEP,
    b'{"ask": ' + _DEEP + b"}",
    *(
        json.dumps(value).encode()
        for value in (
            {},
            {"ask": None},
            {"ask": ["report"]},
            {"ask": "no such thing"},
            {"ask": "report" * 100_000},
            {"ask": "cancel"},
            {"ask": "cancel", "id": {"a": 1}, "workers": "all", "by": [1]},
            {"ask": "cancel", "id": "x" * 100_000, "workers": [None, 1, {}], "by": None},
            {"ask": "dump", "workers": 7},
            {"ask": "resume", "id": 2**70, "workers": {}},
            {"ask": "ListScheduled", "limit": -1, "offset": "x"},
            {"ask": "AlterScheduled", "chosen": []},
            {"ask": "ChangeRecurring", "change": {"name": 1, "action": "put", "entry": 7}},
            {"ask": "ChangeRecurring", "change": []},
            {"ask": "RequestPermit", "demand": {"key": [], "limit": "x", "rate": 7}, "id": {}, "worker": 1},
            {"ask": "EndRun", "key": None},
            {"ask": "EnqueueUnique", "claims": [{}, 1, None, {"key": 1, "message": {"body": 7}}]},
            {"ask": "StartJob", "lock": []},
            {"ask": "FreeKeys", "names": 1},
            {"ask": "ListTenants", "queue": {"a": []}},
            {"ask": "HasTenantJobs", "queue": 7, "tenant": [], "format": "x"},
            {"worker": "x", "since": "y", "inbox": 7, "runs": {"a": 1}, "blames": [], "forgets": 1},
        )
    ),
)


def own_queues(node: Node, exchange: str) -> list[str]:
    """What workers read from: queues that RabbitMQ lets others publish to, streams among them."""
    return [name for name in queues_of(node) if name.startswith(f"{exchange}.~")]


#: Properties as they should be, with an answer to nowhere, and with one that cannot be.
PLAIN = (
    properties(headers=table()),
    properties(headers=table(), reply_to=short(b"nobody.there"), correlation_id=short(b"1")),
    properties(headers=table(), reply_to=short(b"x" * 255), correlation_id=short(b"y" * 255)),
)

#: With headers that RabbitMQ gives to what it delivers.
FORGED = tuple(
    properties(headers=table_of({name: value}))
    for name in (b"x-stream-offset", b"x-delivery-count", b"x-death")
    for value in (text(b"first"), b"l" + (2**63 - 1).to_bytes(8, "big"), b"V")
)


#: What Palermo keeps for itself, whether or not any job has failed yet.
KEPT = ("facts", "cancels", "starts", "journal", "unique", "later", "tenants", "recurring")

#: The ways of a job, each of which needs another of these.
WAYS: tuple[dict[str, Any], ...] = ({}, {"delay": 1}, {"tenant": "a"}, {"unique": "until_done"})


def named(rig: Rig) -> set[str]:
    """The streams and queues that the doctor names for their unreadable records."""
    texts = [one.text for one in broker_findings(rig.client) if one.check == "records"]
    return {word for text in texts for word in text.split() if ".~" in word}


def test_no_worker_dies_of_junk_where_it_listens(rig: Rig, module_node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    """Properties that no client library would write, with bodies that are understood and bodies that are not."""
    # A pause is one for every worker when the call returns, however busy the machine is.
    have_patience(monkeypatch)
    workers = [rig.worker("-q", queues, "-c", "2") for queues in ("jobs", "jobs,mail")]
    rig.ready(*workers)
    rig.inspector.queues.pause("mail")
    rig.enqueue("note", "paused", queue="mail")
    rig.palermo("cancel", rig.enqueue("note", "cancelled", queue="mail"))
    rig.inspector.recurring.put("daily", "shop.note", every=86_400)
    rig.enqueue("hold", "held")
    for way in WAYS:
        rig.client.enqueue("shop.note", ("first",), **way)
    rig.await_lines(5)
    kept = {internal(rig.exchange, name) for name in KEPT}
    needed = {*kept, internal(rig.exchange, "leader")}
    # The journal is made with its first batch.
    read = eventually(lambda: found if needed <= {*(found := own_queues(module_node, rig.exchange))} else [])
    asked = [name for name in read if ".~worker." in name or ".~leader" in name]

    with RawClient(rig.url) as client:
        for raw, body in zip(cycle(PLAIN), JUNK, strict=False):
            client.publish(internal(rig.exchange, "control"), "", raw, body)
            for name in asked:
                client.publish("", name, raw, body)
        rig.enqueue("note", "between")
        rig.await_lines(6)
        assert rig.errors() == {}
        for raw in (*MESSAGES.values(), *FORGED):
            for body in (b'{"ask": "report", "version": 1}', b"x"):
                client.publish(internal(rig.exchange, "control"), "", raw, body)
                for name in read:
                    try:
                        client.publish("", name, raw, body)
                    except ConnectionError:
                        # From 4.3 on RabbitMQ ends the connection of who publishes what no stream can hold.
                        assert version_of(rig.url) >= (4, 3)
                        client.close()
                        client.connect()
        for body in RECORDS:
            for name in read:
                client.publish("", name, PLAIN[0], body)

    rig.palermo("resume", "mail")
    for number in range(3):
        rig.enqueue("note", f"{number}", queue=("jobs", "mail", "jobs")[number])
    rig.client.enqueue("shop.note", ("later again",), delay=1)
    rig.client.enqueue("shop.note", ("unique again",), unique="until_done")
    rig.await_lines(12)
    for command in ("queues", "workers", "history", "audit", "stats"):
        rig.palermo(command)
    eventually(lambda: named(rig) >= kept)
    for worker in workers:
        assert worker.alive
        worker.kill9()
    # One that comes later reads all from its beginning, leads, and gets the job that a dead one ran.
    workers.append(rig.worker("-q", "jobs,late", "-c", "2"))
    for way in WAYS:
        rig.client.enqueue("shop.note", ("late",), queue="late", **way)
    rig.await_lines(17)
    assert workers[-1].alive
    for worker in workers:
        assert not has_traceback(worker.log)
        assert worker.log.count("INFO connected") == 1, worker.log
    told = ("between", "paused", "0", "1", "2", "later again", "unique again", *["first", "late"] * 4)
    assert sorted(rig.lines()) == sorted((*told, *["held begins"] * 2))
