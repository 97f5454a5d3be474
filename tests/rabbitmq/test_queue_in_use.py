"""A queue that another program has for itself: workers wait for it, serve their other queues, and say what is wrong."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pika
import pytest

from palermo.brokers.rabbitmq.broker import RabbitmqBroker
from palermo.core.topology import amqp_queue
from palermo.inspector.doctor import broker_findings
from tests.contract.tools import message
from tests.contract.workers import consume, take_and_ack
from tests.harness.rig import Rig
from tests.helpers import eventually


@contextmanager
def in_use(rig: Rig, queue: str, *, by: str = "consumer") -> Iterator[None]:
    """Another program consumes from the queue and lets nobody else do so, or has declared it for itself."""
    with pika.BlockingConnection(pika.URLParameters(rig.url)) as connection:
        channel = connection.channel()
        if by == "consumer":
            channel.basic_qos(prefetch_count=1)
            channel.basic_consume(amqp_queue(rig.exchange, queue), lambda *_: None, exclusive=True)
        else:
            channel.queue_declare(amqp_queue(rig.exchange, queue), exclusive=True)
        yield


@pytest.mark.parametrize("by", ["consumer", "declaration"])
def test_a_worker_serves_its_other_queues_while_one_is_in_exclusive_use(rabbitmq_rig: Rig, by: str) -> None:
    rig = rabbitmq_rig
    if by == "consumer":
        rig.enqueue("note", "held by the other program", queue="mail")
    with in_use(rig, "mail", by=by):
        worker = rig.worker("-q", "mail,jobs", "-c", "2")
        rig.ready(worker)
        for number in range(20):
            rig.enqueue("note", f"{number}")
        rig.await_lines(20)
        assert [row["pid"] for row in rig.workers()] == [worker.pid]
        assert worker.log.count("INFO connected") == 1, worker.log
        assert "set_permissions" not in worker.log
        assert by != "consumer" or worker.log.count("cannot be used") == 1, worker.log
        eventually(lambda: rig.rows("stats")["processed"] >= 20)

    rig.enqueue("note", "mailed", queue="mail")
    rig.await_lines(22 if by == "consumer" else 21)


def test_a_worker_waits_for_a_queue_in_use_and_the_doctor_says_why(rabbitmq_rig: Rig) -> None:
    rig = rabbitmq_rig
    rig.enqueue("note", "held by the other program", queue="mail")
    with in_use(rig, "mail"):
        worker = rig.worker("-q", "mail")
        eventually(lambda: "cannot be used" in worker.log)
        assert [row["pid"] for row in rig.workers()] == [worker.pid]
        rig.enqueue("note", "waits", queue="mail")
        eventually(lambda: rig.pending("mail") == 1)
        [found] = [one for one in broker_findings(rig.client) if one.check == "queue mail"]
    rig.await_lines(2)

    assert worker.log.count("INFO connected") == 1, worker.log
    assert (found.level, "for itself" in found.text) == ("problem", True)
    assert "set_permissions" not in found.text + found.advice


async def test_a_queue_remade_by_another_ends_no_session(broker: RabbitmqBroker, exchange: str, channel: Any) -> None:
    consumer = await consume(broker, "a,b")
    for queue in ("a", "b"):
        await broker.publish(message(queue, queue))
        assert (await take_and_ack(consumer)).id == queue
    channel.queue_delete(amqp_queue(exchange, "a"))
    channel.queue_declare(amqp_queue(exchange, "a"), exclusive=True)

    for number in range(20):
        await broker.publish(message(f"{number}", "b"))
        assert (await take_and_ack(consumer)).id == f"{number}"
