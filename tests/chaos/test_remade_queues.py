"""A queue that is deleted and made again while a worker waits for its jobs: the worker goes on with the new one."""

import time
from pathlib import Path

import pytest
from pika.adapters.blocking_connection import BlockingChannel

from palermo.brokers.rabbitmq.amqp import versions
from palermo.core.topology import amqp_queue, internal
from tests.harness.rig import Rig
from tests.helpers import eventually

#: Seconds between the deletion and the declaration.
GAPS = (0.0, 0.001, 0.005, 0.01, 0.02)

#: How often each is tried.
ROUNDS = 3


#: A worker is pushed the jobs of one queue, and asks for those of several.
@pytest.mark.parametrize(("kind", "queues"), [("quorum", "jobs"), ("classic", "jobs"), ("classic", "jobs,mail")])
def test_a_job_of_a_recreated_queue_runs_on_an_idle_or_busy_worker(
    rabbitmq_url: str, exchange: str, tmp_path: Path, channel: BlockingChannel, kind: str, queues: str
) -> None:
    version = channel.connection._impl.server_properties["version"]
    if kind == "quorum" and versions.loses_consumers(version):
        return  # docs/guides/rabbitmq.md says so
    arguments = versions.arguments(kind, version)

    def remake(gap: float) -> None:
        name = amqp_queue(exchange, "jobs")
        channel.queue_delete(name)
        time.sleep(gap)
        channel.queue_declare(name, durable=True, arguments=arguments)
        channel.queue_bind(name, exchange, "jobs")

    with Rig(tmp_path, rabbitmq_url, exchange, queue_type=kind, module="shop") as rig:
        worker = rig.worker("-q", queues)
        rig.enqueue("hold", "busy")
        rig.await_lines(1)
        remake(0.0)
        rig.enqueue("note", "after")
        rig.open_gate()
        wanted = {"busy begins", "busy ends", "after"}
        eventually(lambda: wanted == set(rig.lines()))

        for gap in GAPS * ROUNDS:
            remake(gap)
            text = f"{len(wanted)} after {gap}"
            rig.enqueue("note", text)
            wanted.add(text)
            eventually(lambda: wanted == set(rig.lines()))

        assert worker.alive


def test_a_worker_outlives_a_queue_of_palermos_own(rabbitmq_rig: Rig, channel: BlockingChannel) -> None:
    rig, own = rabbitmq_rig, internal(rabbitmq_rig.exchange, "presence")
    worker = rig.idle("-q", "jobs")
    rig.enqueue("hold", "held")
    rig.await_lines(1)
    channel.queue_delete(own)
    eventually(lambda: [row["pid"] for row in rig.workers() if row["answers"]] == [worker.pid])
    rig.inspector.queues.pause("jobs")
    rig.enqueue("note", "late")
    rig.open_gate()
    eventually(lambda: sorted(rig.lines()) == ["held begins", "held ends"])
    rig.inspector.queues.resume("jobs")
    eventually(lambda: sorted(rig.lines()) == ["held begins", "held ends", "late"])
    assert worker.alive
