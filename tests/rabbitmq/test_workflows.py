"""The ends of steps, which workers write and the leader of workflows reads."""

import asyncio
import time
from base64 import b64encode
from collections import Counter
from collections.abc import Awaitable, Sequence
from itertools import count
from typing import Any

import msgspec
import pytest
from msgspec.structs import replace

from palermo.brokers.rabbitmq import diagnosis
from palermo.brokers.rabbitmq.amqp.alarms import confirmed
from palermo.brokers.rabbitmq.amqp.connection import Connection
from palermo.brokers.rabbitmq.amqp.messages import PERSISTENT_JSON
from palermo.brokers.rabbitmq.amqp.state_log import Record, StateLog
from palermo.brokers.rabbitmq.broker import RabbitmqBroker
from palermo.brokers.rabbitmq.journal import StreamJournal
from palermo.brokers.rabbitmq.publishing import end_writer
from palermo.brokers.rabbitmq.publishing.ledger import Ledger
from palermo.brokers.rabbitmq.workflows import leader_workflows, lost_steps
from palermo.brokers.rabbitmq.workflows.step_reports import RunEnd, StepReport, record_of, workflow_queue
from palermo.contract.broker import Delivery, SessionParameters
from palermo.contract.sweep import Move
from palermo.contract.worker_info import WorkerCommand
from palermo.core.lifecycle import Ack, Reschedule, StoredResult
from palermo.core.message import Message
from palermo.core.step_values import pack
from palermo.core.topology import amqp_queue
from palermo.core.workflow import AddedStep, Graph, Member, StepJob, step_of
from palermo.core.workflow_rules import Condition, How, Plan
from palermo.errors import BrokerUnavailable, PalermoError
from tests.contract.timing import time_kept
from tests.contract.tools import ids, message, until
from tests.contract.workers import Report, Worker, consume, nothing_for, take, take_and_ack
from tests.rabbitmq.conftest import Open, ids_in, on_both_kinds

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


async def leave(broker: RabbitmqBroker, id: str, adds: bytes = ADDS) -> None:
    """Begin a workflow, and leave its steps in their queues."""
    consumer = await consume(broker, report=Report("jobs", pid=2))
    await broker.publish(message(id))
    await consumer.settle(await take(consumer), Ack(adds=adds))
    await consumer.close()


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
        step = await begin(broker, consumer, "a")
        publisher = await broker._outbox.open()
        for adds in (b"", b"\xc1", ADDS[:-1]):
            report = StepReport(message=message("junk"), adds=b64encode(adds).decode())
            await publisher.send("", queue, PERSISTENT_JSON, report.encode())
        for path in ("one:x", "one:" + "9" * 5_000):  # members without a number
            end = RunEnd.of(("a", path, 0), How.DONE, None)
            await publisher.send("", queue, PERSISTENT_JSON, record_of([msgspec.json.encode(end)]))
        await consumer.settle(step, Ack())
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
        await until(lambda: orders, [("cancel", "a/one", "deadline")])
        await consumer.settle(step, Ack(done=False, cancelled=True))

        await until(lambda: left(broker), [])


async def test_a_step_that_cannot_be_stored_for_a_retry_fails(
    broker: RabbitmqBroker, another: Open, small: dict[str, Any]
) -> None:
    async with time_kept(broker):
        consumer = await consume(await another(**small))
        step = await begin(broker, consumer, "a")
        large = replace(step.message, extra={**step.message.extra, "note": "n" * 20_000})

        await consumer.settle(step, Reschedule(large))

        async def state() -> str | None:
            found = await broker.workflows.find("a")
            return None if found is None else found.steps["one"].state

        await until(state, "failed")
        assert await ids(broker, "failed") == ["a/one"]
        # As if a retry were killed before it has moved the job.
        assert await broker.workflows.gate("failed", [(step.message, step.message)], [True]) != [False]
        assert await broker.workflows.failed_jobs("a") == ["a/one"]


