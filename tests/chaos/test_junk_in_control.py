"""Junk sent where workers listen to each other: nothing dies, nothing loops, and orders are still obeyed."""

import json
from itertools import cycle

import pytest

from palermo.core.topology import internal
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


def test_no_worker_dies_of_junk_where_it_listens(rig: Rig, module_node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    """Properties that no client library would write, with bodies that are understood and bodies that are not."""
    # A pause is one for every worker when the call returns, however busy the machine is.
    have_patience(monkeypatch)
    workers = [rig.worker("-q", queues, "-c", "2") for queues in ("jobs", "jobs,mail")]
    rig.ready(*workers)
    rig.inspector.queues.pause("mail")
    rig.enqueue("note", "paused", queue="mail")
    rig.palermo("cancel", rig.enqueue("note", "cancelled", queue="mail"))
    rig.client.enqueue("shop.note", ("later",), delay=1)
    rig.client.enqueue("shop.note", ("tenant",), tenant="a")
    rig.client.enqueue("shop.note", ("unique",), unique="until_done")
    rig.await_lines(3)
    needed = {f"{rig.exchange}.~{name}" for name in ("facts", "cancels", "journal", "leader")}
    # The journal is made with its first batch.
    read = eventually(lambda: found if needed <= {*(found := own_queues(module_node, rig.exchange))} else [])
    asked = [name for name in read if ".~worker." in name or ".~leader" in name]

    with RawClient(rig.url) as client:
        for raw, body in zip(cycle(PLAIN), JUNK, strict=False):
            client.publish(internal(rig.exchange, "control"), "", raw, body)
            for name in asked:
                client.publish("", name, raw, body)
        rig.enqueue("note", "between")
        rig.await_lines(4)
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

    rig.palermo("resume", "mail")
    for number in range(3):
        rig.enqueue("note", f"{number}", queue=("jobs", "mail", "jobs")[number])
    rig.client.enqueue("shop.note", ("later again",), delay=1)
    rig.client.enqueue("shop.note", ("unique again",), unique="until_done")
    rig.await_lines(10)
    for command in ("queues", "workers", "history", "audit", "stats"):
        rig.palermo(command)
    # One that comes later reads the streams from their beginning.
    workers.append(rig.worker("-q", "late"))
    rig.ready(*workers)
    rig.enqueue("note", "late", queue="late")
    rig.await_lines(11)
    for worker in workers:
        assert worker.alive
        assert not has_traceback(worker.log)
        assert worker.log.count("INFO connected") == 1, worker.log
    told = ("later", "tenant", "unique", "between", "paused", "0", "1", "2", "later again", "unique again", "late")
    assert sorted(rig.lines()) == sorted(told)
