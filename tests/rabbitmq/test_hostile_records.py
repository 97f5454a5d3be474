"""Records that a stranger writes into Palermo's own queues and exchanges stop no process that reads them."""

import asyncio
import json

import pika
import pytest

from palermo.client.client import Client
from palermo.contract.broker import SessionParameters, open_broker
from palermo.core.address import parse_url
from palermo.core.election import Duty
from palermo.inspector.inspector import Inspector
from palermo.settings.settings import Settings
from tests.contract.timing import time_kept
from tests.contract.tools import PATIENT, until

#: JSON nested so deep that Python's reader raises RecursionError.
_DEEP = b"[" * 100_000 + b"]" * 100_000


@pytest.mark.parametrize("name", ["registry", "pauses", "cancels", "journal"])
def test_a_record_nested_without_end_is_skipped_by_all_who_read_the_stream(
    rabbitmq_url: str, exchange: str, name: str
) -> None:
    with Client(Settings(url=rabbitmq_url, exchange=exchange, publish_timeout=PATIENT)) as client:
        inspector = Inspector(client)
        job = client.enqueue("shop.mail", queue="mail")
        inspector.pause("mail")
        inspector.cancel(job.id)
        inspector.audit()
        _write(rabbitmq_url, f"{exchange}.~{name}")

    with Client(Settings(url=rabbitmq_url, exchange=exchange, publish_timeout=PATIENT)) as client:
        inspector = Inspector(client)
        assert [(row["name"], row["paused"]) for row in inspector.queues()] == [("failed", False), ("mail", True)]
        assert [row["state"] for row in inspector.jobs("mail")] == ["cancelled"]
        assert inspector.audit(limit=1).rows


@pytest.mark.parametrize("rate", ["often", "1/0s"])
def test_the_leader_goes_on_after_a_question_with_a_rate_that_means_nothing(
    rabbitmq_url: str, exchange: str, rate: str, caplog: pytest.LogCaptureFixture
) -> None:
    question = {"ask": "limits", "do": "ask", "key": "k", "limit": 1, "rate": rate, "id": "a", "worker": "b"}

    async def is_said() -> bool:
        return "a question to the leader cannot be read" in caplog.text

    async def work() -> None:
        leader = await open_broker(
            SessionParameters(address=parse_url(rabbitmq_url), exchange=exchange, timeout=PATIENT)
        )
        async with time_kept(leader):
            assert await leader.limits() == []
            await asyncio.to_thread(_write, rabbitmq_url, f"{exchange}.~leader", json.dumps(question).encode())
            assert await leader.limits() == []
            await until(is_said, True)
            assert Duty.TIME in leader.duties
        await leader.close()

    asyncio.run(work())


def test_a_record_of_keys_that_cannot_be_read_is_dropped(rabbitmq_url: str, exchange: str) -> None:
    with Client(Settings(url=rabbitmq_url, exchange=exchange, publish_timeout=PATIENT)) as client:
        assert client.enqueue("shop.mail", queue="mail", unique="until_done").enqueued
        _write(rabbitmq_url, f"{exchange}.~unique")
        assert not client.enqueue("shop.mail", queue="mail", unique="until_done").enqueued
        assert client.enqueue("shop.sms", queue="mail", unique="until_done").enqueued
    with pika.BlockingConnection(pika.URLParameters(rabbitmq_url)) as connection:
        channel = connection.channel()
        records = [body for _, _, body in iter(lambda: channel.basic_get(f"{exchange}.~unique"), (None, None, None))]

    assert records
    assert _DEEP not in records


def _write(url: str, queue: str, body: bytes = _DEEP) -> None:
    with pika.BlockingConnection(pika.URLParameters(url)) as connection:
        channel = connection.channel()
        channel.confirm_delivery()
        channel.basic_publish("", queue, body, mandatory=True)
