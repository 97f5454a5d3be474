"""A queue that is deleted and made again while a worker waits for its jobs: the worker goes on with the new one."""

import time
from collections.abc import Iterator
from pathlib import Path

import pika
import pytest
from pika.adapters.blocking_connection import BlockingChannel

from palermo.brokers.rabbitmq.amqp import versions
from palermo.core.topology import amqp_queue
from tests.harness.rig import Rig
from tests.helpers import eventually

#: Seconds between the deletion and the declaration.
GAPS = (0.0, 0.001, 0.005, 0.01, 0.02)

#: How often each is tried.
ROUNDS = 3

#: What the worker waits for, made shorter.
TIMES = {"palermo.brokers.rabbitmq.consuming.push._SILENCE": 0.3}

#: The queues that the worker serves: it is pushed the jobs of one queue, and asks for those of several.
SELECTIONS = ("jobs", "jobs,mail")


@pytest.fixture(params=["quorum", "classic"])
def rig(request: pytest.FixtureRequest, rabbitmq_url: str, exchange: str, tmp_path: Path) -> Iterator[Rig]:
    with Rig(tmp_path, rabbitmq_url, exchange, queue_type=request.param, module="shop") as rig:
        yield rig


@pytest.fixture
def channel(rabbitmq_url: str) -> Iterator[BlockingChannel]:
    """Another program's way to the broker."""
    with pika.BlockingConnection(pika.URLParameters(rabbitmq_url)) as connection:
        yield connection.channel()


def remake(rig: Rig, channel: BlockingChannel, gap: float) -> None:
    name, kind = amqp_queue(rig.exchange, "jobs"), rig.environment["PALERMO_QUEUE_TYPE"]
    version = channel.connection._impl.server_properties["version"]
    channel.queue_delete(name)
    time.sleep(gap)
    channel.queue_declare(name, durable=True, arguments=versions.arguments(kind, version))
    channel.queue_bind(name, rig.exchange, "jobs")


@pytest.mark.parametrize("queues", SELECTIONS)
def test_a_job_of_a_recreated_queue_runs_on_an_idle_worker(rig: Rig, channel: BlockingChannel, queues: str) -> None:
    worker = rig.worker("-q", queues, times=TIMES)
    rig.enqueue("note", "before")
    wanted = {"before"}
    eventually(lambda: wanted == set(rig.lines()))

    for gap in GAPS * ROUNDS:
        remake(rig, channel, gap)
        text = f"{len(wanted)} after {gap}"
        rig.enqueue("note", text)
        wanted.add(text)
        eventually(lambda: wanted == set(rig.lines()))

    assert worker.alive


def test_a_worker_finds_a_recreated_queue_by_itself(rig: Rig, channel: BlockingChannel) -> None:
    rig.worker("-q", "jobs")
    rig.enqueue("note", "before")
    rig.await_lines(1)

    remake(rig, channel, 0.0)
    rig.enqueue("note", "after")

    assert rig.await_lines(2) == ["before", "after"]


@pytest.mark.parametrize("queues", SELECTIONS)
def test_a_job_of_a_recreated_queue_runs_on_a_busy_worker(rig: Rig, channel: BlockingChannel, queues: str) -> None:
    rig.worker("-q", queues, times=TIMES)
    rig.enqueue("hold", "first")
    rig.await_lines(1)

    remake(rig, channel, 0.0)
    rig.enqueue("note", "after")
    rig.open_gate()

    assert set(rig.await_lines(3)) == {"first begins", "first ends", "after"}