@pytest.mark.parametrize("queues", ["jobs", "jobs,other"])
async def test_a_slot_goes_on_after_an_end_that_was_not_confirmed(
    broker: RabbitmqBroker, another: Open, monkeypatch: pytest.MonkeyPatch, queues: str
) -> None:
    async def late(sent: Awaitable[None], *_: object, **__: object) -> None:
        await sent
        monkeypatch.setattr(end_writer, "confirmed", confirmed)
        raise BrokerUnavailable("not confirmed in time")

    async with time_kept(broker):
        consumer = await consume(await another(), queues)
        step = await begin(broker, consumer, "a")
        monkeypatch.setattr(end_writer, "confirmed", late)
        await consumer.settle(step, Ack())
        waiting = {"b", "c"}
        await broker.publish_many([message(id) for id in waiting])

        while waiting:
            waiting.discard((await take_and_ack(consumer)).id)  # the step may run again
        await until(lambda: left(broker), [])


@pytest.fixture
def watched(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have the leader look for lost steps all the time."""
    monkeypatch.setattr(lost_steps, "LOOK_EVERY", 0.2)


@pytest.mark.slow
@pytest.mark.usefixtures("watched")
@on_both_kinds
async def test_a_step_that_another_program_purges_runs_again_once(
    broker: RabbitmqBroker, another: Open, channel: Any, session: SessionParameters
) -> None:
    job = StepJob.of(message("x"))
    steps = AddedStep(Plan(name="one"), job), AddedStep(Plan(name="many", members=3), job, (Member(b"[2]"),) * 3)
    wanted = ["a/many:0", "a/many:1", "a/many:2", "a/one"]

    async with time_kept(await another()):
        await leave(broker, "a", pack(Graph(steps=steps)))
        for _ in range(2):
            await until(lambda: ids_in(broker), wanted)
            channel.queue_purge(amqp_queue(session.exchange, "jobs"))
        await until(lambda: ids_in(broker, "failed"), wanted)
        (found,) = await broker.workflows.all()
        assert (found.state, found.failed) == ("failed", 4)

        await broker.sweep("failed", lambda found: Move(replace(found, queue="jobs")))
        consumer = await consume(await another())
        assert sorted([(await take_and_ack(consumer)).id for _ in wanted]) == wanted
        await until(lambda: left(broker), [])


@pytest.mark.slow
@pytest.mark.usefixtures("watched")
async def test_a_step_that_waits_elsewhere_is_not_lost(broker: RabbitmqBroker, another: Open) -> None:
    async with time_kept(await another()):
        consumer = await consume(await another())
        step = await begin(broker, consumer, "a")
        await asyncio.sleep(1)
        later = replace(step.message, run_at=time.time() + 3)
        await consumer.settle(step, Reschedule(later))

        assert (await take_and_ack(consumer)).run_at == later.run_at
        await until(lambda: left(broker), [])
        await nothing_for(consumer)


@pytest.mark.slow
@pytest.mark.usefixtures("watched")
async def test_a_step_that_was_moved_to_another_queue_is_not_lost(broker: RabbitmqBroker, another: Open) -> None:
    async def names() -> set[str]:
        return {queue.name for queue in await other.queues()}

    other = await another()
    # All sessions know a new queue only after up to three seconds, which is long here.
    await broker.publish(message("0", queue="slow"))
    await until(names, {"slow"})
    await broker.purge("slow")

    async with time_kept(await another()):
        await leave(broker, "a")
        await until(lambda: ids_in(broker), ["a/one"])
        await broker.sweep("jobs", lambda found: Move(replace(found, queue="slow")))

        await asyncio.sleep(1.5)

        assert (await ids_in(broker, "slow"), await ids_in(broker)) == (["a/one"], [])


@pytest.mark.slow
@pytest.mark.usefixtures("watched")
async def test_a_step_that_another_programs_worker_runs_is_not_lost(
    broker: RabbitmqBroker, another: Open, channel: Any, session: SessionParameters
) -> None:
    graph = Graph(steps=(AddedStep(Plan(name="one"), StepJob.of(message("x", "php"))),))
    taken: list[str] = []
    async with time_kept(await another()):
        await leave(broker, "a", pack(graph))
        await until(lambda: ids_in(broker, "php"), ["a/one"])
        channel.basic_consume(amqp_queue(session.exchange, "php"), lambda *got: taken.append(got[2].message_id))
        channel.connection.process_data_events(1)

        await asyncio.sleep(1.5)

        channel.connection.process_data_events(1)
        assert taken == ["a/one"]


@pytest.mark.slow
async def test_a_step_whose_end_is_stored_does_not_run_again(broker: RabbitmqBroker, another: Open) -> None:
    signal = AddedStep(Plan(name="waits", signal=True))
    async with time_kept(broker):
        consumer = await consume(await another())
        step = await begin(broker, consumer, "a", pack(replace(GRAPH, steps=(*GRAPH.steps, signal))))
        await broker.workflows.send_end(step.message, How.DONE)
        await consumer.close()
        consumer = await consume(await another())

        await nothing_for(consumer, within=1)

        await broker.workflows.signal("a", "waits", StoredResult("application/json", b"1"))
        await until(lambda: left(broker), [])


@pytest.mark.slow
async def test_the_doctor_warns_of_workflows_that_take_much_memory(
    broker: RabbitmqBroker, another: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def found() -> list[str]:
        return [one.level for one in await broker.diagnose() if one.check == "workflows"]

    async with time_kept(broker):
        await begin(broker, await consume(await another()), "a")
    assert await found() == []

    monkeypatch.setattr(diagnosis, "_MUCH", 10)
    assert await found() == ["warning"]


@pytest.mark.slow
async def test_deleting_a_queue_cancels_the_steps_that_wait_in_it(broker: RabbitmqBroker, another: Open) -> None:
    async with time_kept(await another()):
        consumer = await consume(await another())
        step = await begin(broker, consumer, "running")
        await leave(broker, "waiting")
        await until(lambda: ids_in(broker), ["waiting/one"])

        await broker.delete("jobs")

        assert await left(broker) == ["running"]
        await consumer.settle(step, Ack())
        await until(lambda: left(broker), [])


class Killing:
    """Cuts the leader's connection before one of the effects of its work on workflows, the first one being 1."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, queue: str) -> None:
        #: The effects until the leader dies.
        self.left = 0
        append, publish, write = StateLog.append, Ledger._publish, StreamJournal.append

        async def appending(log: StateLog, *records: Any) -> list[Record]:
            if log._queue == queue:
                self._effect(log._connection)
            return await append(log, *records)

        async def publishing(ledger: Ledger[Any], jobs: Sequence[Message]) -> dict[str, PalermoError]:
            if ledger._table.queue == queue:
                self._effect(ledger._connection)
            return await publish(ledger, jobs)

        async def writing(journal: StreamJournal, batch: bytes) -> None:
            self._effect(journal._connection)
            await write(journal, batch)

        monkeypatch.setattr(StateLog, "append", appending)
        monkeypatch.setattr(Ledger, "_publish", publishing)
        monkeypatch.setattr(StreamJournal, "append", writing)

    def _effect(self, connection: Connection) -> None:
        self.left -= 1
        if self.left == 0:
            connection.raw.abort()
            raise BrokerUnavailable("killed")


@pytest.mark.slow
@on_both_kinds
async def test_a_leader_killed_before_any_effect_neither_loses_nor_repeats_a_step(
    broker: RabbitmqBroker, another: Open, session: SessionParameters, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = StepJob.of(message("x"), output=True)
    steps = AddedStep(Plan(name="one"), job), AddedStep(Plan(name="two", after=(Condition(("one",)),)), job)
    killing, found = Killing(monkeypatch, workflow_queue(session.exchange)), Counter[str]()
    monkeypatch.setattr(leader_workflows, "_PART_BYTES", 1)  # each part is committed by itself
    async with time_kept(broker):
        consumer = await consume(await another())

        async def work() -> None:
            while True:
                step = await take(consumer)
                found[step.message.id] += 1
                first = not step_of(step.message.extra)
                output = StoredResult("application/json", b"1")
                await consumer.settle(step, Ack(adds=pack(Graph(steps=steps))) if first else Ack(output=output))

        working = asyncio.ensure_future(work())
        await broker.publish(message("0"))
        await until(lambda: found.keys(), {"0", "0/one", "0/two"})
        await until(lambda: left(broker), [])
        for number in count(1):
            killing.left = number
            await broker.publish(message(f"{number}"))
            await until(lambda id=f"{number}": found[f"{id}/two"] > 0, True)
            await until(lambda: left(broker), [])
            if killing.left > 0:
                break
        working.cancel()

    assert number > 10
    assert set(found) == {f"{id}{path}" for id in range(number + 1) for path in ("", "/one", "/two")}
    # If the workflow is finished by the time that a copy of its last step arrives, the copy runs.
    assert {id: runs for id, runs in found.items() if runs > (2 if id.endswith("/two") else 1)} == {}
