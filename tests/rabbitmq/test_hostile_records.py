"""Records that a stranger writes into Palermo's own queues and exchanges stop no process that reads them."""

import asyncio
import json
from collections.abc import Callable, Mapping
from typing import Any

import pika
import pytest

from palermo.brokers.rabbitmq.broker import RabbitmqBroker
from palermo.client.client import Client
from palermo.core.election import Duty
from palermo.inspector.inspector import Inspector
from palermo.settings.settings import Settings
from tests.contract.timing import time_kept
from tests.contract.tools import PATIENT, until
from tests.helpers import eventually

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
