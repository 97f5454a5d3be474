"""A queue that another program has for itself: workers wait for it, serve their other queues, and say what is wrong."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pika
import pytest

from palermo.core.topology import amqp_queue
from palermo.inspector.doctor import broker_findings
from tests.harness.rig import Rig
from tests.helpers import eventually


@pytest.fixture
def rig(rabbitmq_url: str, exchange: str, tmp_path: Path) -> Iterator[Rig]:
    with Rig(tmp_path, rabbitmq_url, exchange, module="shop") as rig:
        yield rig


@contextmanager
def exclusive_consumer(rig: Rig, queue: str) -> Iterator[None]:
    """Another program that consumes from the queue, and lets nobody else do so."""
    with pika.BlockingConnection(pika.URLParameters(rig.url)) as connection:
        channel = connection.channel()
        channel.basic_qos(prefetch_count=1)
        channel.basic_consume(amqp_queue(rig.exchange, queue), lambda *_: None, exclusive=True)
        yield


@contextmanager
def exclusive_queue(rig: Rig, queue: str) -> Iterator[None]:
    """Another program that has declared the queue for itself."""
    with pika.BlockingConnection(pika.URLParameters(rig.url)) as connection:
        connection.channel().queue_declare(amqp_queue(rig.exchange, queue), exclusive=True)
        yield


def test_a_worker_serves_its_other_queues_while_one_is_in_exclusive_use(rig: Rig) -> None:
    rig.enqueue("note", "held by the other program", queue="mail")
    with exclusive_consumer(rig, "mail"):
        worker = rig.worker("-q", "mail,jobs", "-c", "2")
        rig.ready(worker)
        for number in range(20):
            rig.enqueue("note", f"{number}")
        rig.await_lines(20)
        assert [row["pid"] for row in rig.workers()] == [worker.pid]
        assert worker.log.count("INFO connected") == 1, worker.log
        assert worker.log.count("cannot be used") == 1, worker.log
        assert "exclusive" in worker.log
        assert "set_permissions" not in worker.log
        eventually(lambda: rig.rows("stats")["processed"] >= 20)

    rig.enqueue("note", "mailed", queue="mail")
    rig.await_lines(22)


def test_a_worker_serves_its_other_queues_while_one_is_declared_by_another_for_itself(rig: Rig) -> None:
    with exclusive_queue(rig, "mail"):
        worker = rig.worker("-q", "mail,jobs")
        rig.ready(worker)
        rig.enqueue("note", "other")
        rig.await_lines(1)
        assert worker.log.count("INFO connected") == 1, worker.log
        assert "set_permissions" not in worker.log

    rig.enqueue("note", "mailed", queue="mail")
    rig.await_lines(2)


def test_a_worker_of_a_queue_in_exclusive_use_waits_for_it_and_is_listed(rig: Rig) -> None:
    rig.enqueue("note", "held by the other program", queue="mail")
    with exclusive_consumer(rig, "mail"):
        worker = rig.worker("-q", "mail")
        eventually(lambda: "cannot be used" in worker.log)
        assert [row["pid"] for row in rig.workers()] == [worker.pid]
    rig.enqueue("note", "mailed", queue="mail")
    rig.await_lines(2)
    assert worker.log.count("INFO connected") == 1, worker.log


def test_the_doctor_says_that_another_program_has_the_queue_for_itself(rig: Rig) -> None:
    rig.enqueue("note", "held", queue="mail")
    with exclusive_consumer(rig, "mail"):
        rig.enqueue("note", "waits", queue="mail")
        eventually(lambda: rig.pending("mail") == 1)
        found = [one for one in broker_findings(rig.client) if one.check == "queue mail"]

    assert [one.level for one in found] == ["problem"]
    assert "for itself" in found[0].text
    assert "set_permissions" not in found[0].text + found[0].advice
