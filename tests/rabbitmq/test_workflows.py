"""The ends of steps, which workers write and the leader of workflows reads."""

import json
from base64 import b64encode

import pytest
from msgspec.structs import replace

from palermo.brokers.rabbitmq.amqp.messages import PERSISTENT_JSON
from palermo.brokers.rabbitmq.broker import RabbitmqBroker
from palermo.brokers.rabbitmq.journal import StreamJournal
from palermo.brokers.rabbitmq.workflows.step_reports import StepReport, workflow_queue
from palermo.contract.broker import Delivery, SessionParameters
from palermo.contract.worker_info import WorkerCommand
from palermo.core.lifecycle import Ack
from palermo.core.step_values import pack
from palermo.core.workflow import AddedStep, Graph, StepJob
from palermo.core.workflow_rules import How, Plan
from palermo.errors import BrokerUnavailable
from tests.contract.timing import time_kept
from tests.contract.tools import message, until
from tests.contract.workers import Worker, consume, take
from tests.rabbitmq.conftest import Open, becomes

#: What a run adds: one step.
GRAPH = Graph(steps=(AddedStep(Plan(name="one"), StepJob.of(message("one"))),))
ADDS = pack(GRAPH)


async def begin(broker: RabbitmqBroker, consumer: Worker, id: str, adds: bytes = ADDS) -> Delivery:
    """Begin a workflow of one step, and take that."""
    await broker.publish(message(id))
    await consumer.settle(await take(consumer), Ack(adds=adds))
    step = await take(consumer)
    assert step.message.id == f"{id}/one"
    return step


async def run(broker: RabbitmqBroker, consumer: Worker, id: str) -> None:
    """Run a workflow of one step."""
    await consumer.settle(await begin(broker, consumer, id), Ack())


async def left(broker: RabbitmqBroker) -> list[str]:
    """The ids of the workflows that are not over."""
    return [found.id for found in await broker.workflows.all()]


async def test_an_end_waits_until_the_journal_can_be_written(
    broker: RabbitmqBroker, another: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    append, errors = StreamJournal.append, [BrokerUnavailable("no journal")] * 3

    async def failing(journal: StreamJournal, batch: bytes) -> None:
        if errors:
            raise errors.pop()
        await append(journal, batch)

    monkeypatch.setattr(StreamJournal, "append", failing)
    async with time_kept(broker):
        consumer = await consume(await another())
        await run(broker, consumer, "a")

        await until(lambda: left(broker), [])
    assert errors == []


async def test_an_end_that_cannot_be_read_is_passed_over(
    broker: RabbitmqBroker, another: Open, session: SessionParameters
) -> None:
    queue = workflow_queue(session.exchange)
    async with time_kept(broker):
        consumer = await consume(await another())
        await run(broker, consumer, "before")
        publisher = await broker._outbox.open()
        for adds in (b"", b"\xc1", ADDS[:-1]):
            report = StepReport(message=message("junk"), how=How.DONE, adds=b64encode(adds).decode())
            await publisher.send("", queue, PERSISTENT_JSON, json.dumps(report.to_record()).encode())
        await run(broker, consumer, "after")

        await until(lambda: left(broker), [])
        assert broker._connection.unreadable.counts == {queue: 3}


async def test_a_job_that_runs_is_ordered_to_end_at_the_deadline(broker: RabbitmqBroker, another: Open) -> None:
    orders: list[tuple[str, str, str]] = []

    async def obey(order: WorkerCommand) -> None:
        orders.append((order.action, order.id, order.by))

    async with time_kept(broker):
        consumer = await consume(await another(), on_command=obey)
        step = await begin(broker, consumer, "a", pack(replace(GRAPH, deadline=0.2)))
        await becomes(lambda: orders, [("cancel", "a/one", "deadline")])
        await consumer.settle(step, Ack(done=False, cancelled=True))

        await until(lambda: left(broker), [])
