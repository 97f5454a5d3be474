"""Copies of one unique job on RabbitMQ: after a change of leader, or beside a run that nobody sees yet."""

import json

import pika
import pytest

from palermo.brokers.rabbitmq.broker import RabbitmqBroker
from palermo.brokers.rabbitmq.unique import unique_keys
from palermo.brokers.rabbitmq.unique.key_log import key_log_queue
from palermo.core.lifecycle import Ack, Release
from palermo.core.queue_selection import QueueSelection
from tests.contract.timing import time_kept
from tests.contract.tools import Report, consume, counts, ids, take, until
from tests.contract.unique_jobs import ask, holders, keyed
from tests.rabbitmq.conftest import Open


def unsay(url: str, exchange: str) -> None:
    """Leave `~unique` as a leader does that is killed before it can say that its jobs are stored."""
    with pika.BlockingConnection(pika.URLParameters(url)) as connection:
        channel = connection.channel()
        kept = []
        while (got := channel.basic_get(key_log_queue(exchange)))[0] is not None:
            record = json.loads(got[2])
            if record.get("jobs"):
                kept.append((got[1], json.dumps({**record, "sure": 0, "owed": []}).encode()))
            channel.basic_ack(got[0].delivery_tag)
        for properties, body in kept:
            channel.basic_publish("", key_log_queue(exchange), body, properties)


@pytest.mark.parametrize("place", ["queue", "worker"])
async def test_a_new_leader_publishes_no_job_again_that_it_finds(
    broker: RabbitmqBroker, another: Open, rabbitmq_url: str, exchange: str, place: str
) -> None:
    await ask(broker, keyed("a"))
    await broker.close()
    unsay(rabbitmq_url, exchange)
    worker = await consume(await another())
    delivery = await take(worker) if place == "worker" else None

    others = await another()
    assert await holders(others) == [("a", "waiting")]

    if delivery is None:
        # A leader that looks for what it has handed over holds the job for that time.
        await until(lambda: ids(others), ["a"])
        delivery = await take(worker)
    else:
        assert await ids(others) == []
    started = await worker.admit(delivery)
    assert started is not None
    await worker.settle(started, Ack())
    await until(lambda: counts(others), (0, 0))


async def test_a_redelivered_copy_waits_until_the_new_run_can_be_seen(
    broker: RabbitmqBroker, another: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The worker that gets the copy asked the others before the run began, and so knows nothing of it."""
    monkeypatch.setattr(unique_keys, "_YOUNG", 3_600.0)
    async with time_kept(broker):
        await ask(broker, keyed("a"))
        shows_nothing = Report("jobs")
        first = await (await another()).consume(
            QueueSelection.parse("jobs"), slots=1, tag="first", report=shows_nothing
        )
        run = await first.admit(await take(first))
        assert run is not None
        await broker.publish(keyed("a"))
        second = await consume(await another(), report=Report("jobs", pid=4712))
        await second.settle(await take(second), Release())
        copy = await take(second)
        assert (copy.redelivered, copy.running_at) == (True, "")

        assert await second.admit(copy) is None

        await first.settle(run, Ack())
        assert await second.admit(await take(second)) is None
        await until(lambda: counts(broker), (0, 0))
